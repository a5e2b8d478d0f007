"""The round loop and the answer around it, on scripted decoders that hold every caller to the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.acceptance import Record
from app.core.auto import Policy
from app.core.costs import Costs, PassCosts
from app.core.errors import Cancelled, HeadstartError, UsageError
from app.core.settings import Mode, Request, SamplingSettings, SpeculationSettings
from app.core.tokens import DraftSource, Round, TokenKind
from app.engine.drafters import AtLeast, AutoDrafter, LookupDrafter, ModelDrafter, NoDrafter
from app.engine.generate import Answer, Known, Settled, Vocabulary
from app.engine.protocols import Drafter
from app.engine.rounds import rounds

GREEDY = SamplingSettings()
N_VOCAB = 12


class ScriptedDecoder:
    """Logits that depend on the last three ids alone, and a cache that refuses what a real one would.

    ``likeness`` 1 gives the target's own logits, 0 unrelated ones. ``fail_at`` numbers the call (decode,
    or a batch of extend) that raises ``failure`` and leaves the cache as it was.
    """

    def __init__(
        self,
        likeness: float = 1.0,
        n_vocab: int = N_VOCAB,
        n_ctx: int = 200,
        max_rows: int = 32,
        n_batch: int = 512,
    ) -> None:
        self.n_ctx, self.n_vocab, self.max_rows = n_ctx, n_vocab, min(max_rows, n_batch)
        self.ids: list[int] = []
        self.seconds = 0.0
        self.calls = 0
        self.fail_at: int | None = None
        self.failure: Exception = Cancelled()
        self._likeness, self._n_batch = likeness, n_batch

    def _row(self, ids: Sequence[int]) -> np.ndarray:
        context = [*[99] * 3, *ids][-3:]
        own = np.random.default_rng([1, *context]).normal(size=64)
        other = np.random.default_rng([2, *context]).normal(size=64)
        return (3 * (self._likeness * own + (1 - self._likeness) * other)).astype(np.float32)[: self.n_vocab]

    def _call(self, ids: Sequence[int]) -> None:
        assert 0 < len(ids) <= self._n_batch
        assert len(self.ids) + len(ids) <= self.n_ctx
        assert all(0 <= token < self.n_vocab for token in ids)
        if self.calls == self.fail_at:
            self.calls += 1
            raise self.failure
        self.calls += 1
        self.seconds += 1.0

    def decode(self, ids: Sequence[int], rows: int) -> np.ndarray:
        assert 0 < rows <= min(self.max_rows, len(ids))
        self._call(ids)
        before = len(self.ids)
        self.ids += ids
        first = before + len(ids) - rows + 1
        return np.stack([self._row(self.ids[:length]) for length in range(first, before + len(ids) + 1)])

    def extend(self, ids: Sequence[int], on_chunk: Callable[[int], None]) -> None:
        for start in range(0, len(ids), self._n_batch):
            chunk = ids[start : start + self._n_batch]
            self._call(chunk)
            self.ids += chunk
            on_chunk(len(chunk))

    n_behind = 0

    def reachable(self, length: int) -> int:
        return length

    def rewind(self, length: int) -> None:
        del self.ids[max(length, 0) :]


def never(token: int) -> bool:
    return False


def model_drafter(
    decoder: ScriptedDecoder,
    sampling: SamplingSettings = GREEDY,
    p_min: float = 0,
    n_shared: int = N_VOCAB,
    is_end: Callable[[int], bool] = never,
) -> ModelDrafter:
    return ModelDrafter(decoder, n_shared, sampling, AtLeast(p_min), np.random.default_rng(1), is_end)


def auto_drafter(
    decoder: ScriptedDecoder | None,
    sampling: SamplingSettings = GREEDY,
    more: float = 0.03,
    n_shared: int = N_VOCAB,
    is_end: Callable[[int], bool] = never,
) -> AutoDrafter:
    """Auto where each further token of a pass takes ``more`` of the first one's time."""
    costs = Costs(PassCosts({1: 1.0, 32: 1 + 31 * more}), PassCosts({1: 0.1}) if decoder else None)
    policy = Policy(costs, Record(), 40)
    rng = np.random.default_rng(1)
    model = decoder and ModelDrafter(decoder, n_shared, sampling, policy, rng, is_end)
    return AutoDrafter(policy, model, is_end)


class Loop:
    """A round loop with its parts at hand."""

    def __init__(
        self,
        prompt: Sequence[int] = (1, 2, 3),
        draft: ScriptedDecoder | None = None,
        target: ScriptedDecoder | None = None,
        drafter: Drafter | None = None,
        k: int = 4,
        max_tokens: int = 40,
        sampling: SamplingSettings = GREEDY,
        ends: Callable[[int], bool] = never,
    ) -> None:
        self.target = target or ScriptedDecoder()
        self.draft = draft
        self.committed = list(prompt)
        self.target.extend(self.committed[:-1], lambda done: None)
        if draft and not drafter:
            drafter = model_drafter(draft, sampling)
        self._auto = drafter if isinstance(drafter, AutoDrafter) else None
        self.rounds = rounds(
            self.target,
            drafter or NoDrafter(),
            self.committed,
            sampling=sampling,
            n_draft=k,
            max_tokens=max_tokens,
            rng=np.random.default_rng(0),
            ends=ends,
        )
        self._n_prompt = len(prompt)

    @property
    def output(self) -> list[int]:
        return self.committed[self._n_prompt :]

    def run(self) -> list[Round]:
        done = []
        for round_ in self.rounds:
            self.check_caches()
            done.append(round_)
            if self._auto:
                self._auto.learn(round_)
        self.check_caches()
        return done

    def check_caches(self) -> None:
        """The target lacks only the last id; the draft holds a prefix."""
        assert self.target.ids == self.committed[:-1]
        if self.draft:
            assert self.draft.ids == self.committed[: len(self.draft.ids)]
            assert len(self.draft.ids) < len(self.committed)


def plain(max_tokens: int = 40, sampling: SamplingSettings = GREEDY, **more: object) -> list[int]:
    loop = Loop(max_tokens=max_tokens, sampling=sampling, **more)  # type: ignore[arg-type]
    loop.run()
    return loop.output


PENALTIES = SamplingSettings(repeat_penalty=1.5, frequency_penalty=0.5, repeat_last_n=8)


class TestLossless:
    @pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["no penalties", "penalties"])
    @pytest.mark.parametrize("likeness", [0.0, 0.7, 1.0])
    @pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 6, 7, 8, 31])
    def test_a_model_draft_changes_no_id(self, k: int, likeness: float, sampling: SamplingSettings) -> None:
        loop = Loop(draft=ScriptedDecoder(likeness), k=k, sampling=sampling)
        done = loop.run()
        assert loop.output == plain(sampling=sampling)
        if k and likeness == 1:
            assert all(round_.n_accepted == len(round_.draft) for round_ in done)
        if k and likeness == 0.7:
            assert 0 < sum(round_.n_accepted for round_ in done) < sum(len(round_.draft) for round_ in done)

    @pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["no penalties", "penalties"])
    @pytest.mark.parametrize(("n_min", "n_max"), [(1, 1), (1, 3), (2, 4)])
    @pytest.mark.parametrize("k", [0, 1, 3, 8, 31])
    def test_a_lookup_draft_changes_no_id(
        self, k: int, n_min: int, n_max: int, sampling: SamplingSettings
    ) -> None:
        prompt = [1, 2, 3, 1, 2, 3, 1, 2]
        loop = Loop(prompt, drafter=LookupDrafter(n_min, n_max, never), k=k, sampling=sampling)
        done = loop.run()
        assert loop.output == plain(prompt=prompt, sampling=sampling)
        assert any(round_.draft for round_ in done) == (k > 0)

    @pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["no penalties", "penalties"])
    @pytest.mark.parametrize("likeness", [None, 0.0, 0.7, 1.0])
    @pytest.mark.parametrize("more", [0.0, 0.1, 0.5])
    def test_auto_changes_no_id(
        self, more: float, likeness: float | None, sampling: SamplingSettings
    ) -> None:
        prompt = [1, 2, 3, 1, 2, 3, 1, 2]
        draft = None if likeness is None else ScriptedDecoder(likeness)
        loop = Loop(
            prompt, draft, drafter=auto_drafter(draft, sampling, more), k=31, max_tokens=80, sampling=sampling
        )
        done = loop.run()
        assert loop.output == plain(80, prompt=prompt, sampling=sampling)
        sources = {source for round_ in done for source in round_.sources}
        if more == 0:
            assert (DraftSource.MODEL in sources) == (likeness is not None)
            assert any(round_.n_accepted < len(round_.draft) for round_ in done) or likeness == 1

    @given(
        prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
        k=st.integers(0, 12),
        likeness=st.sampled_from([0.3, 0.6, 0.8]),
        max_tokens=st.integers(1, 30),
        n_ctx=st.integers(20, 40),
        draft_n_ctx=st.integers(8, 40),
        n_batch=st.sampled_from([1, 2, 3, 16]),
        p_min=st.sampled_from([0.0, 0.3]),
        auto_more=st.sampled_from([None, 0.0, 0.03, 0.3]),
        ends_on=st.sets(st.integers(0, N_VOCAB - 1), max_size=2),
    )
    @settings(max_examples=250, deadline=None)
    def test_whatever_the_limits(
        self,
        prompt: list[int],
        k: int,
        likeness: float,
        max_tokens: int,
        n_ctx: int,
        draft_n_ctx: int,
        n_batch: int,
        p_min: float,
        auto_more: float | None,
        ends_on: set[int],
    ) -> None:
        def loop(draft: ScriptedDecoder | None) -> Loop:
            target = ScriptedDecoder(n_ctx=n_ctx, n_batch=n_batch)
            is_end = ends_on.__contains__
            drafter: Drafter | None = None
            if draft and auto_more is not None:
                drafter = auto_drafter(draft, more=auto_more, is_end=is_end)
            elif draft:
                drafter = model_drafter(draft, p_min=p_min, is_end=is_end)
            return Loop(prompt, draft, target, drafter, k, max_tokens, ends=is_end)

        speculating = loop(ScriptedDecoder(likeness, n_ctx=draft_n_ctx, n_batch=n_batch))
        speculating.run()
        without = loop(None)
        without.run()
        assert speculating.output == without.output


class TestRounds:
    def test_plain_rounds_are_the_targets(self) -> None:
        done = Loop(max_tokens=5).run()
        assert [round_.index for round_ in done] == [0, 1, 2, 3, 4]
        assert {round_.next_kind for round_ in done} == {TokenKind.TARGET}
        assert {round_.draft for round_ in done} == {()}
        assert {(round_.draft_s, round_.verify_s) for round_ in done} == {(0.0, 1.0)}

    def test_the_output_is_that_of_the_rounds(self) -> None:
        loop = Loop(draft=ScriptedDecoder(0.7))
        assert [token for round_ in loop.run() for token in round_.output] == loop.output

    def test_kinds_follow_from_what_was_accepted(self) -> None:
        kinds = set()
        for round_ in Loop(draft=ScriptedDecoder(0.7), max_tokens=60).run():
            assert len(round_.target_probs) == round_.n_accepted + 1 + (round_.n_accepted < len(round_.draft))
            if not round_.draft:
                assert round_.next_kind is TokenKind.TARGET
            elif round_.n_accepted == len(round_.draft):
                assert round_.next_kind is TokenKind.BONUS
            else:
                assert round_.next_kind is TokenKind.RECOVERED
                assert round_.next_token != round_.draft[round_.n_accepted]
            kinds.add(round_.next_kind)
        assert {TokenKind.BONUS, TokenKind.RECOVERED} <= kinds

    def test_the_draft_is_fed_its_own_last_token_after_full_acceptance(self) -> None:
        loop = Loop(draft=ScriptedDecoder(), k=3)
        first = next(loop.rounds)
        assert first.n_accepted == 3
        assert loop.draft is not None
        assert loop.draft.ids == loop.committed[:-2]
        next(loop.rounds)
        loop.rounds.close()
        assert loop.draft.ids == loop.committed[: len(loop.draft.ids)]

    @pytest.mark.parametrize("k", [1, 4, 8])
    @pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 10])
    def test_max_tokens_is_exact_and_nothing_is_drafted_beyond_it(self, k: int, max_tokens: int) -> None:
        loop = Loop(draft=ScriptedDecoder(), k=k, max_tokens=max_tokens)
        left = max_tokens
        for round_ in loop.run():
            assert len(round_.draft) <= left - 1
            left -= len(round_.output)
        assert left == 0
        assert loop.output == plain(max_tokens)

    @pytest.mark.parametrize("k", [0, 1, 4, 8])
    @pytest.mark.parametrize("short_of_full", range(10))
    def test_the_context_end_is_exact(self, k: int, short_of_full: int) -> None:
        n_ctx = 40
        prompt = [token % N_VOCAB for token in range(n_ctx - short_of_full)]
        target = ScriptedDecoder(n_ctx=n_ctx)
        loop = Loop(prompt, ScriptedDecoder(0.8, n_ctx=n_ctx), target, k=k, max_tokens=100)
        room = n_ctx - len(prompt) - 1
        for round_ in loop.run():
            assert len(round_.draft) == max(min(k, room), 0)
            room -= len(round_.output)
        # The last token needs no place of its own: it is never decoded.
        assert len(loop.output) == short_of_full + 1
        assert loop.output == plain(100, prompt=prompt, target=ScriptedDecoder(n_ctx=n_ctx))

    def test_the_draft_is_capped_by_the_rows_a_pass_may_have(self) -> None:
        loop = Loop(draft=ScriptedDecoder(), target=ScriptedDecoder(max_rows=3), k=8)
        assert max(len(round_.draft) for round_ in loop.run()) == 2

    @pytest.mark.parametrize("n_batch", [1, 2, 3])
    def test_the_draft_is_capped_by_the_batch(self, n_batch: int) -> None:
        target, draft = ScriptedDecoder(n_batch=n_batch), ScriptedDecoder(n_batch=n_batch)
        loop = Loop(draft=draft, target=target, k=8)
        assert max(len(round_.draft) for round_ in loop.run()) == n_batch - 1
        assert loop.output == plain()


class TestEnds:
    @pytest.mark.parametrize("place", range(9))
    @pytest.mark.parametrize("k", [0, 3, 4, 8])
    def test_an_end_anywhere_in_an_accepted_run(self, k: int, place: int) -> None:
        """The target drafts for itself: the end falls inside runs, at their edges and on bonus tokens."""
        whole = plain()
        asked: list[int] = []

        def ends(token: int) -> bool:
            asked.append(token)
            return len(asked) == place + 1

        loop = Loop(draft=ScriptedDecoder(), k=k, ends=ends)
        done = loop.run()
        assert loop.output == asked == whole[: place + 1]
        last = done[-1]
        assert (last.next_token is None) == (place % (k + 1) < k and k > 0)
        if last.next_token is None:
            assert last.next_kind is None
            assert last.n_accepted == place % (k + 1) + 1
        assert [token for round_ in done for token in round_.output] == loop.output

    def test_a_drafter_stops_after_an_end_it_draws(self) -> None:
        whole = plain()
        end = whole[6]
        place = whole.index(end)
        draft = ScriptedDecoder()
        loop = Loop(
            draft=draft,
            drafter=model_drafter(draft, is_end=lambda token: token == end),
            k=31,
            ends=lambda token: token == end,
        )
        (only,) = loop.run()
        assert only.draft == tuple(whole[: place + 1])
        assert loop.output == whole[: place + 1]

    @pytest.mark.parametrize("mode", [Mode.LOOKUP, Mode.AUTO])
    def test_nothing_is_looked_up_behind_an_end(self, mode: Mode) -> None:
        """A conversation's earlier turns end, and what follows there is no part of this answer."""
        prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
        drafter: Drafter = LookupDrafter(2, 4, {6}.__contains__)
        if mode is Mode.AUTO:
            drafter = auto_drafter(None, more=0.0, is_end={6}.__contains__)
        drafter.begin(prompt)
        assert drafter.propose(prompt, 8).ids == (5, 6)


class TestInterruption:
    @pytest.mark.parametrize("auto", [False, True], ids=["draft", "auto"])
    @pytest.mark.parametrize("n_rounds", range(8))
    def test_closed_after_any_round(self, n_rounds: int, auto: bool) -> None:
        draft = ScriptedDecoder(0.7)
        loop = Loop(draft=draft, drafter=auto_drafter(draft) if auto else None)
        done = list(itertools.islice(loop.rounds, n_rounds))
        loop.rounds.close()
        loop.check_caches() if n_rounds else None
        assert loop.output == plain()[: sum(len(round_.output) for round_ in done)]

    @pytest.mark.parametrize("failure", [Cancelled(), HeadstartError("out of memory")], ids=repr)
    @pytest.mark.parametrize("auto", [False, True], ids=["draft", "auto"])
    @pytest.mark.parametrize("who", ["target", "draft"])
    @pytest.mark.parametrize("call", range(12))
    def test_a_failing_call_leaves_both_caches_a_prefix(
        self, who: str, call: int, auto: bool, failure: Exception
    ) -> None:
        draft = ScriptedDecoder(0.7, n_batch=2)
        loop = Loop(draft=draft, drafter=auto_drafter(draft, more=0) if auto else None, max_tokens=60)
        failing = getattr(loop, who)
        failing.fail_at, failing.failure = failing.calls + call, failure
        with pytest.raises(type(failure)):
            for _ in loop.rounds:
                loop.check_caches()
        loop.check_caches()
        assert loop.output == plain(60)[: len(loop.output)]

    def test_an_error_in_what_asks_for_ends(self) -> None:
        def ends(token: int) -> bool:
            raise RuntimeError

        loop = Loop(draft=ScriptedDecoder(), ends=ends)
        with pytest.raises(RuntimeError):
            next(loop.rounds)
        loop.check_caches()


class TestModelDrafter:
    def test_a_smaller_context_drafts_while_it_can(self) -> None:
        draft = ScriptedDecoder(n_ctx=20)
        loop = Loop(draft=draft, k=4)
        done = loop.run()
        assert loop.output == plain()
        drafting = [bool(round_.draft) for round_ in done]
        assert drafting == sorted(drafting, reverse=True)
        assert True in drafting
        assert False in drafting
        # Its cache is filled to the last place: the bonus token may be the first it cannot hold.
        drafted_up_to = 3 + sum(len(round_.output) for round_ in done if round_.draft)
        assert 20 <= drafted_up_to <= 22

    @pytest.mark.parametrize(("n_committed", "n_drafted"), [(16, 4), (17, 4), (18, 3), (20, 1), (21, 0)])
    def test_its_context_is_used_to_the_last_place(self, n_committed: int, n_drafted: int) -> None:
        draft = ScriptedDecoder(n_ctx=20)
        committed = [token % N_VOCAB for token in range(n_committed)]
        assert len(model_drafter(draft).propose(committed, 4).ids) == n_drafted

    def test_a_prompt_beyond_its_context_is_never_fed(self) -> None:
        draft = ScriptedDecoder(n_ctx=8)
        prompt = [token % N_VOCAB for token in range(12)]
        loop = Loop(prompt, draft)
        assert not any(round_.draft for round_ in loop.run())
        assert draft.calls == 0

    def test_an_id_that_only_the_target_knows_is_never_passed_on(self) -> None:
        n_shared = 6
        draft = ScriptedDecoder(0.9, n_vocab=n_shared)  # its decode refuses any id from 6 on
        loop = Loop((1, 2), draft, drafter=model_drafter(draft, n_shared=n_shared))
        done = loop.run()
        assert loop.output == plain(prompt=(1, 2))
        assert any(token >= n_shared for token in loop.output)
        assert any(round_.draft for round_ in done)

    def test_an_id_that_only_the_draft_knows_is_never_proposed(self) -> None:
        n_shared = 6
        target, draft = ScriptedDecoder(n_vocab=n_shared), ScriptedDecoder(0.5)
        loop = Loop((1, 2), draft, target, model_drafter(draft, n_shared=n_shared))
        done = loop.run()
        assert all(token < n_shared for round_ in done for token in round_.draft)
        assert any(round_.draft for round_ in done)

    def test_p_min_shortens_drafts_and_changes_no_id(self) -> None:
        lengths = {}
        for p_min in (0.0, 0.5, 0.75, 1.0):
            draft = ScriptedDecoder(0.8)
            loop = Loop(draft=draft, drafter=model_drafter(draft, p_min=p_min), k=16)
            done = loop.run()
            assert loop.output == plain()
            lengths[p_min] = sum(len(round_.draft) for round_ in done) / len(done)
            for round_ in done:
                assert all(prob >= p_min for prob in round_.draft_probs if prob is not None)
        assert lengths[0.0] > lengths[0.5] > lengths[0.75] > lengths[1.0] == 0

    def test_p_min_looks_at_the_largest_probability_not_at_the_drawn_ones(self) -> None:
        hot = SamplingSettings(temperature=3, top_k=0)
        draft = ScriptedDecoder()
        drafter = model_drafter(draft, hot, p_min=0.4)
        found = []
        for first in range(N_VOCAB):
            for seed in range(20):
                draft.rewind(0)
                drafter._rng = np.random.default_rng(seed)
                found += drafter.propose([first, 1, 2], 4).probs
        assert min(prob for prob in found if prob is not None) < 0.1

    def test_nothing_drafted_leaves_its_cache_alone(self) -> None:
        draft = ScriptedDecoder()
        loop = Loop(draft=draft, k=0)
        loop.run()
        assert draft.calls == 0

    def test_it_catches_up_after_rounds_without_it(self) -> None:
        draft = ScriptedDecoder(n_batch=3)
        drafter = model_drafter(draft)
        committed = [token % N_VOCAB for token in range(20)]
        proposal = drafter.propose(committed, 3)
        assert draft.ids == [*committed, *proposal.ids[:-1]]
        drafter.accept(committed)
        assert draft.ids == committed[:-1]


# The answer around the loop.


def pieces(token: int) -> bytes:
    return b"abcdefghijklmnopqrstuvwxyz"[token : token + 1]


class Answering:
    """A session: two caches that answers share."""

    def __init__(self, likeness: float = 0.8, n_ctx: int = 200, n_batch: int = 512) -> None:
        self.target = ScriptedDecoder(n_ctx=n_ctx, n_batch=n_batch)
        self.draft = ScriptedDecoder(likeness, n_ctx=n_ctx, n_batch=n_batch)
        self.is_end: Callable[[int], bool] = never
        self.piece: Callable[[int], bytes] = pieces
        self.progress: list[tuple[int, int]] = []

    def start(
        self,
        prompt: Sequence[int] = (1, 2, 3),
        mode: Mode = Mode.DRAFT,
        max_tokens: int = 30,
        stop: Iterable[str] = (),
        fresh: bool = False,
        **speculation: object,
    ) -> Answer:
        request = Request(
            messages=(),
            max_tokens=max_tokens,
            stop=tuple(stop),
            fresh=fresh,
            speculation=SpeculationSettings(mode=mode, **speculation),  # type: ignore[arg-type]
        )
        vocabulary = Vocabulary(self.piece, self.is_end, N_VOCAB)
        ticks = itertools.count()
        known = Known(Costs(PassCosts({1: 1.0, 32: 2.0}), PassCosts({1: 0.1})), Record())
        return Answer(self.target, self.draft, vocabulary, prompt, request, lambda: float(next(ticks)), known)

    def finish(self, answer: Answer) -> list[Settled]:
        self.progress = []
        return list(answer.settled_rounds(lambda done, total: self.progress.append((done, total))))


def check_answer(answer: Answer, settled: list[Settled]) -> None:
    """Texts, ids, kinds and figures all tell the same story."""
    events = [event for one in settled for event in one.tokens]
    output = [event for event in events if event.kind.is_output]
    assert [event.id for event in output] == answer.output_ids
    assert "".join(event.text for event in output) == answer.text
    stats = answer.stats
    counted = {kind: sum(event.kind is kind for event in events) for kind in TokenKind}
    assert stats.output_tokens == len(output)
    assert stats.accepted == counted[TokenKind.ACCEPTED]
    drafted = counted[TokenKind.ACCEPTED] + counted[TokenKind.REJECTED] + counted[TokenKind.DISCARDED]
    assert stats.drafted == drafted
    assert stats.target_passes == len(settled)
    for one in settled:
        positions = [event.position for event in one.tokens if event.position is not None]
        assert positions == list(range(len(positions)))
        order = [TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.DISCARDED]
        places = [order.index(event.kind) if event.kind in order else 3 for event in one.tokens]
        assert places == sorted(places)
        for event in one.tokens:
            assert (event.target_prob is None) == (event.kind is TokenKind.DISCARDED)
            assert (event.source is None) == (event.position is None)


class TestAnswer:
    @pytest.mark.parametrize("mode", list(Mode))
    def test_events_text_and_figures_agree(self, mode: Mode) -> None:
        session = Answering()
        answer = session.start(mode=mode)
        settled = session.finish(answer)
        check_answer(answer, settled)
        assert answer.finish_reason == "length"
        assert answer.text == "".join(pieces(token).decode() for token in plain(30))

    @pytest.mark.parametrize("mode", list(Mode))
    @pytest.mark.parametrize("place", [0, 1, 5, 6, 13])
    def test_an_end_of_generation_token_counts_and_shows_nothing(self, mode: Mode, place: int) -> None:
        whole = plain(30)
        place = whole.index(whole[place])
        session = Answering(likeness=1.0)
        session.is_end = lambda token: token == whole[place]
        answer = session.start(mode=mode)
        settled = session.finish(answer)
        check_answer(answer, settled)
        assert answer.output_ids == whole[: place + 1]
        assert answer.finish_reason == "stop"
        assert answer.text == "".join(pieces(token).decode() for token in whole[:place])
        assert session.target.ids == [1, 2, 3, *whole[:place]]

    @pytest.mark.parametrize("mode", list(Mode))
    @pytest.mark.parametrize("place", range(2, 12))
    def test_a_stop_string_cuts_the_same_in_every_mode(self, mode: Mode, place: int) -> None:
        whole = plain(30)
        text = "".join(pieces(token).decode() for token in whole)
        stop = text[place : place + 3]
        cut = text.index(stop)
        session = Answering(likeness=1.0)
        answer = session.start(mode=mode, stop=[stop])
        settled = session.finish(answer)
        check_answer(answer, settled)
        assert (answer.text, answer.finish_reason) == (text[:cut], "stop")
        assert answer.output_ids == whole[: cut + 3]
        assert session.target.ids == [1, 2, 3, *whole[: cut + 2]]

    def test_rounds_wait_for_their_text(self) -> None:
        session = Answering(likeness=1.0)
        session.piece = lambda token: b"\xe8"  # a character that is never whole
        answer = session.start(max_tokens=6)
        settled = session.finish(answer)
        check_answer(answer, settled)
        assert answer.text == "\ufffd" * 6

    def test_the_cut_draft_is_discarded_not_rejected(self) -> None:
        whole = plain(30)
        session = Answering(likeness=1.0)
        session.piece = lambda token: b"." if token == whole[1] else b"x"
        place = whole.index(whole[1])
        answer = session.start(stop=["."], n_draft=8)
        (only,) = session.finish(answer)
        kinds = [event.kind for event in only.tokens]
        assert kinds == [TokenKind.ACCEPTED] * (place + 1) + [TokenKind.DISCARDED] * (8 - place - 1)
        assert {event.target_prob for event in only.tokens[place + 1 :]} == {None}

    def test_what_both_caches_hold_is_not_fed_again(self) -> None:
        session = Answering()
        first = session.start()
        session.finish(first)
        assert first.cached_tokens == 0
        assert session.progress[-1] == (4, 4)
        prompt = [*first.prompt_ids, *first.output_ids, 1, 2]
        second = session.start(prompt)
        session.finish(second)
        assert second.cached_tokens == len(first.prompt_ids) + len(first.output_ids) - 1
        assert second.stats.cached_tokens == second.cached_tokens
        assert session.progress[-1][1] < 10
        fresh = Answering()
        again = fresh.start(prompt)
        fresh.finish(again)
        assert again.output_ids == second.output_ids

    def test_the_whole_prompt_in_the_cache_still_decodes_its_last_token(self) -> None:
        session = Answering()
        outputs = []
        for _ in range(3):
            answer = session.start()
            session.finish(answer)
            outputs.append(answer.output_ids)
        assert answer.cached_tokens == 2
        assert outputs[0] == outputs[1] == outputs[2]

    def test_a_fresh_request_uses_nothing_that_the_caches_hold(self) -> None:
        session = Answering()
        first = session.start()
        session.finish(first)
        fresh = session.start(fresh=True)
        session.finish(fresh)
        assert (fresh.cached_tokens, session.progress[-1]) == (0, (4, 4))
        assert fresh.output_ids == first.output_ids

    def test_an_edited_turn_drops_what_no_longer_holds(self) -> None:
        session = Answering()
        session.finish(session.start([1, 2, 3, 4, 5]))
        edited = session.start([1, 2, 9, 4, 5])
        session.finish(edited)
        assert edited.cached_tokens == 2
        assert edited.output_ids == plain(30, prompt=[1, 2, 9, 4, 5])

    def test_modes_in_turn_share_the_caches(self) -> None:
        session = Answering()
        for mode in (Mode.DRAFT, Mode.PLAIN, Mode.AUTO, Mode.LOOKUP, Mode.AUTO, Mode.DRAFT, Mode.AUTO):
            for prompt in ([1, 2, 3], [1, 2, 5, 6], [3]):
                answer = session.start(prompt, mode)
                check_answer(answer, session.finish(answer))
                assert answer.output_ids == plain(30, prompt=prompt)

    @pytest.mark.parametrize("mode", [Mode.DRAFT, Mode.AUTO])
    @pytest.mark.parametrize("who", ["target", "draft"])
    @pytest.mark.parametrize("call", range(10))
    def test_cancelled_at_any_call_and_asked_again(self, who: str, call: int, mode: Mode) -> None:
        session = Answering(likeness=0.7, n_batch=3)
        prompt = [1, 2, 3, 4, 5, 6, 7, 8]
        decoder = getattr(session, who)
        decoder.fail_at = call
        cancelled = session.start(prompt, mode)
        settled = session.finish(cancelled)
        assert cancelled.finish_reason == "cancelled"
        check_answer(cancelled, settled)
        whole = plain(30, prompt=prompt)
        assert cancelled.output_ids == whole[: len(cancelled.output_ids)]
        again = session.start(prompt, mode)
        check_answer(again, session.finish(again))
        assert again.output_ids == whole

    @pytest.mark.parametrize("mode", [Mode.DRAFT, Mode.AUTO])
    @pytest.mark.parametrize("n_rounds", [1, 2, 5])
    def test_a_reader_that_goes_away_leaves_the_caches_usable(self, n_rounds: int, mode: Mode) -> None:
        session = Answering()
        reading = session.start(mode=mode).settled_rounds(lambda done, total: None)
        list(itertools.islice(reading, n_rounds))
        reading.close()
        again = session.start(mode=mode)
        session.finish(again)
        assert again.output_ids == plain(30)

    def test_what_may_become_a_stop_string_comes_out_when_cancelled(self) -> None:
        whole = plain(30)
        text = "".join(pieces(token).decode() for token in whole)
        session = Answering()
        session.target.fail_at = 4  # the prompt's batch and three rounds
        answer = session.start(mode=Mode.PLAIN, stop=[text[:3] + "!"])
        settled = session.finish(answer)
        assert (answer.text, answer.finish_reason) == (text[:3], "cancelled")
        check_answer(answer, settled)

    @pytest.mark.parametrize("n_prompt", range(32, 41))
    def test_the_context_is_used_to_its_end(self, n_prompt: int) -> None:
        session = Answering(n_ctx=40)
        answer = session.start([token % N_VOCAB for token in range(n_prompt)], n_draft=8, max_tokens=100)
        session.finish(answer)
        assert len(answer.output_ids) == 41 - n_prompt
        assert answer.finish_reason == "context"

    def test_max_tokens_at_the_context_end_is_a_length(self) -> None:
        session = Answering(n_ctx=40)
        answer = session.start([1] * 40, max_tokens=1)
        session.finish(answer)
        assert answer.finish_reason == "length"

    def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(self) -> None:
        with pytest.raises(UsageError, match=r"41 tokens.* 40"):
            Answering(n_ctx=40).start([1] * 41)

    def test_an_empty_prompt_is_refused(self) -> None:
        with pytest.raises(UsageError, match="empty"):
            Answering().start([])

    @pytest.mark.parametrize("token", [-1, N_VOCAB, 10_000])
    def test_an_id_the_model_lacks_is_refused(self, token: int) -> None:
        with pytest.raises(UsageError, match=str(token)):
            Answering().start([1, token, 2])

    def test_mode_draft_needs_a_draft(self) -> None:
        session = Answering()
        session.draft = None  # type: ignore[assignment]
        with pytest.raises(UsageError, match="draft"):
            session.finish(session.start())

    def test_prefill_progress_covers_both_models(self) -> None:
        session = Answering(n_batch=4)
        session.finish(session.start([token % N_VOCAB for token in range(11)]))
        assert session.progress == [(4, 20), (8, 20), (10, 20), (14, 20), (18, 20), (20, 20)]

    def test_times_are_the_clocks(self) -> None:
        session = Answering()
        answer = session.start(max_tokens=8, n_draft=2)
        settled = session.finish(answer)
        times = [one.t for one in settled]
        assert times == sorted(times)
        stats = answer.stats
        assert stats.draft_s > 0
        assert stats.verify_s == stats.target_passes
        assert stats.decode_s == pytest.approx(stats.draft_s + stats.verify_s + (stats.other_s or 0))
        assert stats.total_s == pytest.approx((stats.prefill_s or 0) + (stats.decode_s or 0))

"""What auto chooses under given costs and chances, on scripted texts and without a model."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rounds import N_VOCAB, ScriptedDecoder, never

from app.core.acceptance import Confidence, Record
from app.core.auto import Choice, Policy
from app.core.copying import N_EVIDENCE, Proposal
from app.core.costs import Costs, PassCosts
from app.core.sampling import softmax_prob, transform
from app.core.settings import MAX_DRAFT, SamplingSettings
from app.core.tokens import Round
from app.engine import drafters
from app.engine.drafters import AutoDrafter, ModelDrafter
from app.engine.rounds import rounds
from tests.simulator import Replay, Setting, Trace, replay

AUTO = Setting("auto")
LENGTH = 192
NO_GAIN = {1: 1.0, 32: 32.0}
STEEP = {1: 1.0, 2: 1.84, 4: 2.95, 8: 4.8, 16: 8.0, 32: 11.6}
FLAT = {1: 1.0, 32: 1.1}
MIDDLE = {1: 1.0, 2: 1.25, 4: 1.5, 8: 2.2, 16: 3.5, 32: 6.6}


def costs(target: dict[int, float], step: float | None = None) -> Costs:
    """A draft model reads a batch in a quarter of the time of its steps."""
    draft = None if step is None else PassCosts({1: step, 2: 1.25 * step, 128: 32 * step})
    return Costs(PassCosts(target), draft)


def prose(seed: int, length: int = LENGTH) -> list[int]:
    """A text without repetitions to speak of."""
    return np.random.default_rng(seed).integers(1, 400, length).tolist()


def trace(
    output: Sequence[int],
    prompt: Sequence[int] = (1, 2, 3),
    right: float = 0.0,
    sure: float = 0.9,
    seed: int = 5,
) -> Trace:
    """An answer of which a draft model knows the share ``right``, and believes to know ``sure``."""
    rng = np.random.default_rng(seed)
    draft = tuple((token if rng.random() < right else 401, sure) for token in output)
    return Trace("scripted", "any", tuple(prompt), tuple(output), draft, {}, 402)


def drafted(done: Replay) -> list[int]:
    return [len(round_.draft) for round_ in done.rounds]


class TestChoices:
    def test_where_nothing_pays_it_decodes_plainly_and_reads_nothing(self) -> None:
        for right in (0.0, 0.9):
            source = prose(1)
            done = replay(trace(source, source, right), AUTO, costs(NO_GAIN, 0.5))
            assert drafted(done) == [0] * LENGTH
            assert (done.decode_s, done.prefill_s) == (LENGTH, 0)

    def test_a_good_draft_model_at_no_cost_drafts_far_ahead(self) -> None:
        done = replay(trace(prose(1), right=0.97, sure=0.97), AUTO, costs(FLAT, 0.01))
        assert statistics.mean(drafted(done)[3:]) > 8
        assert done.decode_s < LENGTH / 5

    def test_a_dear_draft_model_drafts_less(self) -> None:
        lengths = [
            statistics.mean(drafted(replay(trace(prose(1), right=0.8, sure=0.8), AUTO, costs(MIDDLE, step))))
            for step in (0.01, 0.15, 0.4)
        ]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] > 1.4 * lengths[-1]

    def test_a_copy_is_looked_up_as_far_as_it_goes(self) -> None:
        source = prose(1)
        done = replay(trace(source, source), AUTO, costs(FLAT))
        assert max(drafted(done)) == MAX_DRAFT
        assert len(done.rounds) < 16

    def test_lengths_land_on_the_cheap_sizes(self) -> None:
        """Passes of 8 cost less than those of 6, and nothing beyond pays."""
        table = {1: 1.0, 2: 1.6, 3: 2.2, 5: 3.4, 6: 4.0, 7: 4.4, 8: 2.2, 9: 5.0, 32: 40.0}
        source = prose(1)
        for right, step, prompt in ((0.0, None, source), (0.95, 0.02, (1, 2, 3))):
            done = replay(trace(source, prompt, right, 0.95), AUTO, costs(table, step))
            lengths = Counter(drafted(done)[3:-3])
            assert lengths[7] > 0.7 * sum(lengths.values())

    def test_a_look_up_is_continued_by_the_model(self) -> None:
        """A list whose items begin alike: what is looked up ends where the model is needed."""
        items = prose(3, 24)
        output = [token for item in items for token in (7, 8, 9, 10, 11, 12, item, item + 400)]
        one = trace(output, right=0.95, sure=0.95)
        done = replay(
            Trace(one.id, one.category, one.prompt, one.output, one.draft, {}, 900), AUTO, costs(FLAT, 0.05)
        )
        sources = [tuple(dict.fromkeys(round_.sources)) for round_ in done.rounds]
        assert len(set(sources)) > 1
        assert done.decode_s < LENGTH / 4

    def test_no_draft_model_no_model_drafts(self) -> None:
        source = prose(1)
        for prompt in (source, (1, 2, 3)):
            done = replay(trace(source, prompt), AUTO, costs(FLAT))
            assert {source.value for round_ in done.rounds for source in round_.sources} <= {"lookup"}


class TestLearning:
    def test_look_ups_that_are_wrong_soon_stop(self) -> None:
        """Six words in any order: every pair has stood before, and nothing follows from it."""
        record = Record()
        for seed in range(3):
            words = np.random.default_rng(seed).integers(1, 7, LENGTH).tolist()
            done = replay(trace(words, words[::-1]), AUTO, costs(MIDDLE), record)
            assert done.decode_s < 1.06 * LENGTH
        assert sum(map(bool, drafted(done))) < LENGTH / 4

    def test_a_draft_model_that_is_sure_and_wrong_is_left(self) -> None:
        record = Record()
        for seed in range(3):
            done = replay(trace(prose(seed), right=0.0, sure=0.9), AUTO, costs(MIDDLE, 0.1), record)
        assert sum(drafted(done)) < LENGTH / 10
        assert done.decode_s + done.prefill_s < 1.06 * LENGTH

    def test_a_draft_model_reads_longer_prompts_while_it_is_untried_and_if_it_is_a_copy(self) -> None:
        longest = {}
        for is_copy in (False, True):
            for n_tested in (0, 8):
                record = Record(model=Confidence(is_copy))
                for _ in range(n_tested):
                    record.model.observe(0.6, True)
                policy = Policy(costs(MIDDLE, 0.3), record, 128)
                reads = [n for n in range(1, 1024) if policy.reads_prompt(n, n)]
                longest[is_copy, n_tested] = max(reads)
        assert longest[False, 0] > 1.5 * longest[False, 8] > 0
        assert longest[True, 0] > 1.2 * longest[True, 8] > 0
        assert longest[True, 8] > 1.5 * longest[False, 8]

    def test_a_prompt_is_read_again_once_reading_is_known_to_be_cheap(self) -> None:
        dear = Costs(PassCosts(MIDDLE), PassCosts({1: 0.2, 128: 25.6}))
        policy = Policy(dear, Record(), 128)
        assert not policy.reads_prompt(400, 400)
        speed = dear.target(1)
        for _ in range(20):
            policy.learn_reading(399, 4.0)
        assert policy.reads_prompt(400, 400)
        assert dear.target(1) == speed, "reading tells nothing of the machine's speed"

    def test_a_draft_model_is_believed_as_far_as_it_was_right(self) -> None:
        """Sure and often wrong is drafted less of than unsure and mostly right, once that is known."""
        lengths = []
        for right, sure in ((0.4, 0.95), (0.9, 0.35)):
            record = Record()
            for seed in range(3):
                done = replay(trace(prose(seed), right=right, sure=sure), AUTO, costs(MIDDLE, 0.05), record)
            lengths.append(statistics.mean(drafted(done)))
        assert lengths[1] > 2 * lengths[0]

    def test_a_passage_that_is_copied_is_fast_and_what_surrounds_it_as_fast_as_plain(self) -> None:
        source = prose(1, 70)
        output = [*prose(2, 60), *source, *prose(3, 62)]
        done = replay(trace(output, source), AUTO, costs(MIDDLE))
        at = 0
        passes = Counter[str]()
        for round_ in done.rounds:
            where = "copy" if 60 <= at < 130 else "prose"
            passes[where] += 1
            at += len(round_.output)
        assert passes["copy"] < 70 / 3
        assert passes["prose"] <= 122
        assert done.decode_s < 122 * 1.05 + 70 / 2

    def test_from_prose_to_copying_and_back_several_times(self) -> None:
        source = prose(1, 120)
        output = [token for i in range(4) for token in (*prose(i + 2, 24), *source[30 * i : 30 * i + 24])]
        done = replay(trace(output, source), AUTO, costs(MIDDLE))
        assert done.decode_s < 4 * (24 * 1.05 + 24 * 0.62)

    def test_a_draft_model_that_did_not_pay_is_looked_at_again_rarely(self) -> None:
        """All of what it costs, its reading included, stays a small share, however long it goes on."""
        record = Record()
        source = prose(1, 300)
        spent = []
        for seed in range(6):
            done = replay(trace(prose(seed), source, 0.1, 0.6), AUTO, costs(STEEP, 0.3), record)
            spent.append((done.decode_s + done.prefill_s) / LENGTH - 1)
        assert max(spent[1:]) < 0.05
        assert statistics.mean(spent) < 0.05

    def test_a_draft_model_that_has_become_good_is_taken_up(self) -> None:
        record = Record()
        for seed in range(3):
            bad = replay(trace(prose(seed), right=0.05, sure=0.6), AUTO, costs(MIDDLE, 0.05), record)
        assert bad.decode_s < 1.06 * LENGTH
        for seed in range(6):
            good = replay(trace(prose(seed + 9), right=0.9, sure=0.9), AUTO, costs(MIDDLE, 0.05), record)
        assert good.decode_s + good.prefill_s < 0.6 * LENGTH

    def test_answers_teach_the_next_ones(self) -> None:
        """The same answer is faster where what it teaches is known from the start."""
        for right, sure in ((0.05, 0.95), (0.95, 0.3)):
            record = Record()
            first, *_, last = (
                replay(trace(prose(1), right=right, sure=sure), AUTO, costs(MIDDLE, 0.1), record)
                for _ in range(4)
            )
            assert last.decode_s + last.prefill_s < first.decode_s + first.prefill_s


class TestReasons:
    """What the page is told of a choice."""

    @given(
        evidence=st.lists(st.integers(0, N_EVIDENCE - 1), max_size=MAX_DRAFT),
        n_unseen=st.none() | st.integers(1, 600),
        n_max=st.integers(0, MAX_DRAFT),
        table=st.sampled_from([NO_GAIN, STEEP, MIDDLE, FLAT]),
        step=st.sampled_from([0.01, 0.2, 0.8]),
    )
    @settings(deadline=None, max_examples=200)
    def test_any_choice_is_whole(
        self, evidence: list[int], n_unseen: int | None, n_max: int, table: dict[int, float], step: float
    ) -> None:
        policy = Policy(costs(table, step), Record(), LENGTH)
        evidence = evidence[:n_max]
        proposal = Proposal(tuple(range(len(evidence))), tuple(evidence))
        choice = policy.choose(proposal, 100, n_unseen, n_max)
        assert choice.source in ("none", "lookup", "model", "both")
        assert choice.considered in ("lookup", "model", "both")
        assert choice.source in ("none", choice.considered)
        assert 0 <= choice.looked_up <= len(evidence)
        assert (choice.looked_up > 0) == (choice.source in ("lookup", "both"))
        if n_unseen is None:
            assert choice.source in ("none", "lookup")
        assert 0 <= choice.gain <= n_max
        assert choice.cost >= 0

    def test_a_refused_draft_is_told_with_both_figures(self) -> None:
        policy = Policy(costs(STEEP, 0.6), Record(), LENGTH)
        choice = policy.choose(Proposal((5,), (0,)), 100, 2, 8)
        assert choice.source == "none"
        assert choice.cost > 0
        assert choice.gain < choice.cost * 1.1

    def test_a_draft_that_pays_is_told_with_both_figures(self) -> None:
        policy = Policy(costs(FLAT, 0.01), Record(), LENGTH)
        choice = policy.choose(Proposal(), 100, 1, 8)
        assert choice.source == choice.considered == "model"
        assert choice.gain > choice.cost > 0


class SpyingPolicy(Policy):
    """Notes what it is asked, and in which order."""

    def __init__(self, calls: list[tuple[str, object]], *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._calls = calls

    def choose(self, proposal: Proposal, n_past: int, n_unseen: int | None, n_max: int) -> Choice:
        choice = super().choose(proposal, n_past, n_unseen, n_max)
        self._calls.append(("choose", (tuple(proposal.ids), choice)))
        return choice

    def looks(self, n_drafted: int) -> bool:
        answer = super().looks(n_drafted)
        self._calls.append(("looks", answer))
        return answer

    def draws(self, n_drafted: int, probability: float) -> bool:
        answer = super().draws(n_drafted, probability)
        self._calls.append(("draws", (probability, answer)))
        return answer


HOT = SamplingSettings(temperature=1.0, top_k=4)


def run_auto(
    policy: Policy,
    seed: int,
    *,
    likeness: float = 0.7,
    sampling: SamplingSettings = HOT,
    prompt: Sequence[int] = (1, 2, 3, 1, 2),
    max_tokens: int = 40,
) -> tuple[list[int], list[Round]]:
    """What auto writes on scripted models, and its rounds."""
    target, draft = ScriptedDecoder(), ScriptedDecoder(likeness)
    rng = np.random.default_rng(seed)
    auto = AutoDrafter(policy, ModelDrafter(draft, N_VOCAB, sampling, policy, rng, never), never)
    committed = list(prompt)
    target.extend(prompt[:-1], lambda done: None)
    if auto.begin(prompt):
        draft.extend(prompt[:-1], lambda done: None)
    done = []
    for round_ in rounds(
        target, auto, committed, sampling=sampling, n_draft=8, max_tokens=max_tokens, rng=rng, ends=never
    ):
        auto.learn(round_)
        done.append(round_)
    return committed[len(prompt) :], done


class TestNoBias:
    @pytest.mark.parametrize("seed", range(5))
    def test_a_draw_is_decided_on_before_it_is_made_and_always_proposed(
        self, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[tuple[str, object]] = []
        draw = drafters.choose

        def spied(logits: np.ndarray, *rest: object) -> object:
            token, distribution = draw(logits, *rest)  # type: ignore[arg-type]
            calls.append(
                ("draw", (token, softmax_prob(logits, int(logits.argmax())), softmax_prob(logits, token)))
            )
            return token, distribution

        monkeypatch.setattr(drafters, "choose", spied)
        policy = SpyingPolicy(calls, costs({1: 1.0, 2: 1.1, 16: 1.6}, 0.05), Record(), 40)
        _, done = run_auto(policy, seed)
        assert calls[0][0] == "choose"
        unlike = 0
        for (name, what), (after, then) in pairwise([*calls, ("end", None)]):
            if name == "draw":
                unlike += what[1] != what[2]  # type: ignore[index]
                assert after != "draw"
            elif name == "looks":
                assert after == "draws" if what else after in ("choose", "end")
            elif name == "draws":
                largest, answer = what  # type: ignore[misc]
                assert after == "draw" if answer else after in ("choose", "end")
                # It was told the largest probability, whatever is then drawn.
                assert not answer or then[1] == largest  # type: ignore[index]
        assert unlike > 3
        drawn: list[list[int]] = []
        for name, what in calls:
            if name == "choose":
                ids, choice = what  # type: ignore[misc]
                drawn.append(list(ids[: choice.looked_up]))
            elif name == "draw":
                drawn[-1].append(what[0])  # type: ignore[index]
        assert [list(round_.draft) for round_ in done] == drawn
        assert len({len(round_.draft) for round_ in done}) > 2

    def test_samples_have_the_targets_distribution(self) -> None:
        """S1: three tokens, top_k 4, decisions that differ from draw to draw, a record that learns."""
        prompt = (1, 2, 3, 1, 2)
        expected: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(3):
            longer = {}
            for ids, probability in expected.items():
                target = ScriptedDecoder()
                row = target.decode([*prompt, *ids], 1)[0]
                spread = transform(row, HOT, [])
                for token, chance in zip(spread.ids, spread.probs, strict=True):
                    longer[(*ids, int(token))] = probability * float(chance)
            expected = longer
        assert len(expected) == 64
        record, n_samples = Record(), 3000
        seen: Counter[tuple[int, ...]] = Counter()
        lengths: Counter[int] = Counter()
        kept = rejected = 0
        for seed in range(n_samples):
            policy = Policy(costs({1: 1.0, 2: 1.15, 3: 1.3, 16: 3.0}, 0.15), record, 6)
            output, done = run_auto(policy, seed, likeness=0.8, prompt=prompt, max_tokens=6)
            seen[tuple(output[:3])] += 1
            for round_ in done[:2]:
                lengths[len(round_.draft)] += 1
                kept += round_.n_accepted
                rejected += len(round_.draft) > round_.n_accepted
        assert min(kept, rejected) > n_samples / 10
        assert sum(count > n_samples / 10 for count in lengths.values()) >= 3
        likely = {ids: chance for ids, chance in expected.items() if n_samples * chance >= 5}
        cells = [(seen[ids], n_samples * chance) for ids, chance in likely.items()]
        rare = 1 - sum(likely.values())
        cells.append((n_samples - sum(count for count, _ in cells), n_samples * rare))
        statistic = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
        degrees = len(cells) - 1
        # The 99.9 % point of chi-square, by Wilson and Hilferty's approximation.
        limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
        assert statistic < limit, (statistic, degrees)

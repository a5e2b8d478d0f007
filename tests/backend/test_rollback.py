"""Models with a running state or a sliding window: speculation takes drafts back and changes no answer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
import pytest
from conftest import OpenSession, WriteTiny
from session import Outcome, Session
from test_engine import PENALTIES, same
from tiny_gguf import TinyModel

from app.backend.context import Context
from app.backend.llama import CancelFlag
from app.core.sampling import Draft
from app.core.settings import SamplingSettings
from app.core.tokens import DraftSource
from app.engine.rounds import rounds

MODES = ("draft", "lookup", "auto")
# A state alone; one beside attention layers; two of that kind whose passes leave snapshots.
RUNNING = ("mamba", "jamba", "lfm2", "qwen35")
ALL = (*RUNNING, "gemma3")
PROMPT = [3, 9, 27, 81, 5, 15, 45, 135]
NEAR = 0.03  # the logits' deviation is 3, and the rounding of other batches moves one by 0.013 at most
N_LAYER = {"gemma3": 6}  # the sixth layer is the first that sees beyond its window


def model(architecture: str, likeness: float = 1.0) -> TinyModel:
    return TinyModel(architecture=architecture, likeness=likeness, n_layer=N_LAYER.get(architecture, 2))


@pytest.fixture
def open_pair(tiny: WriteTiny, open_session: OpenSession) -> Callable[..., Session]:
    """``open_pair("mamba", "llama", n_ctx=…)``: a session of such a target and draft."""

    def open_(target: str, draft: str, **settings: object) -> Session:
        settings = {"n_ctx": 512} | settings
        return open_session(tiny(model(target)), tiny(model(draft, 0.995)), **settings)

    return open_


PAIRS = [(architecture, architecture) for architecture in ALL] + [
    pair for other in RUNNING for pair in ((other, "llama"), ("llama", other))
]


class TestLossless:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(("target", "draft"), PAIRS)
    def test_300_tokens(self, open_pair: Callable[..., Session], target: str, draft: str, mode: str) -> None:
        session = open_pair(target, draft)
        for prompt, sampling in ((PROMPT, {}), ("1, 2, 3, 1, 2, 3, 1, 2", PENALTIES)):
            plain = session.ask(prompt, max_tokens=300, **sampling)
            assert len(set(plain.output_ids)) > 20
            accepted = 0
            for n_draft in (1, 4, 12):
                outcome = session.ask(prompt, mode, n_draft=n_draft, ngram_min=1, max_tokens=300, **sampling)
                same(plain, outcome)
                assert outcome.stats.drafted > outcome.stats.accepted
                accepted += outcome.stats.accepted
            if target == draft or mode != "draft":
                assert accepted > 0

    @pytest.mark.parametrize("n_draft", [1, 3, 8, 12, 16])
    @pytest.mark.parametrize(("target", "draft"), PAIRS)
    def test_a_rejection_at_every_position(
        self, open_pair: Callable[..., Session], target: str, draft: str, n_draft: int
    ) -> None:
        """Whatever is taken back, both models' next logits are those of a fresh cache."""
        session = open_pair(target, draft, cache_type="f32")
        assert session.draft_context is not None
        plain = session.ask(PROMPT, max_tokens=300)
        truth = [*PROMPT, *plain.output_ids]
        expected = rows_of(session.draft_context, truth)
        session.forget()
        drafter = Erring(session.draft_context, truth, expected)
        committed = list(PROMPT)
        session.context.extend(PROMPT[:-1], lambda done: None)
        run = list(
            rounds(
                session.context, drafter, committed, sampling=SamplingSettings(), n_draft=n_draft,
                max_tokens=300, rng=np.random.default_rng(0), ends=lambda token: False,
            )
        )  # fmt: skip
        assert committed == truth
        assert {round_.n_accepted for round_ in run[:-1]} == set(range(n_draft + 1))
        session.check_caches(committed)

    @pytest.mark.parametrize("n_batch", [1, 2, 3, 9, 10, 11, 16])
    @pytest.mark.parametrize("architecture", RUNNING)
    def test_small_batches(self, open_pair: Callable[..., Session], architecture: str, n_batch: int) -> None:
        session = open_pair(architecture, architecture, n_batch=n_batch, n_ctx=256)
        plain = session.ask(PROMPT, max_tokens=100)
        for mode in MODES:
            for n_draft in (1, 4, 15):
                same(plain, session.ask(PROMPT, mode, n_draft=n_draft, ngram_min=1, max_tokens=100))

    @pytest.mark.parametrize("architecture", ALL)
    def test_the_context_is_used_to_its_end(
        self, open_pair: Callable[..., Session], architecture: str
    ) -> None:
        session = open_pair(architecture, architecture, n_ctx=256)
        for n_prompt in (200, 250, 255, 256):
            prompt = [number % 250 for number in range(n_prompt)]
            plain = session.ask(prompt, max_tokens=100)
            assert plain.finish_reason == "context"
            for mode in MODES:
                same(plain, session.ask(prompt, mode, n_draft=8, ngram_min=1, max_tokens=100))

    @pytest.mark.parametrize("architecture", ALL)
    def test_rows_of_one_pass_are_those_of_single_passes(
        self, open_pair: Callable[..., Session], architecture: str
    ) -> None:
        context = open_pair(architecture, architecture).context
        ids = [*PROMPT, *range(40, 64)]
        single = rows_of(context, ids)
        for size in (2, 5, 9, 32):
            context.rewind(0)
            for start in range(0, len(ids), size):
                part = ids[start : start + size]
                rows = context.decode(part, len(part))
                assert rows == pytest.approx(single[start : start + size], abs=NEAR)


def rows_of(context: Context, ids: Sequence[int]) -> np.ndarray:
    """The logits after each id, from an empty cache and one id at a time."""
    context.rewind(0)
    return np.stack([context.decode([token], 1)[0].copy() for token in ids])


class Erring:
    """A draft model whose drafts are right but for one id, each round at another place."""

    def __init__(self, decoder: Context, truth: Sequence[int], expected: np.ndarray) -> None:
        self._decoder = decoder
        self._truth = truth
        self._expected = expected
        self._round = 0

    @property
    def seconds(self) -> float:
        return self._decoder.seconds

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        wrong_at = self._round % (n_max + 1)
        self._round += 1
        assert list(committed) == self._truth[: len(committed)]
        unseen = list(committed[len(self._decoder.ids) :])
        self._decoder.extend(unseen[:-1], lambda done: None)
        feed, ids = unseen[-1:], []
        for place in range(n_max):
            row = self._decoder.decode(feed, 1)[0]
            if place <= wrong_at:
                assert row == pytest.approx(self._expected[len(committed) + place - 1], abs=NEAR)
            token = self._truth[len(committed) + place]
            feed = [token if place != wrong_at else (token + 1) % 250]
            ids += feed
        nothing = (None,) * len(ids)
        return Draft(tuple(ids), (DraftSource.MODEL,) * len(ids), nothing, nothing)

    def accept(self, committed: Sequence[int]) -> None:
        self._decoder.rewind(len(committed) - 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", ALL)
def test_whatever_is_decoded_and_taken_back(
    open_pair: Callable[..., Session], architecture: str, seed: int
) -> None:
    """A walk at random: the logits are always those of a fresh cache with the same ids."""
    session = open_pair(architecture, architecture, cache_type="f32")
    context, fresh = session.context, open_pair(architecture, architecture, cache_type="f32").context
    random = np.random.default_rng(seed)
    ids: list[int] = []
    for _ in range(120):
        back = int(random.choice([0, 0, 1, 2, 3, 5, 9, 40, 200]))
        length = max(0, len(ids) - back)
        reachable = context.reachable(length)
        assert reachable <= length
        context.rewind(length if random.random() < 0.7 else reachable)
        del ids[len(context.ids) :]
        assert context.ids == ids
        for _ in range(random.integers(1, 4)):
            new = random.integers(0, 250, random.choice([1, 1, 2, 5, 9, 12, 30])).tolist()
            if len(ids) + len(new) >= 500:
                break
            if random.random() < 0.3:
                context.extend(new, lambda done: None)
            else:
                row = context.decode(new, 1)[0]
                fresh.rewind(0)
                assert row == pytest.approx(fresh.decode([*ids, *new], 1)[0], abs=NEAR)
            ids += new
            assert context.ids == ids


class StopsAfter(CancelFlag):
    """Says stop once llama.cpp has asked so often, wherever in a pass that is; never by default."""

    def __init__(self) -> None:
        super().__init__(ctypes.create_string_buffer(2))
        self.left = 1 << 60
        self.callback = llama_cpp.ggml_abort_callback(self._ask)

    def _ask(self, _: object) -> bool:
        self.left -= 1
        return self.left < 0


class TestCancel:
    @pytest.mark.parametrize("mode", ["plain", *MODES])
    @pytest.mark.parametrize("architecture", ALL)
    def test_anywhere_in_a_round(
        self, open_pair: Callable[..., Session], architecture: str, mode: str
    ) -> None:
        """Stopped inside prefill, a draft's pass and the target's: the next answers are a fresh session's."""
        flag = StopsAfter()
        session = open_pair(architecture, architecture, cancel=flag, n_batch=16)
        ask = {"n_draft": 5, "ngram_min": 1, "max_tokens": 24}
        prompt = [*range(100, 130), *PROMPT]
        plain = session.ask(prompt, **ask)
        session.forget()
        flag.left = 1 << 60
        session.ask(prompt, mode, **ask)
        n_asked = (1 << 60) - flag.left
        lengths = set()
        for part in range(1, 24):
            session.forget()
            flag.left = n_asked * part // 24
            stopped = session.ask(prompt, mode, **ask)
            assert stopped.finish_reason == "cancelled"
            lengths.add(len(stopped.output_ids))
            assert stopped.output_ids == plain.output_ids[: len(stopped.output_ids)]
            flag.left = 1 << 60
            if part % 2:  # some go on with the partial answer, some begin again
                rest = session.ask([*prompt, *plain.output_ids[:10]], mode, n_draft=5, max_tokens=14)
                assert rest.output_ids == plain.output_ids[10:]
            same(plain, session.ask(prompt, mode, **ask))
        assert len(lengths) > 5


class TestTurns:
    def agree(
        self, used: Session, prompt: Sequence[int], fresh: Session, mode: str, max_tokens: int = 40
    ) -> Outcome:
        outcome = used.ask(prompt, mode, n_draft=5, ngram_min=1, max_tokens=max_tokens)
        fresh.forget()
        same(fresh.ask(prompt, max_tokens=max_tokens), outcome)
        return outcome

    @pytest.mark.parametrize("mode", ["plain", *MODES])
    @pytest.mark.parametrize("architecture", ALL)
    def test_a_second_one_an_edited_one_and_the_same_again(
        self, open_pair: Callable[..., Session], architecture: str, mode: str
    ) -> None:
        used, fresh = (open_pair(architecture, architecture, n_ctx=1024, n_batch=64) for _ in range(2))
        question = np.random.default_rng(1).integers(0, 250, 300).tolist()
        first = self.agree(used, question, fresh, mode)
        second = [*question, *first.output_ids, *range(20, 90)]
        after = self.agree(used, second, fresh, mode)
        # All of the first turn is in the cache but what the last round had to decode again.
        assert after.stats.cached_tokens >= len(question) + len(first.output_ids) - 16
        again = self.agree(used, second, fresh, mode)
        assert again.stats.cached_tokens >= len(second) - 65
        edited = self.agree(used, [*second[:-30], 7, 8, 9], fresh, mode)
        assert edited.stats.cached_tokens >= len(question) + len(first.output_ids) - 16
        self.agree(used, [*question[:150], 1, 2, 3, *question[150:]], fresh, mode)
        self.agree(used, [4, 5, 6], fresh, mode)
        self.agree(used, question, fresh, mode)

    @pytest.mark.parametrize("architecture", ALL)
    def test_modes_take_turns(self, open_pair: Callable[..., Session], architecture: str) -> None:
        used, fresh = (open_pair(architecture, architecture, n_ctx=1024) for _ in range(2))
        prompt = list(PROMPT)
        for mode in ("plain", *MODES, *reversed(MODES), "plain", "draft"):
            outcome = self.agree(used, prompt, fresh, mode)
            prompt += [*outcome.output_ids, 11, 12, 14]


class TestCost:
    """What a test can hold of it: how often llama.cpp saves, restores and decodes."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        counts = dict.fromkeys(("save", "restore", "decode", "ids"), 0)
        for name, function in (
            ("save", "llama_state_seq_get_data_ext"),
            ("restore", "llama_state_seq_set_data_ext"),
            ("decode", "llama_decode"),
        ):
            real = getattr(llama_cpp, function)

            def counted(*arguments: object, name: str = name, real: Callable[..., int] = real) -> int:
                counts[name] += 1
                counts["ids"] += arguments[1].n_tokens if name == "decode" else 0
                return real(*arguments)

            monkeypatch.setattr(llama_cpp, function, counted)
        return counts

    @pytest.mark.parametrize("architecture", RUNNING)
    def test_plain_decoding_saves_nothing(
        self, open_pair: Callable[..., Session], architecture: str, calls: dict[str, int]
    ) -> None:
        open_pair(architecture, architecture).ask(PROMPT, max_tokens=200)
        assert calls == {"save": 0, "restore": 0, "decode": 201, "ids": len(PROMPT) + 199}

    def test_snapshots_spare_the_target_checkpoints(
        self, open_pair: Callable[..., Session], calls: dict[str, int]
    ) -> None:
        outcome = open_pair("lfm2", "lfm2").ask(PROMPT, "lookup", n_draft=4, ngram_min=1, max_tokens=200)
        stats = outcome.stats
        assert stats.drafted > stats.accepted > 0
        n_ids = len(PROMPT) - 1 + stats.target_passes + stats.drafted
        assert calls == {"save": 0, "restore": 0, "decode": 1 + stats.target_passes, "ids": n_ids}

    @pytest.mark.parametrize("architecture", ALL)
    def test_tokens_said_to_be_cached_are_not_decoded_again(
        self, open_pair: Callable[..., Session], architecture: str, calls: dict[str, int]
    ) -> None:
        session = open_pair(architecture, architecture, n_batch=64)
        prompt = list(range(200))
        for ids in (prompt, prompt, [*prompt[:150], 7, 8], [*prompt[:170], 9], [5, 6, *prompt]):
            calls["ids"] = 0
            outcome = session.ask(ids, "lookup", ngram_min=1, max_tokens=1)
            assert calls["ids"] == len(ids) - outcome.stats.cached_tokens
        outcome = session.ask(ids, "lookup", ngram_min=1, max_tokens=30)
        assert outcome.stats.cached_tokens > 100

    @pytest.mark.parametrize("architecture", ["mamba", "jamba"])
    def test_few_passes_only_catch_up(
        self, open_pair: Callable[..., Session], architecture: str, calls: dict[str, int]
    ) -> None:
        """What was accepted is decoded again along with the next draft, not in a pass of its own."""
        outcome = open_pair(architecture, architecture).ask(
            PROMPT, "lookup", n_draft=4, ngram_min=1, max_tokens=200
        )
        partial = sum(len(round_.draft) > round_.n_accepted for round_ in outcome.rounds)
        assert partial > 20
        assert (
            0
            < calls["save"]
            <= calls["restore"] + sum(0 < len(round_.draft) == round_.n_accepted for round_ in outcome.rounds)
        )
        assert calls["restore"] == partial
        again = sum(round_.n_again for round_ in outcome.rounds)
        assert calls["ids"] == len(PROMPT) - 1 + len(outcome.rounds) + outcome.stats.drafted + again
        assert calls["decode"] - 1 - outcome.stats.target_passes < partial / 2

    def test_the_time_is_counted(self, open_pair: Callable[..., Session]) -> None:
        context = open_pair("mamba", "mamba").context
        context.decode(PROMPT, 1)
        before = context.seconds
        context.rewind(3)
        assert context.seconds > before

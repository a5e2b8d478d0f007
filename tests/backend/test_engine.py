"""The engine on real files: speculation never changes an answer, whatever the pair and the settings."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import OpenSession, WriteTiny
from session import Outcome, Session, near_tie_gap, user
from tiny_gguf import TinyModel, byte_level, vocabulary_of_file

from app.backend.llama import CancelFlag
from app.core.errors import UsageError
from app.core.sampling import transform
from app.core.settings import ChatMessage, SamplingSettings
from app.core.tokens import DraftSource, TokenKind

PROMPTS = ("the cat in the hat", "1, 2, 3, 1, 2, 3, 1, 2", "\n\n", "a the an in")
PENALTIES = {"repeat_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "repeat_last_n": 16}


def same(plain: Outcome, other: Outcome) -> None:
    """Ids, text and the reason of the end agree, and the figures with the tokens."""
    assert other.prompt_ids == plain.prompt_ids
    assert other.output_ids == plain.output_ids
    assert (other.text, other.finish_reason) == (plain.text, plain.finish_reason)
    check_figures(other)


def check_figures(outcome: Outcome) -> None:
    """N1: the totals are those of the coloured tokens."""
    count = {kind: sum(token.kind is kind for token in outcome.tokens) for kind in TokenKind}
    stats = outcome.stats
    output = [token for token in outcome.tokens if token.kind.is_output]
    assert tuple(token.id for token in output) == outcome.output_ids
    assert "".join(token.text for token in output) == outcome.text
    assert stats.output_tokens == len(output)
    assert stats.accepted == count[TokenKind.ACCEPTED]
    tested = stats.accepted + count[TokenKind.REJECTED]
    assert stats.accepted <= tested <= stats.drafted == tested + count[TokenKind.DISCARDED]
    assert (stats.acceptance_rate is None) == (stats.drafted == 0)
    assert stats.target_passes == len(outcome.rounds)
    for token in outcome.tokens:
        for probability in (token.target_prob, token.draft_prob):
            assert probability is None or 0 <= probability <= 1


class TestLossless:
    @pytest.mark.parametrize("n_batch", [1, 2, 3, 16, 512])
    @pytest.mark.parametrize("likeness", [0.0, 0.995, 1.0], ids=["unrelated", "alike", "itself"])
    def test_a_draft_of_any_length(
        self, tiny: WriteTiny, open_session: OpenSession, likeness: float, n_batch: int
    ) -> None:
        for seed in (0, 1):
            session = open_session(
                tiny(TinyModel(seed)), tiny(TinyModel(seed, likeness)), n_batch=n_batch, n_ctx=256
            )
            for prompt, sampling in zip(PROMPTS, ({}, {}, PENALTIES, PENALTIES), strict=True):
                plain = session.ask(prompt, max_tokens=36, **sampling)
                for k in (1, 2, 3, 4, 5, 6, 7, 8, 31):
                    drafted = session.ask(prompt, "draft", n_draft=k, max_tokens=36, **sampling)
                    same(plain, drafted)
                    assert max(len(round_.draft) for round_ in drafted.rounds) <= min(k, n_batch - 1)
                    if likeness == 1 and n_batch > 1:
                        assert drafted.stats.acceptance_rate == 1
                auto = session.ask(prompt, "auto", max_tokens=36, **sampling)
                same(plain, auto)
                assert (auto.stats.drafted > 0) == (n_batch > 1)

    @pytest.mark.parametrize("k", [1, 3, 8, 31])
    @pytest.mark.parametrize(("n_min", "n_max"), [(1, 1), (1, 4), (2, 3)])
    def test_a_lookup_of_any_length(
        self, open_session: OpenSession, tiny_target: Path, k: int, n_min: int, n_max: int
    ) -> None:
        session = open_session(tiny_target)
        for prompt, sampling in zip(PROMPTS, ({}, {}, PENALTIES, PENALTIES), strict=True):
            plain = session.ask(prompt, max_tokens=64, **sampling)
            found = session.ask(
                prompt, "lookup", n_draft=k, ngram_min=n_min, ngram_max=n_max, max_tokens=64, **sampling
            )
            same(plain, found)
            assert {token.source for token in found.tokens} <= {None, DraftSource.LOOKUP}

    def test_many_prompts_and_long_answers(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path
    ) -> None:
        """L3 on the tiny pair: 20 prompts of 256 tokens, every draft length."""
        session = open_session(tiny_target, tiny_draft, n_ctx=512)
        accepted = 0
        for number in range(20):
            prompt = np.random.default_rng(number).integers(0, 256, 10 + number).tolist()
            plain = session.ask(prompt, max_tokens=256)
            drafted = session.ask(prompt, "draft", n_draft=1 + number % 8, max_tokens=256)
            same(plain, drafted)
            accepted += drafted.stats.accepted
        assert accepted > 1000

    def test_every_looked_up_token_is_verified(self, open_session: OpenSession, tiny_target: Path) -> None:
        """L1: "a a a a" at K=1."""
        session = open_session(tiny_target)
        plain = session.ask("a a a a", max_tokens=40)
        found = session.ask("a a a a", "lookup", n_draft=1, ngram_min=1, ngram_max=4, max_tokens=40)
        same(plain, found)
        assert len(found.rounds[0].draft) == 1
        for round_ in found.rounds:
            assert (
                round_.n_accepted == 0
                or round_.draft[: round_.n_accepted] == round_.output[: round_.n_accepted]
            )

    @pytest.mark.parametrize("rows", [1, 128])
    @pytest.mark.parametrize("who", ["target", "draft"])
    def test_padding_in_both_directions(
        self, tiny: WriteTiny, open_session: OpenSession, who: str, rows: int
    ) -> None:
        """V1: the padding rows have weights like any other, so both models want to say them."""
        words = byte_level()
        wide = words.padded(rows)
        target = TinyModel(vocabulary=wide if who == "target" else words)
        draft = TinyModel(likeness=0.995, vocabulary=wide if who == "draft" else words)
        session = open_session(tiny(target), tiny(draft))
        n_shared = len(words.tokens)
        beyond = 0
        for prompt in PROMPTS:
            plain = session.ask(prompt, max_tokens=64)
            for mode, k in (("draft", 1), ("draft", 4), ("draft", 8), ("auto", 31)):
                drafted = session.ask(prompt, mode, n_draft=k, max_tokens=64)
                same(plain, drafted)
                modelled = [token.id for token in drafted.tokens if token.source is DraftSource.MODEL]
                assert all(token < n_shared for token in modelled)
                assert drafted.stats.drafted > 0
            beyond += sum(token >= n_shared for token in plain.output_ids)
        assert session.draft_context is not None
        assert all(token < n_shared for token in session.draft_context.ids)
        if who == "target" and rows == 128:
            assert beyond > 0

    def test_a_draft_with_a_smaller_context(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path
    ) -> None:
        session = open_session(tiny_target, tiny_draft, draft_n_ctx=64)
        plain = session.ask(PROMPTS[0], max_tokens=120)
        drafted = session.ask(PROMPTS[0], "draft", max_tokens=120)
        same(plain, drafted)
        drafting = [bool(round_.draft) for round_ in drafted.rounds]
        assert drafting[0]
        assert not any(drafting[-40:])
        auto = session.ask(PROMPTS[0], "auto", max_tokens=120)
        same(plain, auto)
        assert DraftSource.MODEL in auto.rounds[0].sources
        assert not any(DraftSource.MODEL in round_.sources for round_ in auto.rounds[-20:])

    def test_ends_inside_accepted_runs(self, open_session: OpenSession, tiny_target: Path) -> None:
        """The target drafts for itself; every token of the answer once ends it."""
        session = open_session(tiny_target, tiny_target)
        whole = session.ask(PROMPTS[0], max_tokens=24)
        for place, end in enumerate(whole.output_ids):
            first = whole.output_ids.index(end)
            outcomes = [
                session.ask(
                    PROMPTS[0], mode, n_draft=6, max_tokens=24, is_end=lambda token, end=end: token == end
                )
                for mode in ("plain", "draft", "lookup", "auto")
            ]
            for outcome in outcomes:
                same(outcomes[0], outcome)
            assert outcomes[0].output_ids == whole.output_ids[: first + 1], place
            assert outcomes[0].finish_reason == "stop"

    def test_stop_strings_inside_accepted_runs(self, open_session: OpenSession, tiny_target: Path) -> None:
        session = open_session(tiny_target, tiny_target)
        whole = session.ask(PROMPTS[0], max_tokens=40)
        stops = [whole.text[place : place + 2] for place in range(0, len(whole.text) - 2, 3)]
        stops = [stop for stop in stops if "\ufffd" not in stop]
        assert len(stops) >= 3
        for stop in stops:
            outcomes = [
                session.ask(PROMPTS[0], mode, n_draft=7, max_tokens=40, stop=[stop])
                for mode in ("plain", "draft", "lookup", "auto")
            ]
            for outcome in outcomes:
                same(outcomes[0], outcome)
            assert outcomes[0].finish_reason == "stop"
            assert outcomes[0].text == whole.text[: whole.text.index(stop)]


class TestContext:
    @pytest.mark.parametrize("n_prompt", range(248, 257))
    def test_the_context_is_used_to_its_end(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, n_prompt: int
    ) -> None:
        """C1: the draft shortens, and the last place is used."""
        session = open_session(tiny_target, tiny_draft, n_ctx=256)
        prompt = [number % 250 for number in range(n_prompt)]
        plain = session.ask(prompt, max_tokens=100)
        assert len(plain.output_ids) == 257 - n_prompt
        assert plain.finish_reason == "context"
        for mode in ("draft", "lookup", "auto"):
            same(plain, session.ask(prompt, mode, n_draft=8, max_tokens=100))

    @pytest.mark.parametrize("n_ctx", [8, 100, 300])
    def test_a_limit_that_llama_cpp_pads(
        self, open_session: OpenSession, tiny_target: Path, n_ctx: int
    ) -> None:
        session = open_session(tiny_target, n_ctx=n_ctx)
        outcome = session.ask([7] * n_ctx, max_tokens=100)
        assert (len(outcome.output_ids), outcome.finish_reason) == (1, "context")
        with pytest.raises(UsageError, match=f"{n_ctx + 1} tokens.* {n_ctx}"):
            session.ask([7] * (n_ctx + 1))

    @pytest.mark.parametrize(
        ("n_prompt", "n_batch"), [(600, 512), (3000, 512), (600, 7), (513, 512), (512, 512)]
    )
    def test_prefill_in_batches(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, n_prompt: int, n_batch: int
    ) -> None:
        """C2."""
        session = open_session(tiny_target, tiny_draft, n_ctx=4096, n_batch=n_batch)
        prompt = np.random.default_rng(1).integers(0, 256, n_prompt).tolist()
        progress: list[tuple[int, int]] = []
        plain = session.ask(
            prompt, max_tokens=16, on_prefill=lambda done, total: progress.append((done, total))
        )
        assert progress[-1] == (n_prompt - 1, n_prompt - 1)
        assert len(progress) == -(-(n_prompt - 1) // n_batch)
        for k in (4, 31):
            same(plain, session.ask(prompt, "draft", n_draft=k, max_tokens=16))


class TestSampling:
    def test_two_token_samples_have_the_targets_distribution(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path
    ) -> None:
        """S1: chi-square against the exact distribution, 2,000 samples of each mode, at 0.1 %."""
        session = open_session(tiny_target, tiny_draft)
        given = SamplingSettings(temperature=1, top_k=4)
        for looked_up in range(250):  # a text whose look-up proposes what the target may say or not
            prompt = [5, looked_up, 251, 252, 5]
            (row,) = session.score([*prompt, 0], len(prompt))
            first = transform(row, given, [])
            if 0.2 < first.prob(looked_up) < 0.8:
                break
        expected = {}
        for token in first.ids:
            row = session.score([*prompt, int(token), 0], len(prompt))[1]
            second = transform(row, given, [])
            for other in second.ids:
                expected[int(token), int(other)] = first.prob(token) * second.prob(other)
        assert len(expected) == 16
        rare = sum(probability for probability in expected.values() if probability < 0.0025)
        likely = {pair: probability for pair, probability in expected.items() if probability >= 0.0025}
        for mode in ("plain", "draft", "lookup", "auto"):
            counts = dict.fromkeys(expected, 0)
            accepted = drafted = 0
            for seed in range(2000):
                outcome = session.ask(
                    prompt, mode, max_tokens=2, temperature=1, top_k=4, seed=seed, ngram_min=1, n_draft=1
                )
                counts[outcome.output_ids] += 1  # type: ignore[index]
                accepted += outcome.stats.accepted
                drafted += outcome.stats.drafted
            if mode != "plain":
                assert 0 < accepted < drafted
                assert drafted == 2000 or (mode == "auto" and drafted > 1000)
            cells = [(counts[pair], 2000 * probability) for pair, probability in likely.items()]
            if rare:
                cells.append((2000 - sum(seen for seen, _ in cells), 2000 * rare))
            statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
            # 37.70 is the 99.9 % point at 15 degrees of freedom; fewer cells stay below it all the more.
            assert statistic < 37.70, (mode, statistic)

    @pytest.mark.parametrize("temperature", [0, 0.01])
    def test_cold_requests_draft_too(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, temperature: float
    ) -> None:
        """S2."""
        session = open_session(tiny_target, tiny_draft)
        outcome = session.ask(PROMPTS[0], "draft", max_tokens=40, temperature=temperature)
        check_figures(outcome)
        assert outcome.stats.rounds_with_draft >= outcome.stats.target_passes - 1
        assert outcome.stats.accepted > 0

    @pytest.mark.parametrize("mode", ["plain", "draft", "lookup"])
    def test_seeds(self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, mode: str) -> None:
        """S3: the same seed the same answer, also after a cancelled run."""
        flag = ctypes.create_string_buffer(2)
        session = open_session(tiny_target, tiny_draft, cancel=CancelFlag(flag))

        def ask(seed: int) -> tuple[int, ...]:
            outcome = session.ask(PROMPTS[0], mode, max_tokens=32, temperature=1, top_k=0, seed=seed)
            check_figures(outcome)
            return outcome.output_ids

        first = ask(42)
        assert ask(42) == first
        assert ask(43) != first
        flag[0] = b"\1"
        assert session.ask([9, 8, 7], mode).finish_reason == "cancelled"
        flag[0] = b"\0"
        assert ask(42) == first

    def test_p_min_shortens_drafts_and_changes_no_text(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path
    ) -> None:
        """P2."""
        session = open_session(tiny_target, tiny_draft)
        plain = session.ask(PROMPTS[0], max_tokens=120)
        lengths = []
        for p_min in (0.0, 0.75):
            drafted = session.ask(PROMPTS[0], "draft", n_draft=16, p_min=p_min, max_tokens=120)
            same(plain, drafted)
            lengths.append(drafted.stats.drafted / drafted.stats.target_passes)
        assert lengths[1] < lengths[0] / 2

    @pytest.mark.parametrize("mode", ["draft", "lookup", "auto"])
    def test_probabilities_are_untransformed(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, mode: str
    ) -> None:
        session = open_session(tiny_target, tiny_draft)
        outcome = session.ask(PROMPTS[1], mode, max_tokens=12, temperature=0.5, top_k=3, **PENALTIES)
        rows = session.score([*outcome.prompt_ids, *outcome.output_ids], len(outcome.prompt_ids))
        output = [token for token in outcome.tokens if token.kind.is_output]
        for row, token in zip(rows, output, strict=True):
            exact = np.exp(row.astype(np.float64) - row.max())
            assert token.target_prob == pytest.approx(exact[token.id] / exact.sum(), rel=1e-3)
            assert (token.draft_prob is not None) == (token.source is DraftSource.MODEL)


class TestCaches:
    """K1: whatever came before, the next answer is a fresh session's."""

    @pytest.fixture
    def sessions(self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path) -> list[Session]:
        self.flag = ctypes.create_string_buffer(2)
        used = open_session(tiny_target, tiny_draft, n_ctx=256, n_batch=32, cancel=CancelFlag(self.flag))
        return [used, open_session(tiny_target, tiny_draft, n_ctx=256, n_batch=32)]

    def agree(self, sessions: list[Session], conversation: object, **settings: object) -> Outcome:
        """Both sessions answer alike in every mode; the second has forgotten all before each answer."""
        used, fresh = sessions
        for mode in ("draft", "auto", "lookup", "auto", "plain"):
            outcome = used.ask(conversation, mode, **settings)  # type: ignore[arg-type]
            fresh.forget()
            same(fresh.ask(conversation, mode, **settings), outcome)  # type: ignore[arg-type]
        return outcome

    def test_the_same_prompt_again_says_that_it_was_cached(self, sessions: list[Session]) -> None:
        """N2."""
        outcomes = [sessions[0].ask(user("the cat"), "draft") for _ in range(3)]
        n_prompt = len(outcomes[0].prompt_ids)
        assert [outcome.stats.cached_tokens for outcome in outcomes] == [0, n_prompt - 1, n_prompt - 1]
        assert {outcome.output_ids for outcome in outcomes} == {outcomes[0].output_ids}

    def test_a_conversation_goes_on_where_it_stood(self, sessions: list[Session]) -> None:
        first = self.agree(sessions, user("the cat"), max_tokens=8)
        used = sessions[0]
        ids = [*first.prompt_ids, *first.output_ids, *used.format.raw_ids("<|im_end|>\nand the hat")]
        second = used.ask(ids, "draft")
        assert second.stats.cached_tokens == len(first.prompt_ids) + len(first.output_ids) - 1
        self.agree(sessions, ids)

    def test_an_edited_earlier_turn(self, sessions: list[Session]) -> None:
        turns = [ChatMessage("user", "one"), ChatMessage("assistant", "1"), ChatMessage("user", "two")]
        self.agree(sessions, turns)
        self.agree(sessions, [ChatMessage("user", "once"), *turns[1:]])
        self.agree(sessions, turns[:1])

    def test_overflow(self, sessions: list[Session]) -> None:
        turns: list[ChatMessage] = []
        for number in range(6):
            turns.append(ChatMessage("user", f"the question {number} " * 3))
            outcome = self.agree(sessions, turns, max_tokens=24)
            turns.append(ChatMessage("assistant", "the answer " * 3))
        assert outcome.turns_left_out > 0
        self.agree(sessions, [7] * 256)  # to the very end of the context
        self.agree(sessions, turns[:1])

    @pytest.mark.parametrize("mode", ["plain", "draft", "auto"])
    def test_cancelled_between_batches_of_a_long_prefill(self, sessions: list[Session], mode: str) -> None:
        used = sessions[0]
        prompt = np.random.default_rng(5).integers(0, 256, 200).tolist()

        def stop_at(done: int, total: int) -> None:
            if done >= 64:
                self.flag[0] = b"\1"

        cancelled = used.ask(prompt, mode, on_prefill=stop_at)
        assert (cancelled.finish_reason, cancelled.output_ids) == ("cancelled", ())
        assert used.context.ids == prompt[:64]
        self.flag[0] = b"\0"
        self.agree(sessions, prompt)

    def test_cancelled_inside_a_batch(self, starter_model: Path, open_session: OpenSession) -> None:
        """A prefill of 2,000 tokens in one batch, stopped by another thread while llama.cpp computes."""
        flag = ctypes.create_string_buffer(2)
        session = open_session(
            starter_model, starter_model, n_ctx=2304, n_batch=2048, cancel=CancelFlag(flag)
        )
        prompt = [1000 + number % 3000 for number in range(2000)]
        timer = threading.Timer(0.2, lambda: flag.__setitem__(0, b"\1"))
        timer.start()
        cancelled = session.ask(prompt, "draft")
        timer.join()
        assert (cancelled.finish_reason, cancelled.output_ids) == ("cancelled", ())
        assert session.context.ids == []
        assert session.draft_context is not None
        assert session.draft_context.ids == []
        flag[0] = b"\0"
        after = session.ask(prompt[:50], "draft", max_tokens=12)
        session.forget()
        fresh = session.ask(prompt[:50], "draft", max_tokens=12)
        same(fresh, after)
        same(fresh, session.ask(prompt[:50], max_tokens=12))

    @pytest.mark.parametrize("cache_type", ["f32", "q8_0"])
    def test_other_cache_types(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path, cache_type: str
    ) -> None:
        session = open_session(tiny_target, tiny_draft, cache_type=cache_type)
        outcome = session.ask(PROMPTS[0], "draft", max_tokens=40)
        check_figures(outcome)
        assert outcome.stats.accepted > 0


POEM = (
    "The river runs beneath the bridge and carries leaves of gold; the miller counts his sacks of grain "
    "before the night grows cold. A lantern swings above the door, a dog sleeps by the fire, and far "
    "beyond the orchard wall the bells ring from the spire."
)


NOUNS = ("miller", "lantern", "river", "orchard", "kettle", "ladder", "stable", "violin")
VERBS = ("counts", "paints", "carries", "mends", "hides", "sells")


class TestStarter:
    """SmolLM2 agrees exactly with itself, however many rows a pass has."""

    @pytest.fixture(scope="class")
    @staticmethod
    def session(starter_model: Path) -> Iterator[Session]:
        session = Session(starter_model, starter_model, n_ctx=2048)
        yield session
        session.close()

    @pytest.mark.parametrize(
        "question", ["Hi", "Write a haiku about rain.", "Fix the spelling: 'the wether iz nise todday'"]
    )
    def test_every_draft_length(self, session: Session, question: str) -> None:
        """L3, with lookup and as its own draft."""
        plain = session.ask(user(question), max_tokens=28)
        for k in range(1, 9):
            same(plain, session.ask(user(question), "lookup", n_draft=k, ngram_min=1, max_tokens=28))
        for k in (1, 4, 7):
            own = session.ask(user(question), "draft", n_draft=k, max_tokens=28)
            same(plain, own)
            assert own.stats.acceptance_rate == 1
        auto = session.ask(user(question), "auto", max_tokens=28)
        same(plain, auto)
        assert auto.stats.target_passes < 28 / 2

    def test_auto_without_a_draft_model(self, starter_model: Path, open_session: OpenSession) -> None:
        session = open_session(starter_model, n_ctx=1024)
        for prompt in (f"{POEM}\n\n{POEM}\n\nThe river runs", "1 2 3 4 1 2 3 4 1 2"):
            plain = session.ask(prompt, max_tokens=40)
            auto = session.ask(prompt, "auto", max_tokens=40)
            same(plain, auto)
            assert {token.source for token in auto.tokens} == {None, DraftSource.LOOKUP}
            assert auto.stats.target_passes < 20

    def test_an_answer_ends_with_its_turn(self, session: Session) -> None:
        """V4."""
        outcomes = [session.ask(user("Hi"), mode, max_tokens=120) for mode in ("plain", "draft", "auto")]
        for outcome in outcomes[1:]:
            same(outcomes[0], outcome)
        assert outcomes[0].finish_reason == "stop"
        assert session.model.is_end(outcomes[0].output_ids[-1])
        assert outcomes[0].tokens[-1].text == ""
        assert "<|im_end|>" not in outcomes[0].text

    def test_lookup_on_a_long_summary(self, session: Session) -> None:
        """L4: a prompt of some 1,300 tokens, K in 0, 1, 3, 10."""
        text = " ".join(f"{number}. {POEM}" for number in range(20))
        question = user(f"Summarise this passage:\n{text}")
        plain = session.ask(question, max_tokens=24)
        assert 1200 < len(plain.prompt_ids) < 1500
        for k in (0, 1, 3, 10):
            found = session.ask(question, "lookup", n_draft=k, max_tokens=24)
            same(plain, found)
            assert found.stats.cached_tokens == len(plain.prompt_ids) - 1
            assert (found.stats.drafted > 0) == (k > 0)

    def test_copies_are_looked_up_and_a_random_draft_is_not_believed(
        self, session: Session, starter_model: Path, tiny: WriteTiny, open_session: OpenSession
    ) -> None:
        """N3: the third copy of a text, drafted by lookup and by noise."""
        prompt = f"{POEM}\n\n{POEM}\n\nThe river runs"
        plain = session.ask(prompt, max_tokens=40)
        copied = session.ask(prompt, "lookup", n_draft=8, max_tokens=40)
        same(plain, copied)
        assert (copied.stats.acceptance_rate or 0) > 0.8
        noise = tiny(TinyModel(5, vocabulary=vocabulary_of_file(starter_model), n_embd=32, n_layer=1))
        guessed = open_session(starter_model, noise, n_ctx=512).ask(prompt, "draft", max_tokens=24)
        assert guessed.output_ids == plain.output_ids[:24]
        assert guessed.stats.drafted > 80
        assert (guessed.stats.acceptance_rate or 0) < 0.05

    def test_a_copy_edit_with_a_misleading_beginning(self, session: Session) -> None:
        """P3: 2,000 characters whose first words also stand before them, going on another way."""
        choose = random.Random(4).choice
        sentences = [
            f"The {choose(NOUNS)} by the {choose(NOUNS)} {choose(VERBS)} {number} {choose(NOUNS)}s."
            for number in range(20, 64)
        ]
        text = " ".join(sentences)
        assert 1700 < len(text) < 2300
        beginning = " ".join(sentences[:3])
        prompt = f"{beginning[:-4]} and so on.\n\n{text}\n\n{text}\n\n{beginning}"
        plain = session.ask(prompt, max_tokens=48)
        copied = session.ask(prompt, "lookup", n_draft=8, max_tokens=48)
        same(plain, copied)
        assert (copied.stats.tokens_per_pass or 0) > 1.5


class TestCoderPair:
    """At Q4_K_M a batch of rows rounds differently: a difference must be a proven near-tie."""

    @pytest.fixture(scope="class")
    @staticmethod
    def session(coder_target: Path, coder_draft: Path) -> Iterator[Session]:
        session = Session(coder_target, coder_draft, n_ctx=512)
        yield session
        session.close()

    def test_near_ties_and_nothing_worse(self, session: Session) -> None:
        question = user("Write a Python function that returns the n-th Fibonacci number. Only code.")
        plain = session.ask(question, max_tokens=40)
        drafted = session.ask(question, "draft", n_draft=4, max_tokens=40)
        check_figures(drafted)
        assert near_tie_gap(session, plain, drafted) <= 0.5
        assert (drafted.stats.mean_acceptance_length or 0) > 2

    def test_a_random_draft_changes_nothing(
        self, session: Session, coder_target: Path, tiny: WriteTiny, open_session: OpenSession
    ) -> None:
        """L2: the right vocabulary and nothing to say."""
        noise = tiny(TinyModel(6, vocabulary=vocabulary_of_file(coder_target), n_embd=32, n_layer=1))
        question = user("What is a list comprehension?")
        plain = session.ask(question, max_tokens=12)
        pair = open_session(coder_target, noise, n_ctx=256)
        drafted = pair.ask(question, "draft", max_tokens=12)
        check_figures(drafted)
        assert drafted.stats.drafted > 30
        assert drafted.stats.accepted <= 1
        assert near_tie_gap(session, plain, drafted) <= 0.5


def test_the_near_tie_rule_refuses_what_is_none(open_session: OpenSession, tiny_target: Path) -> None:
    """The helper that the pair is judged by, on ids that were tampered with."""
    session = open_session(tiny_target)
    plain = session.ask(PROMPTS[0], max_tokens=10)
    assert near_tie_gap(session, plain, plain) == 0
    row = session.score([*plain.prompt_ids, *plain.output_ids], len(plain.prompt_ids))[4]
    order = np.argsort(-row)

    def tampered(token: int) -> Outcome:
        ids = (*plain.output_ids[:4], token, *plain.output_ids[5:])
        return Outcome(plain.prompt_ids, ids, "", "length", (), (), plain.stats, 0)

    assert near_tie_gap(session, plain, tampered(int(order[1]))) == pytest.approx(
        row[order[0]] - row[order[1]]
    )
    with pytest.raises(AssertionError):
        near_tie_gap(session, plain, tampered(int(order[2])))


def test_rows_of_one_pass_are_those_of_single_passes(open_session: OpenSession, tiny_target: Path) -> None:
    """What losslessness on tiny models rests on."""
    session = open_session(tiny_target)
    ids = list(range(10, 30))
    single = [session.context.decode([token], 1)[0].copy() for token in ids]
    for size in (2, 5, 9, 20):
        session.forget()
        for start in range(0, 20, size):
            part = ids[start : start + size]
            rows = session.context.decode(part, len(part))
            assert [int(row.argmax()) for row in rows] == [
                int(row.argmax()) for row in single[start : start + len(part)]
            ]
            assert rows == pytest.approx(np.stack(single[start : start + len(part)]), abs=1e-3)
    assert len({int(row.argmax()) for row in single}) > 5

"""The acceptance rule case by case, and the transforms against plain reference implementations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from app.core.sampling import Distribution, Draft, Verdict, choose, penalise, softmax_prob, transform, verify
from app.core.settings import SamplingSettings
from app.core.tokens import DraftSource, TokenKind

GREEDY = SamplingSettings()
N_VOCAB = 8


def row(**logits: float) -> np.ndarray:
    """A row of zeros but for the named ids: ``row(t3=5.0)``."""
    values = np.zeros(N_VOCAB, np.float32)
    for name, logit in logits.items():
        values[int(name[1:])] = logit
    return values


def peaks(*tokens: int) -> np.ndarray:
    """Rows whose largest logits are at ``tokens``."""
    return np.stack([row(**{f"t{token}": 5.0}) for token in tokens])


def looked_up(*ids: int) -> Draft:
    nothing = (None,) * len(ids)
    return Draft(ids, (DraftSource.LOOKUP,) * len(ids), nothing, nothing)


def drawn(ids: Sequence[int], distributions: Sequence[Distribution]) -> Draft:
    probs = tuple(distribution.prob(token) for token, distribution in zip(ids, distributions, strict=True))
    return Draft(tuple(ids), (DraftSource.MODEL,) * len(ids), probs, tuple(distributions))


def check(draft: Draft, logits: np.ndarray, settings: SamplingSettings = GREEDY, **more: object) -> Verdict:
    rng = more.get("rng") or np.random.default_rng(0)
    return verify(draft, logits, settings, more.get("history", [0]), rng)  # type: ignore[arg-type]


class TestGreedy:
    def test_perfect_match(self) -> None:
        verdict = check(looked_up(1, 2, 3), peaks(1, 2, 3, 4))
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (3, 4, TokenKind.BONUS)

    def test_early_mismatch(self) -> None:
        verdict = check(looked_up(1, 7, 3), peaks(1, 2, 3, 4))
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (1, 2, TokenKind.RECOVERED)

    def test_mismatch_at_the_first(self) -> None:
        verdict = check(looked_up(7, 2), peaks(1, 2, 3))
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (0, 1, TokenKind.RECOVERED)

    def test_mismatch_at_the_last(self) -> None:
        verdict = check(looked_up(1, 2, 7), peaks(1, 2, 3, 4))
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (2, 3, TokenKind.RECOVERED)

    def test_empty_draft(self) -> None:
        verdict = check(Draft(), peaks(6))
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (0, 6, TokenKind.TARGET)

    def test_the_lower_id_wins_a_tie(self) -> None:
        tie = row(t2=3.0, t5=3.0)[None]
        assert check(Draft(), tie).next_token == 2
        assert check(looked_up(5), np.vstack([tie, tie])).next_token == 2

    def test_probabilities_are_the_targets_own_one_a_tested_row(self) -> None:
        logits = peaks(1, 2, 3, 4)
        softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        full = check(looked_up(1, 2, 3), logits)
        assert full.target_probs == pytest.approx(
            [softmax[0, 1], softmax[1, 2], softmax[2, 3], softmax[3, 4]]
        )
        early = check(looked_up(1, 7, 3), logits)
        assert early.target_probs == pytest.approx([softmax[0, 1], softmax[1, 7], softmax[1, 2]])

    def test_temperature_near_zero_chooses_as_zero_does(self) -> None:
        cold = SamplingSettings(temperature=0.01)
        sharp = Distribution(np.array([1]), np.array([1.0]))
        verdict = check(drawn([1, 1], [sharp, sharp]), peaks(1, 2, 3), cold)
        assert (verdict.n_accepted, verdict.next_token, verdict.next_kind) == (1, 2, TokenKind.RECOVERED)


class TestPenalties:
    STRONG = SamplingSettings(repeat_penalty=10.0)

    def test_no_penalty_gives_the_row_itself(self) -> None:
        logits = row(t1=2.0)
        assert penalise(logits, GREEDY, [1, 1]) is logits

    def test_the_row_is_never_written(self) -> None:
        logits = row(t1=2.0)
        logits.flags.writeable = False
        assert penalise(logits, self.STRONG, [1])[1] == pytest.approx(0.2)

    @given(
        logits=npst.arrays(np.float32, 12, elements=st.floats(-30, 30, width=32)),
        history=st.lists(st.integers(0, 15), max_size=30),
        repeat=st.floats(0.5, 3),
        presence=st.floats(-2, 2),
        frequency=st.floats(-2, 2),
        last_n=st.integers(-1, 20),
    )
    def test_against_the_definition(
        self,
        logits: np.ndarray,
        history: list[int],
        repeat: float,
        presence: float,
        frequency: float,
        last_n: int,
    ) -> None:
        given_ = SamplingSettings(
            repeat_penalty=repeat,
            presence_penalty=presence,
            frequency_penalty=frequency,
            repeat_last_n=last_n,
        )
        window = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
        expected = logits.astype(np.float64)
        for token in set(window) & set(range(len(logits))):
            value = expected[token]
            value = value / repeat if value > 0 else value * repeat
            expected[token] = value - window.count(token) * frequency - presence
        assert penalise(logits, given_, history) == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_they_count_the_prompt_the_output_and_the_draft_before_each_row(self) -> None:
        # Token 1 wins every row until it is penalised; then 2 does, and then 3.
        rows = np.stack([row(t1=5.0, t2=4.0, t3=3.0)] * 3)
        verdict = check(looked_up(1, 2), rows, self.STRONG, history=[0])
        assert (verdict.n_accepted, verdict.next_token) == (2, 3)
        assert check(looked_up(1, 1), rows, self.STRONG, history=[0]).next_token == 2
        assert check(looked_up(1), rows[:2], self.STRONG, history=[1]).n_accepted == 0

    def test_nothing_of_a_rejected_draft_survives(self) -> None:
        rows = np.stack([row(t1=5.0, t2=4.0), row(t1=5.0, t2=4.0)])
        history = [0]
        first = check(looked_up(2), rows, self.STRONG, history=history)
        assert (first.n_accepted, first.next_token) == (0, 1)
        assert history == [0]
        # 2 was only rejected, so it is not penalised now; 1 is part of the output and is.
        assert check(Draft(), rows[:1], self.STRONG, history=[0, 1]).next_token == 2

    def test_the_window_slides_over_the_draft(self) -> None:
        narrow = SamplingSettings(repeat_penalty=10.0, repeat_last_n=1)
        rows = np.stack([row(t1=5.0, t2=4.0, t3=3.0)] * 3)
        verdict = check(looked_up(2, 1), rows, narrow, history=[1])
        assert (verdict.n_accepted, verdict.next_token) == (2, 2)

    @pytest.mark.parametrize("last_n", [-1, 0, 1, 3, 64])
    def test_a_window_of_any_size_gives_what_plain_decoding_gives(self, last_n: int) -> None:
        rng = np.random.default_rng(3)
        tables = {token: rng.normal(size=N_VOCAB).astype(np.float32) for token in range(N_VOCAB)}
        given_ = SamplingSettings(repeat_penalty=1.7, frequency_penalty=0.3, repeat_last_n=last_n)
        plain = [1, 2]
        for _ in range(20):
            plain.append(check(Draft(), tables[plain[-1]][None], given_, history=plain).next_token)
        for k in (1, 2, 5):
            ids = [1, 2]
            while len(ids) < len(plain):
                draft = [*plain[len(ids) : len(ids) + k - 1], 7][:k]
                rows = np.stack([tables[token] for token in (ids[-1], *draft)])
                verdict = check(looked_up(*draft), rows, given_, history=ids)
                ids += [*draft[: verdict.n_accepted], verdict.next_token]
            assert ids[: len(plain)] == plain


def reference_transform(logits: np.ndarray, given_: SamplingSettings) -> np.ndarray:
    """Top-k, top-p, min-p, temperature, each in the plainest way; shape (vocabulary,)."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if given_.top_k:
        order = order[: given_.top_k]
    weights = [math.exp(float(logits[token]) - float(logits[order[0]])) for token in order]
    if given_.top_p < 1:
        total, mass, kept = sum(weights), 0.0, 0
        while mass < given_.top_p * total and kept < len(order):
            mass += weights[kept]
            kept += 1
        order, weights = order[:kept], weights[:kept]
    order = [token for token, weight in zip(order, weights, strict=True) if weight >= given_.min_p]
    probs = np.zeros(len(logits))
    for token in order:
        probs[token] = math.exp((float(logits[token]) - float(logits[order[0]])) / given_.temperature)
    return probs / probs.sum()


def dense(distribution: Distribution, n_vocab: int) -> np.ndarray:
    probs = np.zeros(n_vocab)
    probs[distribution.ids] = distribution.probs
    return probs


class TestTransform:
    # Logits a quarter apart: nothing lies so near to a threshold that rounding would decide.
    LOGITS = npst.arrays(np.float32, st.integers(1, 300), elements=st.integers(-80, 80).map(lambda n: n / 4))

    @given(
        logits=LOGITS,
        top_k=st.integers(0, 310),
        top_p=st.sampled_from([0.1003, 0.5003, 0.9003, 0.9903, 1.0]),
        min_p=st.sampled_from([0.0, 0.0503, 0.3003, 0.9003]),
        temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    )
    @settings(max_examples=300)
    def test_against_the_reference(
        self, logits: np.ndarray, top_k: int, top_p: float, min_p: float, temperature: float
    ) -> None:
        given_ = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        distribution = transform(logits, given_, [])
        assert list(distribution.ids) == sorted(set(distribution.ids))
        expected = reference_transform(logits, given_)
        found = dense(distribution, len(logits))
        if top_p < 1:
            # Equal logits around the cut of top-p: the last of them may fall to either side by rounding.
            assert abs((found > 0).sum() - (expected > 0).sum()) <= 1
        if (found > 0).sum() == (expected > 0).sum():
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)

    def test_a_tie_at_the_cut_of_top_k_keeps_the_lower_ids(self) -> None:
        logits = np.zeros(1000, np.float32)
        logits[500] = 1.0
        distribution = transform(logits, SamplingSettings(temperature=1, top_k=4), [])
        assert list(distribution.ids) == [0, 1, 2, 500]

    def test_a_flat_row_larger_than_the_first_nucleus_guess(self) -> None:
        logits = np.zeros(5000, np.float32)
        distribution = transform(logits, SamplingSettings(temperature=1, top_k=0, top_p=0.5), [])
        assert list(distribution.ids) == list(range(2500))

    def test_candidates_far_below_the_largest_are_still_found(self) -> None:
        logits = np.array([0.0, -1e4, -2e4, -3e4, -np.inf], np.float32)
        distribution = transform(logits, SamplingSettings(temperature=1, top_k=4), [])
        assert list(distribution.ids) == [0, 1, 2, 3]
        assert transform(logits, SamplingSettings(temperature=1, top_k=5), []).prob(4) == 0

    def test_top_k_1_is_the_largest(self) -> None:
        rng = np.random.default_rng(1)
        logits = rng.normal(size=100).astype(np.float32)
        one = SamplingSettings(temperature=5, top_k=1)
        assert {choose(logits, one, [], rng)[0] for _ in range(20)} == {int(logits.argmax())}

    def test_penalties_come_before_the_cuts(self) -> None:
        logits = row(t1=5.0, t2=4.0)
        given_ = SamplingSettings(temperature=1, top_k=1, repeat_penalty=10)
        assert list(transform(logits, given_, [1]).ids) == [2]

    @given(npst.arrays(np.float32, st.integers(1, 50), elements=st.floats(-50, 50, width=32)), st.data())
    def test_softmax_of_one_token(self, logits: np.ndarray, data: st.DataObject) -> None:
        token = data.draw(st.integers(0, len(logits) - 1))
        exact = np.exp(logits.astype(np.float64) - logits.max())
        assert softmax_prob(logits, token) == pytest.approx(exact[token] / exact.sum(), rel=1e-4)


class TestDraw:
    def test_one_number_of_the_generator_a_draw(self) -> None:
        distribution = Distribution(np.array([3, 5]), np.array([0.25, 0.75]))
        used, counted = np.random.default_rng(7), np.random.default_rng(7)
        ids = [distribution.draw(used) for _ in range(50)]
        assert ids == [3 if counted.random() < 0.25 else 5 for _ in range(50)]
        assert used.random() == counted.random()

    def test_an_id_without_probability_is_never_drawn(self) -> None:
        distribution = Distribution(np.array([1, 2, 3]), np.array([0.0, 1.0, 0.0]))
        rng = np.random.default_rng(0)
        assert {distribution.draw(rng) for _ in range(200)} == {2}
        assert (distribution.prob(2), distribution.prob(1), distribution.prob(9)) == (1, 0, 0)


class FixedRandom:
    """A generator whose numbers are given."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


SAMPLED = SamplingSettings(temperature=1, top_k=0)


class TestSampled:
    def test_kept_below_the_ratio_rejected_at_it(self) -> None:
        target = np.log(np.array([[0.2, 0.8], [0.5, 0.5]], np.float32))
        draft = drawn([0], [Distribution(np.array([0, 1]), np.array([0.4, 0.6]))])
        kept = check(draft, target, SAMPLED, rng=FixedRandom(0.499, 0.0))
        assert (kept.n_accepted, kept.next_kind) == (1, TokenKind.BONUS)
        rejected = check(draft, target, SAMPLED, rng=FixedRandom(0.501, 0.0))
        assert (rejected.n_accepted, rejected.next_token) == (0, 1)  # all of max(0, target - draft) is on 1

    def test_a_certain_token_is_always_kept(self) -> None:
        target = np.stack([row(t3=1000.0)] * 2)
        assert check(looked_up(3), target, SAMPLED, rng=FixedRandom(1 - 2**-53, 0.0)).n_accepted == 1

    def test_a_token_that_the_target_never_says_is_always_rejected(self) -> None:
        target = np.stack([row(t3=1000.0)] * 2)
        verdict = check(looked_up(4), target, SAMPLED, rng=FixedRandom(0.0, 0.5))
        assert (verdict.n_accepted, verdict.next_token) == (0, 3)

    def test_seeded(self) -> None:
        rng = np.random.default_rng(5)
        logits = rng.normal(size=(4, N_VOCAB)).astype(np.float32)
        distributions = [transform(logits[i] * 0.5, SAMPLED, []) for i in range(3)]
        draft = drawn([d.draw(rng) for d in distributions], distributions)
        outcomes = [
            [check(draft, logits, SAMPLED, rng=np.random.default_rng(seed)) for seed in range(20)]
            for _ in range(2)
        ]
        assert outcomes[0] == outcomes[1]
        assert len({outcome.next_token for outcome in outcomes[0]}) > 1

    @pytest.mark.parametrize("source", ["model", "lookup"])
    @pytest.mark.parametrize(
        "given_",
        [
            SAMPLED,
            SamplingSettings(temperature=0.7, top_k=3),
            SamplingSettings(temperature=1.5, top_k=0, top_p=0.8, repeat_penalty=1.5, frequency_penalty=0.4),
            SamplingSettings(temperature=1, top_k=0, min_p=0.2),
        ],
        ids=["plain softmax", "top_k", "top_p and penalties", "min_p"],
    )
    def test_two_tokens_are_distributed_as_the_targets(
        self, source: str, given_: SamplingSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Exactly: the probability of each outcome is added up over every draft and every decision."""
        drawn_from: list[Distribution] = []
        monkeypatch.setattr(
            Distribution, "draw", lambda self, rng: drawn_from.append(self) or int(self.ids[0])
        )
        n = 4
        rng = np.random.default_rng(11)
        target = {ids: rng.normal(size=n).astype(np.float32) * 1.5 for ids in contexts(n, 2)}
        drafter = {ids: rng.normal(size=n).astype(np.float32) * 1.5 for ids in contexts(n, 2)}
        start = (1,)

        def probs(logits: np.ndarray, before: tuple[int, ...]) -> np.ndarray:
            return dense(transform(logits, given_, [*start, *before]), n)

        expected = np.zeros((n, n))
        for first, second in itertools.product(range(n), repeat=2):
            expected[first, second] = probs(target[()], ())[first] * probs(target[first,], (first,))[second]

        found = np.zeros((n, n))
        for draft_ids in itertools.product(range(n), repeat=2):
            if source == "lookup":
                # A text that holds 2, 3 proposes just that, whatever the target says.
                if draft_ids != (2, 3):
                    continue
                weight, distributions = 1.0, None
            else:
                first, second = draft_ids
                distributions = [
                    transform(drafter[()], given_, start),
                    transform(drafter[first,], given_, [*start, first]),
                ]
                weight = distributions[0].prob(first) * distributions[1].prob(second)
                if weight == 0:
                    continue
            draft = drawn(draft_ids, distributions) if distributions else looked_up(*draft_ids)
            rows = np.stack([target[()], target[draft_ids[0],], target[draft_ids]])
            for kept, then, probability in round_outcomes(draft, rows, given_, start, drawn_from):
                ends = dense(then, n) * weight * probability
                if len(kept) == 0:  # the next round decodes the second token plainly
                    for first in range(n):
                        found[first] += ends[first] * probs(target[first,], (first,))
                elif len(kept) == 1:
                    found[kept[0]] += ends
                else:
                    found[kept] += weight * probability
        assert found == pytest.approx(expected, abs=1e-9)
        assert found.sum() == pytest.approx(1)

    def test_the_frequencies_are_the_targets(self) -> None:
        """The drawing itself: a chi-square test at 0.1 % over 20,000 rounds of one proposed token."""
        rng = np.random.default_rng(2)
        logits = rng.normal(size=(2, 6)).astype(np.float32)
        target, proposal = transform(logits[0], SAMPLED, []), transform(logits[1], SAMPLED, [])
        counts, rounds = np.zeros(6), 20_000
        for _ in range(rounds):
            draft = drawn([proposal.draw(rng)], [proposal])
            verdict = verify(draft, logits[[0, 0]], SAMPLED, [0], rng)
            counts[draft.ids[0] if verdict.n_accepted else verdict.next_token] += 1
        expected = dense(target, 6) * rounds
        assert ((counts - expected) ** 2 / expected).sum() < 20.52  # 5 degrees of freedom


def contexts(n: int, depth: int) -> list[tuple[int, ...]]:
    return [ids for length in range(depth + 1) for ids in itertools.product(range(n), repeat=length)]


def round_outcomes(
    draft: Draft,
    rows: np.ndarray,
    given_: SamplingSettings,
    start: tuple[int, ...],
    drawn_from: list[Distribution],
) -> Iterator[tuple[tuple[int, ...], Distribution, float]]:
    """Every end of one round, through ``verify``: ids kept, what the next is drawn from, the probability."""

    def run(*numbers: float) -> Verdict:
        return verify(draft, rows, given_, list(start), FixedRandom(*numbers, *[1.0] * 9))  # type: ignore[arg-type]

    probability = 1.0
    for position in range(len(draft.ids)):
        kept_so_far = [0.0] * position
        low, high = 0.0, 1.0  # the token is kept below the acceptance ratio, which lies between
        for _ in range(45):
            middle = (low + high) / 2
            kept = run(*kept_so_far, middle).n_accepted > position
            low, high = (middle, high) if kept else (low, middle)
        if high < 1:
            run(*kept_so_far, high)
            yield draft.ids[:position], drawn_from[-1], probability * (1 - low)
        if low == 0:
            return
        probability *= low
    run(*[0.0] * len(draft.ids))
    yield draft.ids, drawn_from[-1], probability

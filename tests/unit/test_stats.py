"""The figures, counted again from the rounds by their definitions."""

from __future__ import annotations

import itertools
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.stats import Stats, StatsRecorder
from app.core.tokens import DraftSource, Round, TokenKind


class Clock:
    """A clock that is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def a_round(drafted: int, accepted: int, ends_inside: bool = False) -> Round:
    if ends_inside:
        next_token = next_kind = None
    else:
        next_token = 5
        next_kind = TokenKind.RECOVERED if accepted < drafted else TokenKind.BONUS
    return Round(
        index=0,
        draft=tuple(range(drafted)),
        n_accepted=accepted,
        next_token=next_token,
        next_kind=(TokenKind.TARGET if not drafted else next_kind),
        sources=(DraftSource.MODEL,) * drafted,
        draft_probs=(0.5,) * drafted,
        target_probs=(0.5,) * (accepted + 1),
        draft_s=0.25,
        verify_s=0.5,
    )


def record(*rounds: Round) -> Stats:
    clock = Clock()
    recorder = StatsRecorder(clock, prompt_tokens=7, cached_tokens=3, started_at=clock())
    clock.now += 2
    recorder.end_prefill()
    for round_ in rounds:
        clock.now += 1
        recorder.observe(round_)
    clock.now += 50  # what comes after the last commit counts for nothing
    return recorder.snapshot()


def test_before_the_first_round_nothing_applies() -> None:
    stats = record()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens) == (7, 3, 0)
    assert stats.prefill_s == 2
    rates = (stats.tokens_per_s, stats.acceptance_rate, stats.mean_acceptance_length, stats.tokens_per_pass)
    times = (stats.time_to_first_token_s, stats.decode_s, stats.total_s, stats.other_s)
    assert {*rates, *times} == {None}


def test_nothing_drafted_has_no_rate() -> None:
    stats = record(a_round(0, 0), a_round(0, 0))
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert (stats.drafted, stats.rounds_with_draft, stats.tokens_per_pass) == (0, 0, 1)
    assert stats.drafted_per_position == ()


def test_nothing_accepted_has_a_rate_of_0() -> None:
    stats = record(a_round(4, 0))
    assert (stats.acceptance_rate, stats.mean_acceptance_length, stats.tokens_per_pass) == (0, 1, 1)


def test_an_example_by_hand() -> None:
    stats = record(a_round(4, 4), a_round(4, 1), a_round(0, 0), a_round(2, 0))
    assert (stats.drafted, stats.accepted, stats.output_tokens, stats.target_passes) == (10, 5, 9, 4)
    assert stats.acceptance_rate == 0.5
    assert stats.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert stats.tokens_per_pass == 9 / 4
    assert stats.drafted_per_position == (3, 3, 2, 2)
    assert stats.accepted_per_position == (2, 1, 1, 1)


def test_times_add_up() -> None:
    stats = record(a_round(2, 1), a_round(2, 2))
    assert (stats.time_to_first_token_s, stats.decode_s, stats.total_s) == (3, 2, 4)
    assert stats.tokens_per_s == 5 / 2
    assert (stats.draft_s, stats.verify_s, stats.other_s) == (0.5, 1.0, 0.5)


def test_an_answer_that_ends_inside_a_draft_has_no_token_of_the_targets() -> None:
    stats = record(a_round(4, 2, ends_inside=True))
    assert (stats.output_tokens, stats.accepted, stats.drafted) == (2, 2, 4)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=20))
def test_recounted_from_the_rounds(shapes: list[tuple[int, int]]) -> None:
    rounds = [a_round(drafted, min(drafted, accepted)) for drafted, accepted in shapes]
    stats = record(*rounds)
    kinds = [
        kind
        for round_ in rounds
        for kind in (
            *[TokenKind.ACCEPTED] * round_.n_accepted,
            *[TokenKind.REJECTED] * (round_.n_accepted < len(round_.draft)),
            *[TokenKind.DISCARDED] * (len(round_.draft) - round_.n_accepted - 1),
            round_.next_kind,
        )
    ]
    assert stats.output_tokens == sum(kind.is_output for kind in kinds)
    assert stats.accepted == kinds.count(TokenKind.ACCEPTED)
    own = kinds.count(TokenKind.RECOVERED) + kinds.count(TokenKind.BONUS) + kinds.count(TokenKind.TARGET)
    assert stats.target_passes == own
    assert stats.drafted == len(kinds) - own
    tested = stats.accepted + kinds.count(TokenKind.REJECTED)
    assert stats.accepted <= tested <= stats.drafted
    assert sum(stats.drafted_per_position) == stats.drafted
    assert sum(stats.accepted_per_position) == stats.accepted
    assert all(a <= d for a, d in zip(stats.accepted_per_position, stats.drafted_per_position, strict=True))
    assert all(later <= earlier for earlier, later in itertools.pairwise(stats.accepted_per_position))
    assert None not in astuple(stats) or not stats.drafted

"""What a pair may gain on a kind of task, before it has been tried there: from costs and acceptance alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.costs import PassCosts
from app.core.settings import MAX_DRAFT


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts of one kind fare on one kind of task.

    ``share``: of the rounds, those in which something is proposed. ``kept``: how often the first, the first
    two, … proposed tokens are all accepted then.
    """

    share: float
    kept: tuple[float, ...]


def expected_speedup(passes: PassCosts, step_s: float, acceptance: Acceptance) -> float:
    """The speed over plain decoding's at the best draft length K, at least 1: nobody has to draft.

    ``step_s``: what a drafted token takes, 0 where it is looked up. A round with K of them brings
    1 + kept[0] + … + kept[K - 1] tokens and takes passes(K + 1) + K step_s, as in Leviathan et al. 2023,
    arXiv 2211.17192, section 3, with a target's pass that costs what was measured.
    """
    plain = passes(1)
    best, gain = 1.0, 0.0
    for length, chance in enumerate(acceptance.kept[:MAX_DRAFT], 1):
        gain += chance
        tokens = 1 + acceptance.share * gain
        seconds = plain + acceptance.share * (passes(length + 1) - plain + length * step_s)
        best = max(best, tokens * plain / seconds)
    return best


def acceptance_of(drafted: Sequence[int], accepted: Sequence[int], rounds: int, passes: int) -> Acceptance:
    """From the counts by position of some runs, with their ``rounds`` that had a draft of all ``passes``."""
    kept = tuple(part / whole for part, whole in zip(accepted, drafted, strict=True) if whole)
    return Acceptance(rounds / passes if passes else 0.0, kept)

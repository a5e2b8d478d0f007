"""How often drafted tokens are kept: where the guess starts, and how it learns.

A looked-up token is judged by its evidence (app.core.copying), a drafted one by the draft model's largest
probability before it was drawn. Priors have the weight of some tokens and give way to what is seen, which is
slowly forgotten again, so that a change from prose to code is followed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from app.core.copying import EDIT, GUESS, NGRAM, PLACE

_CONFIDENCE_STEPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# How often a draft model's largest probability lies in each class: where to start. A good pair's shares, so
# that a pair that was never tried is tried once where it could pay.
_CONFIDENCE_SHARES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.03, 0.04, 0.05, 0.06, 0.07, 0.12, 0.55)
_CONFIDENCE_WEIGHT = 16  # tokens that this start counts for
_CONFIDENCE_KEEP = 1 - 1 / 64
_TRIED_AFTER = 8  # tested tokens
# Share of what a draft model promises to save that is counted on: the next text may be of another kind. A
# copy is right in any.
_TRUST, _COPY_TRUST = 0.5, 0.8
_THRESHOLDS = (0, 4, 6, 8, 10)  # classes below which a draft may be ended
# Where to start with a copy of the target in fewer bits, which is mostly right though it is unsure: how often
# a 1.5B in 4 bits was over the built-in workloads.
_COPY_CHANCES = (0.5, 0.6, 0.75, 0.9, 0.95, 0.97, 0.98, 0.98, 0.98, 0.98, 0.99, 0.99)
# How often looked-up tokens were right over the built-in workloads, by origin and class of run: a start.
_LOOKUP_PRIORS = {
    NGRAM: (0.2, 0.3, 0.45, 0.5, 0.7, 0.7, 0.83, 0.9, 0.92, 0.94, 0.96),
    PLACE: (0.2, 0.4, 0.7, 0.85, 0.9, 0.85, 0.9, 0.93, 0.96, 0.97, 0.97),
    GUESS: (0.06,) * 11,
    EDIT: (0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85),
}


class Chance:
    """How often something turns out right: a prior of some weight, and what was seen, slowly forgotten."""

    __slots__ = ("_keep", "_kept", "_prior", "_tried", "_weight")

    def __init__(self, prior: float, weight: float, memory: float) -> None:
        self._prior, self._weight, self._keep = prior, weight, 1 - 1 / memory
        self._kept = self._tried = 0.0

    def __call__(self) -> float:
        """The chance now."""
        return (self._prior * self._weight + self._kept) / (self._weight + self._tried)

    def observe(self, right: float) -> None:
        """Take in one case: 1 right, 0 wrong."""
        self._kept = self._kept * self._keep + right
        self._tried = self._tried * self._keep + 1

    def fade(self) -> None:
        """Trust the past a quarter as much."""
        self._kept /= 4
        self._tried /= 4


def _confidence_prior(step: int) -> float:
    bounds = (0.0, *_CONFIDENCE_STEPS, 1.0)
    return 0.05 + 0.93 * (bounds[step] + bounds[step + 1]) / 2


class Confidence:
    """How sure the draft model has been of late, and how often it is right at each degree of sureness.

    ``is_copy``: it has the target's own weights, in fewer bits.
    """

    def __init__(self, is_copy: bool = False) -> None:
        priors = _COPY_CHANCES if is_copy else map(_confidence_prior, range(len(_CONFIDENCE_SHARES)))
        self._right = [Chance(prior, 8, 80) for prior in priors]
        self._seen = [share * _CONFIDENCE_WEIGHT for share in _CONFIDENCE_SHARES]
        self._unit = 1.0
        self._n_tested = 0
        self._trust = _COPY_TRUST if is_copy else _TRUST

    @property
    def trust(self) -> float:
        """Share of what it promises to save that may be spent on reading.

        One that was never tried gets the benefit of the doubt, once: how else would it become known?
        """
        return self._trust if self._n_tested >= _TRIED_AFTER else 1.0

    def chance(self, probability: float) -> float:
        """The chance of a drafted token by the draft model's largest probability before it is drawn."""
        return self._right[bisect_right(_CONFIDENCE_STEPS, probability)]()

    def see(self, probability: float) -> None:
        """Take in the largest probability of one place."""
        # Each counts for more than the one before, instead of all those before for less.
        self._unit /= _CONFIDENCE_KEEP
        self._seen[bisect_right(_CONFIDENCE_STEPS, probability)] += self._unit

    def observe(self, probability: float, right: bool) -> None:
        """A token that was drafted at that probability, and tested."""
        self._n_tested += 1
        self._right[bisect_right(_CONFIDENCE_STEPS, probability)].observe(right)

    def fade(self) -> None:
        """Go half the way back to where it started: the text may have changed."""
        total = sum(self._seen)
        self._seen = [
            (seen / total + share) / 2 * _CONFIDENCE_WEIGHT
            for seen, share in zip(self._seen, _CONFIDENCE_SHARES, strict=True)
        ]
        self._unit = 1.0

    def thresholds(self) -> list[tuple[float, float]]:
        """For some degrees of sureness: how often a place reaches it, and the chance of its token then."""
        total = sum(self._seen)
        found = []
        seen = right = 0.0
        for i in reversed(range(len(self._seen))):
            seen += self._seen[i]
            right += self._seen[i] * self._right[i]()
            if i in _THRESHOLDS:
                found.append((seen / total, right / seen))
        return found


@dataclass(slots=True)
class Record:
    """What was learned of acceptance with one pair of models and one way of sampling."""

    lookup: list[Chance] = field(
        default_factory=lambda: [
            Chance(prior, 6, 60) for origin in sorted(_LOOKUP_PRIORS) for prior in _LOOKUP_PRIORS[origin]
        ]
    )
    model: Confidence = field(default_factory=Confidence)

    def fade(self) -> None:
        """Trust what was learned less: another answer may be of another kind."""
        self.model.fade()
        for chance in self.lookup:
            chance.fade()

"""Drawing tokens, and the acceptance rule that keeps the target's distribution.

The rule is speculative sampling of Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023
(arXiv 2302.01318): keep a proposed token x with probability min(1, target(x) / draft(x)); at the first
rejection draw from max(0, target - draft), renormalised. A looked-up token is a draft with probability 1.
At temperature 0 both distributions are a single point and the rule becomes "keep while equal".

Logits are float32 rows of shape (vocabulary,). Rows are views of llama.cpp's buffer and never written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.core.settings import SamplingSettings
from app.core.tokens import DraftSource, TokenKind

Logits = NDArray[np.float32]

_COLUMN_HEIGHT = 32


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over a few ids (ascending); every other id has probability 0."""

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """The probability of one id."""
        place = int(np.searchsorted(self.ids, token))
        return float(self.probs[place]) if place < len(self.ids) and self.ids[place] == token else 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """One id, using exactly one number of ``rng``."""
        cumulative = np.cumsum(self.probs)
        place = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        return int(self.ids[min(place, len(self.ids) - 1)])


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes. A distribution of None stands for a token proposed with probability 1."""

    ids: tuple[int, ...] = ()
    sources: tuple[DraftSource, ...] = ()
    probs: tuple[float | None, ...] = ()
    distributions: tuple[Distribution | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one target pass; ``target_probs`` are untransformed, one a tested row."""

    n_accepted: int
    next_token: int
    next_kind: TokenKind
    target_probs: tuple[float, ...]


def softmax_prob(logits: Logits, token: int) -> float:
    """The untransformed probability of ``token``."""
    top = logits.max()
    return float(math.exp(float(logits[token] - top)) / float(np.exp(logits - top).sum()))


def penalise(logits: Logits, settings: SamplingSettings, history: Sequence[int]) -> Logits:
    """Logits after the repeat, presence and frequency penalties, as llama.cpp applies them.

    They count the last ``repeat_last_n`` ids of ``history``. Without a penalty the row itself comes back.
    """
    if not settings.has_penalties:
        return logits
    counts = Counter(token for token in _window(history, settings) if token < len(logits))
    if not counts:
        return logits
    ids = np.fromiter(counts.keys(), dtype=np.int64)
    times = np.fromiter(counts.values(), dtype=np.float32)
    seen = logits[ids]
    seen = np.where(seen > 0, seen / settings.repeat_penalty, seen * settings.repeat_penalty)
    penalised = logits.copy()
    penalised[ids] = seen - times * settings.frequency_penalty - settings.presence_penalty
    return penalised


def largest(logits: Logits, count: int) -> NDArray[np.int64]:
    """Ids of the ``count`` largest logits, ascending; the lower id wins a tie."""
    candidates = np.flatnonzero(logits >= _lower_bound(logits, count))
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    return np.sort(candidates[order])


def _lower_bound(logits: Logits, count: int) -> float:
    """A value that at least ``count`` logits reach, and not many more.

    Cut into columns, each column's largest logit is one of the row's: the ``count``-th largest of these
    will do. This takes a twentieth of the time of a partition of a whole 152k row.
    """
    width = len(logits) // _COLUMN_HEIGHT
    if width < count:
        return float(logits.min())
    columns = logits[: width * _COLUMN_HEIGHT].reshape(_COLUMN_HEIGHT, width).max(axis=0)
    return float(np.partition(columns, width - count)[width - count])


def _nucleus(logits: Logits, top_p: float) -> NDArray[np.int64]:
    """Ids of the fewest largest logits whose softmax mass reaches ``top_p``, ascending."""
    weights = np.exp((logits - logits.max()).astype(np.float64))
    needed = top_p * weights.sum()
    count = 64
    while True:
        ids = largest(logits, min(count, len(logits)))
        order = np.argsort(-weights[ids], kind="stable")
        mass = np.cumsum(weights[ids][order])
        if mass[-1] >= needed or len(ids) == len(logits):
            kept = min(int(np.searchsorted(mass, needed)) + 1, len(ids))
            return np.sort(ids[order[:kept]])
        count *= 8


def transform(logits: Logits, settings: SamplingSettings, history: Sequence[int]) -> Distribution:
    """Penalties, top-k, top-p, min-p and temperature, in that order; temperature must be above 0."""
    row = penalise(logits, settings, history)
    ids = np.arange(len(row)) if not 0 < settings.top_k < len(row) else largest(row, settings.top_k)
    if settings.top_p < 1:
        ids = ids[_nucleus(row[ids], settings.top_p)]
    if settings.min_p > 0:
        kept = row[ids]
        ids = ids[kept >= kept.max() + math.log(settings.min_p)]
    scaled = row[ids].astype(np.float64)
    weights = np.exp((scaled - scaled.max()) / settings.temperature)
    return Distribution(ids, weights / weights.sum())


def choose(
    logits: Logits, settings: SamplingSettings, history: Sequence[int], rng: np.random.Generator
) -> tuple[int, Distribution | None]:
    """The next id and the distribution it was drawn from; None at temperature 0."""
    if settings.temperature == 0:
        return int(penalise(logits, settings, history).argmax()), None
    distribution = transform(logits, settings, history)
    return distribution.draw(rng), distribution


def _residual(target: Distribution, draft: Distribution | None, token: int) -> Distribution:
    """max(0, target - draft), renormalised; the target itself where rounding leaves nothing."""
    if draft is None:
        left = np.where(target.ids == token, 0.0, target.probs)
    else:
        place = np.minimum(np.searchsorted(draft.ids, target.ids), len(draft.ids) - 1)
        drafted = np.where(draft.ids[place] == target.ids, draft.probs[place], 0.0)
        left = np.maximum(target.probs - drafted, 0.0)
    total = left.sum()
    return Distribution(target.ids, left / total) if total > 0 else target


def verify(
    draft: Draft,
    logits: NDArray[np.float32],
    settings: SamplingSettings,
    history: Sequence[int],
    rng: np.random.Generator,
) -> Verdict:
    """Test a draft against the target's logits and choose the token after the kept ones.

    Args:
        draft: K proposed tokens, K >= 0.
        logits: shape (K + 1, vocabulary); row i was computed after ``history + draft[:i]``.
        history: every committed id, prompt included. The penalties at row i also count ``draft[:i]``.
    """
    probs = []
    for position, token in enumerate(draft.ids):
        row, seen = logits[position], _seen(history, draft.ids[:position], settings)
        probs.append(softmax_prob(row, token))
        if settings.temperature == 0:
            chosen = int(penalise(row, settings, seen).argmax())
            kept = chosen == token
        else:
            target, proposed = transform(row, settings, seen), draft.distributions[position]
            proposed_prob = 1.0 if proposed is None else proposed.prob(token)
            kept = rng.random() * proposed_prob < target.prob(token)
            if not kept:
                chosen = _residual(target, proposed, token).draw(rng)
        if not kept:
            probs.append(softmax_prob(row, chosen))
            return Verdict(position, chosen, TokenKind.RECOVERED, tuple(probs))
    row = logits[len(draft.ids)]
    chosen, _ = choose(row, settings, _seen(history, draft.ids, settings), rng)
    probs.append(softmax_prob(row, chosen))
    return Verdict(len(draft.ids), chosen, TokenKind.BONUS if draft.ids else TokenKind.TARGET, tuple(probs))


def _seen(history: Sequence[int], drafted: Sequence[int], settings: SamplingSettings) -> Sequence[int]:
    """What the penalties may look back on, without copying a long history when they are off."""
    if not settings.has_penalties:
        return ()
    return [*_window(history, settings), *drafted]


def _window(history: Sequence[int], settings: SamplingSettings) -> Sequence[int]:
    """The last ids of ``history`` that the penalties count."""
    return history if settings.repeat_last_n < 0 else history[-settings.repeat_last_n :]

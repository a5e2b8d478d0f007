"""Whether a greedy column wrote what plain decoding writes, and if not, whether that is a near-tie.

A pass over several tokens may round differently from passes over one. Where the target puts two tokens
almost level, that alone may turn the choice: a near-tie. The allowance is what was measured: an F16 model's
gap moves by less than 0.01, that of a quantised one (repacked kernels) by up to 0.43.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest

from app.compare.record import Audit, Column

NEAR_TIE_GAP, NEAR_TIE_GAP_QUANTISED = 0.05, 0.5
_UNQUANTISED = {"F32", "F16", "BF16"}


def is_comparable(column: Column, plain: Column) -> bool:
    """Whether both are greedy and asked for the same, so that their outputs must agree."""
    return _asked(column) == _asked(plain) and _is_greedy(column) and _is_greedy(plain)


def first_difference(plain: Sequence[int], ours: Sequence[int]) -> tuple[int, int | None, int | None] | None:
    """The position and both ids (None after an end) where two outputs part, or None."""
    pairs = zip_longest(plain, ours)
    return next(((place, a, b) for place, (a, b) in enumerate(pairs) if a != b), None)


def judge(
    difference: tuple[int, int | None, int | None],
    top_ids: Sequence[int],
    logits: Sequence[float],
    quantisation: str,
) -> Audit:
    """The verdict on a difference, given the target's two favourites at that place, token by token."""
    position, plain, ours = difference
    if plain is None or ours is None or {plain, ours} != set(top_ids):
        return Audit("different", position, (plain, ours))
    gap = abs(logits[0] - logits[1])
    verdict = "near_tie" if gap <= allowed_gap(quantisation) else "different"
    return Audit(verdict, position, (plain, ours), gap)


def allowed_gap(quantisation: str) -> float:
    """The largest gap of a near-tie for a target of this type, in logits."""
    unquantised = quantisation.split()[-1:] and quantisation.split()[-1] in _UNQUANTISED
    return NEAR_TIE_GAP if unquantised else NEAR_TIE_GAP_QUANTISED


def _is_greedy(column: Column) -> bool:
    return column.request.sampling.temperature == 0


def _asked(column: Column) -> tuple[object, ...]:
    """What decides a greedy output, besides the prompt and the target's file."""
    sampling, load = column.request.sampling, column.load
    return (
        column.request.max_tokens,
        column.request.stop,
        sampling.has_penalties and dataclasses.replace(sampling, top_k=0, top_p=1, min_p=0, seed=0),
        load.target,
        load.n_ctx,
        load.cache_type_k,
        load.cache_type_v,
    )

"""What the target ranks first at a place, computed as plain decoding computes it."""

from __future__ import annotations

from app.core.errors import UsageError
from app.core.sampling import largest, penalise
from app.core.settings import Scoring
from app.engine.protocols import Decoder


def top_two(target: Decoder, scoring: Scoring) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The ids with the two largest logits after penalties, and those logits, largest first.

    The prompt is prefilled in batches and the rest decoded one id a pass, so that the rounding is that of
    plain decoding. The cache is left holding what was decoded.
    """
    ids = [*scoring.prompt_ids, *scoring.output_ids]
    if len(ids) > target.n_ctx:
        raise UsageError(f"{len(ids)} tokens are to be scored and the context holds {target.n_ctx}")
    target.rewind(0)
    target.extend(scoring.prompt_ids[:-1], lambda done: None)
    for token in ids[len(scoring.prompt_ids) - 1 :]:
        logits = target.decode([token], 1)[0]
    row = penalise(logits, scoring.sampling, ids)
    top = sorted(largest(row, 2).tolist(), key=lambda token: (-row[token], token))
    return tuple(top), tuple(float(row[token]) for token in top)

"""The round loop: one pass of the target tests a draft, keeps the matching run and adds a token.

Plain decoding is the drafter that proposes nothing. The target's cache holds every committed id but the
last, which is decoded first in the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from app.core.sampling import verify
from app.core.settings import SamplingSettings
from app.core.tokens import Round
from app.engine.protocols import Decoder, Drafter


def rounds(
    target: Decoder,
    drafter: Drafter,
    committed: list[int],
    *,
    sampling: SamplingSettings,
    n_draft: int,
    max_tokens: int,
    rng: np.random.Generator,
    ends: Callable[[int], bool],
) -> Iterator[Round]:
    """Decode until ``max_tokens`` ids are added, the context is full, or ``ends`` says so.

    Args:
        committed: the prompt's ids, whose prefix both caches hold; grows by each round's output.
        ends: asked about every output id in order; True makes it the answer's last.

    Closing the generator at any point, or an error in it, leaves both caches a prefix of ``committed``.
    """
    remaining = max_tokens
    index = 0
    try:
        while remaining > 0 and len(committed) <= target.n_ctx:
            room = min(n_draft, remaining - 1, target.n_ctx - len(target.ids) - 2, target.max_rows - 1)
            draft_before, verify_before = drafter.seconds, target.seconds
            draft = drafter.propose(committed, max(room, 0))
            n_again = target.n_behind
            logits = target.decode([committed[-1], *draft.ids], len(draft.ids) + 1)
            verdict = verify(draft, logits, sampling, committed, rng)
            proposal = (*draft.ids[: verdict.n_accepted], verdict.next_token)
            stop = next((place for place, token in enumerate(proposal) if ends(token)), None)
            output = proposal if stop is None else proposal[: stop + 1]
            has_next = len(output) > verdict.n_accepted
            committed += output
            remaining -= len(output)
            target.rewind(len(committed) - 1)
            drafter.accept(committed)
            yield Round(
                index=index,
                draft=draft.ids,
                n_accepted=min(len(output), verdict.n_accepted),
                next_token=verdict.next_token if has_next else None,
                next_kind=verdict.next_kind if has_next else None,
                sources=draft.sources,
                draft_probs=draft.probs,
                target_probs=verdict.target_probs,
                draft_s=drafter.seconds - draft_before,
                verify_s=target.seconds - verify_before,
                n_again=n_again,
            )
            if stop is not None:
                return
            index += 1
    finally:
        target.rewind(len(committed) - 1)
        drafter.accept(committed)

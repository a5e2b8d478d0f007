"""What a draft may bring, from what it costs and how often it is right."""

from __future__ import annotations

from app.core.settings import MAX_DRAFT


def expected_speedup(agreement: float, draft_cost: float, verify_cost: float) -> float:
    """The speed over plain decoding's at the best draft length, at least 1: nobody has to draft.

    Args:
        agreement: how often a drafted token is kept.
        draft_cost: one drafted token over one plain pass of the target, in time.
        verify_cost: what each further token adds to a pass of the target, over one plain pass.

    With K drafted tokens a round brings 1 + a + … + a^K of them and costs 1 + K (draft + verify), as in
    Leviathan et al. 2023, arXiv 2211.17192, section 3.3, with the target's pass growing.
    """
    best = tokens = 1.0
    for length in range(1, MAX_DRAFT + 1):
        tokens += agreement**length
        best = max(best, tokens / (1 + length * (draft_cost + verify_cost)))
    return best

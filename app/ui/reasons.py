"""Why Auto drafted what it did, in words."""

from __future__ import annotations

from pathlib import Path

from app.core.auto import Choice
from app.core.models import size_in_name

_REFUSED = {"lookup": "a look-up", "model": "a draft of {draft}", "both": "a look-up that {draft} continues"}


def why(choice: Choice, draft: Path | None, n_drafted: int) -> str:
    """One clause on a round; ``n_drafted`` tokens came from the draft model. Costs are in tokens of plain
    decoding's pace."""
    size = size_in_name(draft.stem) if draft else None
    name = f"the {size}" if size else draft.stem if draft else "the draft model"
    numbers = f"{choice.gain:.1f} more tokens for the time of {choice.cost:.1f}"
    if choice.source == "none":
        nothing = "nothing to look up" + (f", and {name} is not expected to pay" if draft else "")
        return f"plain: {_refusal(choice, name) or nothing}"
    if choice.source == "lookup":
        return f"look-up: copying {choice.looked_up} should bring {numbers}"
    unsure = "" if n_drafted else f", but {name} was not sure enough of one"
    if choice.source == "model":
        return f"draft: {name} should bring {numbers}{unsure}"
    return f"look-up and draft: copying {choice.looked_up}, then {name}, should bring {numbers}{unsure}"


def _refusal(choice: Choice, name: str) -> str:
    """What the best draft would have brought; nothing where there was none to consider."""
    if choice.gain == 0:
        return ""
    draft = _REFUSED[choice.considered].format(draft=name)
    if round(choice.gain, 1) < round(choice.cost, 1):
        return f"{draft} would cost {choice.cost:.1f} tokens to gain {choice.gain:.1f}"
    return f"{draft} would gain {choice.gain:.1f} tokens for {choice.cost:.1f}, not enough for the risk"

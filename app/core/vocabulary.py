"""Whether two vocabularies are one, so that a draft's ids mean the same to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.models import PairCheck

# llama.cpp's own limit: models of one family pad their vocabulary to different widths.
MAX_PADDING = 128


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's vocabulary. ``bos`` and ``eos`` are None where the vocabulary does not add them itself.

    ``texts`` has one entry an id; ``special`` the ids among the first few that are control tokens.
    """

    type: str
    texts: Sequence[bytes]
    special: frozenset[int]
    bos: int | None
    eos: int | None


def compare(target: Vocabulary, draft: Vocabulary) -> PairCheck:
    """Whether a draft with this vocabulary may propose to this target, and if not, why.

    The rule is llama.cpp's: same type, up to 128 rows of padding apart, the same texts on every shared id
    (special tokens among the first five may be spelt differently), and the same BOS and EOS where the
    vocabulary adds them; base and instruct models of one family differ in EOS and fit.
    """
    reasons = []
    if target.type != draft.type:
        reasons.append(f"the vocabulary types differ: target {target.type}, draft {draft.type}")
    sizes = len(target.texts), len(draft.texts)
    if abs(sizes[0] - sizes[1]) > MAX_PADDING:
        reasons.append(
            f"the vocabulary sizes differ: target {sizes[0]}, draft {sizes[1]} (at most {MAX_PADDING} apart)"
        )
    for name, ours, theirs in (("BOS", target.bos, draft.bos), ("EOS", target.eos, draft.eos)):
        if ours != theirs:
            reasons.append(f"the {name} tokens added differ: target {ours}, draft {theirs}")
    renamed = target.special & draft.special & frozenset(range(5))
    for token, (ours_text, theirs_text) in enumerate(zip(target.texts, draft.texts, strict=False)):
        if ours_text != theirs_text and token not in renamed:
            shown = [text.decode("utf-8", "replace") for text in (ours_text, theirs_text)]
            reasons.append(f"token {token} differs: target {shown[0]!r}, draft {shown[1]!r}")
            break
    return PairCheck(not reasons, tuple(reasons))

"""How often a model would have said what another one wrote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.engine.protocols import Decoder


def agreeing(model: Decoder, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> int:
    """How many of ``output_ids`` the model ranks first, each behind the ids that came before it.

    This is how many it would get accepted if it drafted one token at every place, found without drafting:
    as many places go through one pass as there are rows of logits.
    """
    model.rewind(0)
    model.extend(prompt_ids[:-1], lambda done: None)
    seen = [prompt_ids[-1], *output_ids[:-1]]
    right = 0
    for start in range(0, len(seen), model.max_rows):
        part = seen[start : start + model.max_rows]
        first = model.decode(part, len(part)).argmax(axis=1)
        right += int(np.sum(first == np.asarray(output_ids[start : start + len(part)])))
    return right

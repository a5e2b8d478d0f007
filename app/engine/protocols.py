"""What the round loop asks of a model and of whoever proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.core.sampling import Draft


class Decoder(Protocol):
    """A causal model with a cache of the ids it has seen."""

    n_ctx: int  # the most ids the cache may hold
    n_vocab: int
    max_rows: int  # the most rows of logits one call may ask for

    @property
    def ids(self) -> Sequence[int]:
        """The ids in the cache."""

    @property
    def seconds(self) -> float:
        """Time spent decoding so far, waiting for the device included."""

    @property
    def n_behind(self) -> int:
        """How many of ``ids`` the next pass decodes again, since the memory went back further than asked."""

    def decode(self, ids: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Append ``ids`` and return the logits after the last ``rows`` of them: (rows, vocabulary).

        The array is a view that the next call overwrites. Raises Cancelled, leaving the cache as it was.
        """

    def extend(self, ids: Sequence[int], on_chunk: Callable[[int], None]) -> None:
        """Append ``ids`` without logits, a batch at a time; ``on_chunk`` is told each batch's size.

        Raises Cancelled between batches or within one; whole batches stay in the cache.
        """

    def reachable(self, length: int) -> int:
        """How many of the first ``length`` ids in the cache a rewind keeps without decoding some again."""

    def rewind(self, length: int) -> None:
        """Keep only the first ``length`` ids; a longer length than the cache's changes nothing.

        What the cache holds then, and the next id decoded, are taken to stay: what comes after them may be
        made easier to take back.
        """


class Drafter(Protocol):
    """Whoever proposes the next tokens."""

    @property
    def seconds(self) -> float:
        """Time spent in a draft model so far; 0 where there is none."""

    def begin(self, prompt: Sequence[int]) -> bool:
        """An answer to ``prompt`` begins: whether the draft model should read it before the first round."""

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """Up to ``n_max`` ids to follow ``committed``, which has at least one id."""

    def accept(self, committed: Sequence[int]) -> None:
        """``committed`` has grown by what was kept: forget whatever else was drafted."""

"""Prompt lookup: what followed the last time these tokens stood here?

The idea is Saxena's prompt lookup decoding (2023): text that copies its own context is drafted for free.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """Where each n-gram of a growing sequence last occurred, for n from ``n_min`` to ``n_max``.

    Every token is indexed once, so a round costs a few dictionary look-ups however long the text is.
    """

    def __init__(self, n_min: int, n_max: int) -> None:
        self._sizes = range(n_max, n_min - 1, -1)
        self._last: dict[tuple[int, ...], int] = {}  # n-gram -> place of the token that followed it
        self._indexed = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams of ``ids`` that a token follows; ``ids`` must only have grown since."""
        for end in range(max(self._indexed, 1), len(ids)):
            for size in self._sizes:
                if size <= end:
                    self._last[tuple(ids[end - size : end])] = end
        self._indexed = max(self._indexed, len(ids))

    def continuation(self, ids: Sequence[int], length: int) -> tuple[int, ...]:
        """Up to ``length`` ids that followed the longest suffix of ``ids`` seen before.

        The most recent occurrence counts. Where it reaches the end of ``ids`` the copy goes on through
        itself, so a repeating text is drafted at full length.
        """
        for size in self._sizes:
            if size > len(ids):
                continue
            place = self._last.get(tuple(ids[len(ids) - size :]))
            if place is not None:
                period = len(ids) - place
                return tuple(ids[place + offset % period] for offset in range(length))
        return ()

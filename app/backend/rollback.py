"""What llama.cpp remembers of one sequence, and how to take its tail back.

An attention cache drops any tail. A running state (recurrent and hybrid models) doesn't: it goes back to a
snapshot that the last pass left, where the model makes them, or to a checkpoint saved before; the owner
decodes what lay between again.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass

import llama_cpp

from app.core.errors import HeadstartError

# Checkpoints kept for later turns, and the ids between them: a state may take tens of megabytes.
_KEPT = 4
_KEPT_EVERY = 64
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class AttentionCache:
    """A memory with a row for each of ``length`` ids."""

    def __init__(self, context: int) -> None:
        self.length = 0
        self._memory = llama_cpp.llama_get_memory(context)

    def expect(self, n_ids: int, certain: int) -> None:
        """A pass over ``n_ids`` comes, and all but the first ``certain`` of all ids may be taken back."""

    def grow(self, n_ids: int) -> None:
        """A pass over ``n_ids`` went well."""
        self.length += n_ids

    def keep(self) -> None:
        """A later turn may come back to here."""

    def reach(self, length: int) -> int:
        """How many of the first ``length`` ids can be had without decoding."""
        return min(length, self.length)

    def cut(self, length: int) -> None:
        """Hold the first ``length`` ids, or as many of them as can be had without decoding."""
        if length < self.length:
            self.length = length
            self._drop_tail()

    def recover(self) -> None:
        """A pass failed: undo what it did."""
        self._drop_tail()

    def _drop_tail(self) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, 0, self.length, -1):
            raise HeadstartError(
                f"this model's memory cannot drop its tail (from token {self.length} on)",
                "speculation needs that; choose another model",
            )


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The running state after the first ``length`` ids."""

    length: int
    data: ctypes.Array[ctypes.c_uint8]


_START = _Checkpoint(0, (ctypes.c_uint8 * 0)())


class RunningState(AttentionCache):
    """A memory with a state that every id changes, alone or beside attention layers.

    ``n_snapshots``: how many ids back the snapshots go that the model takes in a pass; 0 if it takes none.
    """

    def __init__(self, context: int, n_snapshots: int) -> None:
        super().__init__(context)
        self._context = context
        self._n_snapshots = n_snapshots
        self._droppable = 0  # ids at the end that the last pass's snapshots lead back over, once
        self._before_draft = _START
        self._kept: deque[_Checkpoint] = deque(maxlen=_KEPT)

    def expect(self, n_ids: int, certain: int) -> None:
        """Save the state if neither snapshots nor a checkpoint would lead back to what is certain."""
        uncertain = self.length + n_ids - certain
        if uncertain > min(n_ids - 1, self._n_snapshots):
            wanted = min(self.length, certain)
            if self._newest(wanted).length < wanted:
                self._before_draft = self._save(self._before_draft)

    def grow(self, n_ids: int) -> None:
        """A pass over ``n_ids`` went well."""
        super().grow(n_ids)
        self._droppable = min(n_ids - 1, self._n_snapshots)

    def keep(self) -> None:
        """A later turn may come back to here."""
        if self.length - (self._kept[-1].length if self._kept else 0) >= _KEPT_EVERY:
            self._kept.append(self._save(_START))

    def reach(self, length: int) -> int:
        """How many of the first ``length`` ids can be had without decoding."""
        if length >= self.length - self._droppable:
            return min(length, self.length)
        return self._newest(length).length

    def cut(self, length: int) -> None:
        """Hold the first ``length`` ids, or as many of them as can be had without decoding."""
        while self._kept and self._kept[-1].length > length:
            self._kept.pop()
        if self._before_draft.length > length:
            self._before_draft = _Checkpoint(0, self._before_draft.data)
        if length >= self.length:
            return
        by_snapshot = 0 < length >= self.length - self._droppable
        self.length = length
        if by_snapshot:
            self._drop_tail()
            self._droppable = 0
        else:
            self.recover()

    def recover(self) -> None:
        """Go back to the newest checkpoint of what is to be held, or to the start."""
        checkpoint = self._newest(self.length)
        data = checkpoint.data
        if checkpoint.length and not llama_cpp.llama_state_seq_set_data_ext(
            self._context, data, len(data), 0, _PARTIAL
        ):
            checkpoint = _START
        self.length = checkpoint.length
        self._droppable = 0
        self._drop_tail()

    def _newest(self, length: int) -> _Checkpoint:
        """The last checkpoint of at most ``length`` ids."""
        fitting = (one for one in (*self._kept, self._before_draft) if one.length <= length)
        return max(fitting, key=lambda one: one.length, default=_START)

    def _save(self, old: _Checkpoint) -> _Checkpoint:
        """The state now, in the old one's space if it fits."""
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL)
        data = old.data if len(old.data) == size else (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data_ext(self._context, data, size, 0, _PARTIAL) != size:
            raise HeadstartError("llama.cpp could not save the model's running state", "load the model again")
        return _Checkpoint(self.length, data)

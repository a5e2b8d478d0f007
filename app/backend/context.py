"""A model's cache of one sequence, as llama.cpp keeps it, and the passes over it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from app.backend.llama import CancelFlag
from app.backend.model import Model
from app.backend.rollback import AttentionCache, RunningState
from app.core.errors import Cancelled, HeadstartError
from app.core.settings import MAX_DRAFT

_GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
_ABORTED = 2  # llama_decode's answer when the abort callback said so
_SNAPSHOTS = 4  # of a pass's running states, where a model makes them; each takes a state's memory
_MOST_BEHIND = 8  # ids that a pass takes along to bring the memory up to date; more get one of their own


class Context:
    """A model's cache of one sequence: the engine's Decoder.

    ``n_ctx`` is the limit asked for; llama.cpp pads its own. Only the rows asked for have logits, at most
    ``max_rows`` of them, so no buffer grows with the context or the batch.

    The memory may hold fewer ids than ``ids``: a running state goes back further than it was asked to. The
    next pass then takes the missing ones along.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        n_batch: int,
        n_threads: int,
        cancel: CancelFlag,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
    ) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_batch
        # Verification runs on the batch threads, drafting on the others: both get all of them.
        params.n_threads = params.n_threads_batch = n_threads
        params.n_outputs_max = min(n_batch, MAX_DRAFT + 1)
        params.type_k, params.type_v = _GGML_TYPES[cache_type_k], _GGML_TYPES[cache_type_v]
        params.swa_full = True  # a sliding window forgets what a rewind would need
        if model.has_running_state:
            # llama.cpp ends the process if a batch cannot hold the ids between two snapshots and one more.
            params.n_rs_seq = max(0, min(_SNAPSHOTS, n_batch - 2))
        params.no_perf = True
        params.abort_callback = cancel.callback
        params.abort_callback_data = cancel.address
        self.n_ctx = n_ctx
        self.n_vocab = model.n_vocab
        self.max_rows = params.n_outputs_max
        self.ids: list[int] = []
        self.seconds = 0.0
        self._n_batch = n_batch
        self._cancel = cancel
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            raise HeadstartError(
                f"llama.cpp cannot make a context of {n_ctx} tokens for {model.path.name}",
                "choose a smaller context, fewer layers on the GPU, or another cache type",
            )
        self._memory = (
            RunningState(self._context, llama_cpp.llama_n_rs_seq(self._context))
            if model.has_running_state
            else AttentionCache(self._context)
        )
        self._certain = 1  # so many ids will stay, those not yet decoded included
        self._batch = llama_cpp.llama_batch_init(n_batch, 0, 1)

    def close(self) -> None:
        """Free the cache and the buffers."""
        if self._context:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            self._context = None

    @property
    def n_behind(self) -> int:
        """How many of ``ids`` the next pass decodes again, since the memory went back further than asked."""
        return len(self.ids) - self._memory.length

    def decode(self, ids: Sequence[int], rows: int) -> NDArray[np.float32]:
        """Append ``ids`` and return the logits after the last ``rows`` of them: (rows, vocabulary).

        The array is a view that the next call overwrites. Raises Cancelled, leaving the cache as it was.
        """
        self._submit(ids, rows)
        address = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(address, shape=(rows, self.n_vocab))

    def extend(self, ids: Sequence[int], on_chunk: Callable[[int], None]) -> None:
        """Append ``ids`` without logits, a batch at a time; ``on_chunk`` is told each batch's size.

        Raises Cancelled between batches or within one; whole batches stay in the cache.
        """
        is_prompt = len(ids) > 1  # a drafter adds a single id now and then
        if is_prompt:
            self._keep()
        for start in range(0, len(ids), self._n_batch):
            chunk = ids[start : start + self._n_batch]
            self._certain = len(self.ids) + len(chunk) + 1
            self._submit(chunk, 0)
            if is_prompt:
                self._keep()
            on_chunk(len(chunk))

    def reachable(self, length: int) -> int:
        """How many of the first ``length`` ids in the cache a rewind keeps without decoding some again."""
        return self._memory.reach(length)

    def rewind(self, length: int) -> None:
        """Keep only the first ``length`` ids; a longer length than the cache's changes nothing."""
        if length < len(self.ids):
            del self.ids[length:]
            with self._timing():
                self._memory.cut(length)
        self._certain = len(self.ids) + 1

    def _submit(self, ids: Sequence[int], rows: int) -> None:
        """Append ``ids`` in one pass, after bringing the memory up to date."""
        while self.n_behind > min(_MOST_BEHIND, self._n_batch - len(ids)):
            start = self._memory.length
            self._pass(self.ids[start : start + self._n_batch], 0)
        self._pass([*self.ids[self._memory.length :], *ids], rows)
        self.ids += ids

    def _pass(self, ids: Sequence[int], rows: int) -> None:
        """One call of llama_decode; the memory grows by ``ids`` or stays usable."""
        if self._cancel.is_set():
            raise Cancelled
        batch, past = self._batch, self._memory.length
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place] = token
            batch.pos[place] = past + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = place >= len(ids) - rows
        with self._timing():
            self._memory.expect(len(ids), self._certain)
            status = llama_cpp.llama_decode(self._context, batch)
            llama_cpp.llama_synchronize(self._context)
            if status == 0:
                self._memory.grow(len(ids))
                return
            self._memory.recover()
        if status == _ABORTED:
            raise Cancelled
        raise HeadstartError(
            f"llama.cpp could not decode {len(ids)} tokens after {past} (status {status})",
            "load the model again, with a smaller context if memory is short",
        )

    def _keep(self) -> None:
        with self._timing():
            self._memory.keep()

    @contextlib.contextmanager
    def _timing(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

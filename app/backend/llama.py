"""llama.cpp models and contexts, through the bindings' C functions.

The high-level ``Llama`` class keeps logits for a whole context and knows one model at a time; the C
functions do neither. One thread must make every call: llama.cpp's OpenMP team belongs to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from app.backend.rollback import AttentionCache, RunningState
from app.core.errors import Cancelled, HeadstartError
from app.core.models import ModelFacts
from app.core.settings import MAX_DRAFT
from app.core.vocabulary import Vocabulary

_GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
_VOCAB_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_CONTROL = 1 << 3 | 1 << 0  # attribute bits of a token: control, unknown
MADE_FROM = "headstart.source.sha256"  # metadata of a draft that was made here: its target's file
_ABORTED = 2  # llama_decode's answer when the abort callback said so
_SNAPSHOTS = 4  # of a pass's running states, where a model makes them; each takes a state's memory
_MOST_BEHIND = 8  # ids that a pass takes along to bring the memory up to date; more get one of their own

_DEBUG = 1  # level of a log line


def _write_log(level: int, line: bytes, _: object) -> None:
    # A thousand debug lines a context would push what matters out of the log's end. The bindings' own
    # callback mixes the levels up.
    if level != _DEBUG:
        os.write(2, line)


LOG_TO_STDERR = llama_cpp.llama_log_callback(_write_log)
llama_cpp.llama_log_set(LOG_TO_STDERR, None)
llama_cpp.llama_backend_init()


class CancelFlag:
    """A byte that the parent process may set at any time; non-zero means stop.

    llama.cpp asks its abort callback before every node of the graph. A Python callback there costs a
    tenth of a small model's pass, so the callback is C's own ``strlen`` over this byte and the zero after
    it: its low byte is the flag.
    """

    def __init__(self, shared: ctypes.Array[ctypes.c_char]) -> None:
        self._shared = shared
        libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self.callback = ctypes.cast(libc.strlen, llama_cpp.ggml_abort_callback)
        self.address = ctypes.c_void_p(ctypes.addressof(shared))

    def is_set(self) -> bool:
        """Whether the current work should stop."""
        return self._shared[0] != b"\0"


def never_cancelled() -> CancelFlag:
    """A flag that nobody sets."""
    return CancelFlag(ctypes.create_string_buffer(2))


class Model:
    """A loaded GGUF file and its vocabulary.

    Raises HeadstartError where the file cannot be loaded or cannot be used for speculation, and Cancelled
    where ``on_progress`` (told a fraction from 0 to 1) returns False.
    """

    def __init__(
        self,
        path: Path,
        gpu_layers: int = 0,
        on_progress: Callable[[float], bool] = lambda fraction: True,
        vocab_only: bool = False,
        no_alloc: bool = False,
    ) -> None:
        self.path = path
        going_on = True

        def report(fraction: float, _: object) -> bool:
            nonlocal going_on
            going_on = on_progress(fraction)
            return going_on

        params = llama_cpp.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu_layers
        if no_alloc:  # everything is planned and nothing loaded, so that such a model can't decode
            params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
        params.progress_callback = llama_cpp.llama_progress_callback(report)
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            if not going_on:
                raise Cancelled
            raise HeadstartError(
                f"llama.cpp cannot load {path}: the file is cut short, broken or of a kind it does not know",
                "fetch it again, or choose another model",
            )
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.vocab_type = _VOCAB_TYPES.get(llama_cpp.llama_vocab_type(self._vocab), "unknown")
        self.n_ctx_train: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(self._vocab)
        self.bos: int = llama_cpp.llama_vocab_bos(self._vocab)
        self.eos: int = llama_cpp.llama_vocab_eos(self._vocab)
        self._ends = frozenset(i for i in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, i))
        self._pieces: dict[int, bytes] = {}

    @property
    def handle(self) -> int:
        """llama.cpp's pointer."""
        return int(self._model)

    @property
    def has_running_state(self) -> bool:
        """Whether its memory is one that every id changes, in some layers or in all."""
        model = self._model
        return bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))

    def close(self) -> None:
        """Free the weights; contexts over this model must be closed first."""
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def is_end(self, token: int) -> bool:
        """Whether the id ends generation."""
        return token in self._ends

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes an id adds to a text; empty for control tokens unless ``special``."""
        key = -1 - token if special else token
        if key not in self._pieces:
            self._pieces[key] = self._read_piece(token, special)
        return self._pieces[key]

    def _read_piece(self, token: int, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        """The ids of ``text``, without BOS or EOS; ``parse_special`` reads special tokens' texts as such."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 16
        ids = (llama_cpp.llama_token * size)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, size, False, parse_special)
        if count < 0:
            raise HeadstartError(
                f"llama.cpp cannot tokenise a text of {len(data)} bytes with {self.path.name}"
            )
        return list(ids[:count])

    def chat_template(self) -> str | None:
        """The file's default chat template."""
        template = llama_cpp.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None

    def special_texts(self) -> list[str]:
        """Texts that the tokeniser reads as one special token, but only where it is told to."""
        return [
            text
            for token in range(self.n_vocab)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & _CONTROL
            and (text := llama_cpp.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))
        ]

    def metadata(self, key: str) -> str | None:
        """One value of the file's metadata, as text."""
        buffer = ctypes.create_string_buffer(512)
        length = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def vocabulary(self) -> Vocabulary:
        """The vocabulary, to compare with another's."""
        vocab = self._vocab
        return Vocabulary(
            type=self.vocab_type,
            texts=[llama_cpp.llama_vocab_get_text(vocab, token) for token in range(self.n_vocab)],
            special=frozenset(
                token
                for token in range(min(5, self.n_vocab))
                if llama_cpp.llama_vocab_get_attr(vocab, token) & _CONTROL
            ),
            bos=self.bos if self.adds_bos else None,
            eos=self.eos if llama_cpp.llama_vocab_get_add_eos(vocab) else None,
        )

    def facts(self) -> ModelFacts:
        """What the file says of itself; a vocabulary-only load is enough."""
        architecture = self.metadata("general.architecture") or "unknown"
        file_type = self.metadata("general.file_type")
        return ModelFacts(
            kind=self._kind(),
            architecture=architecture,
            name=self.metadata("general.name"),
            parameters=llama_cpp.llama_model_n_params(self._model),
            quantization=_quantization(int(file_type)) if file_type else "unknown",
            n_ctx_train=int(self.metadata(f"{architecture}.context_length") or 0),
            n_vocab=self.n_vocab,
            vocab_type=self.vocab_type,
            n_layer=int(self.metadata(f"{architecture}.block_count") or 0),
            has_chat_template=self.chat_template() is not None,
            licence=self.metadata("general.license"),
            made_from=self.metadata(MADE_FROM),
        )

    def _kind(self) -> str:
        model = self._model
        if llama_cpp.llama_model_is_diffusion(model):
            return "diffusion"
        architecture = self.metadata("general.architecture")
        has_encoder = llama_cpp.llama_model_has_encoder(model)
        if has_encoder and llama_cpp.llama_model_has_decoder(model):
            return "encoder-decoder"
        if has_encoder or self.metadata(f"{architecture}.attention.causal") == "false":
            return "encoder"
        if llama_cpp.llama_model_is_recurrent(model):
            return "recurrent"
        if llama_cpp.llama_model_is_hybrid(model):
            return "hybrid"
        return "model"


def _quantization(file_type: int) -> str:
    """A file type as people write it: Q4_K_M and F32 for llama.cpp's "Q4_K - Medium" and "all F32"."""
    name = llama_cpp.llama_ftype_name(file_type)
    text = name.decode().removeprefix("all ") if name else "unknown"
    for word in ("Small", "Medium", "Large"):
        text = text.replace(f" - {word}", f"_{word[0]}")
    return text


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


@contextlib.contextmanager
def vocabulary_of(path: Path) -> Iterator[Model]:
    """A model loaded for its vocabulary and metadata alone."""
    model = Model(path, vocab_only=True)
    try:
        yield model
    finally:
        model.close()

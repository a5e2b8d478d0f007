"""A GGUF file that llama.cpp has loaded: its vocabulary, its chat template, what it says of itself."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import llama_cpp

import app.backend.llama  # noqa: F401  # starts llama.cpp
from app.core.errors import Cancelled, HeadstartError
from app.core.models import ModelFacts
from app.core.vocabulary import Vocabulary

_VOCAB_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
_CONTROL = 1 << 3 | 1 << 0  # attribute bits of a token: control, unknown
MADE_FROM = "headstart.source.sha256"  # metadata of a draft that was made here: its target's file


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


@contextlib.contextmanager
def vocabulary_of(path: Path) -> Iterator[Model]:
    """A model loaded for its vocabulary and metadata alone."""
    model = Model(path, vocab_only=True)
    try:
        yield model
    finally:
        model.close()

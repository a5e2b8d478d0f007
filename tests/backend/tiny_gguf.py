"""Tiny GGUF files of random weights, written with the ``gguf`` package; each a few hundred kilobytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ message['role'] }}] {{ message['content'] }}</s>{% endfor %}"
)
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # token types
_N_FF = 128
_KERNEL, _STATE, _RANK = 4, 8, 4  # of convolutions and scans
_WINDOW = 16
# The kinds of the layers with an even and with an odd number.
_LAYERS = {
    "llama": ("attention", "attention"),
    "bert": ("attention", "attention"),
    "t5": ("attention", "attention"),  # enough to be recognised, not to be loaded
    "dream": ("attention", "attention"),
    "gemma3": ("attention", "attention"),
    "mamba": ("mamba", "mamba"),
    "jamba": ("scan", "attention"),
    "lfm2": ("convolution", "attention"),
    "qwen35": ("delta", "attention"),
}


@dataclass(frozen=True)
class TinyVocabulary:
    """The tokenizer fields of a GGUF file."""

    model: str  # gpt2 (BPE) or llama (SPM)
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    bos: int = 0
    eos: int = 0
    add_bos: bool = False
    pre: str = "gpt-2"

    def padded(self, rows: int) -> TinyVocabulary:
        """With ``rows`` unused ids at the end, as models of one family differ."""
        names = tuple(f"[PAD{row}]" for row in range(rows))
        return replace(self, tokens=self.tokens + names, types=self.types + (_NORMAL,) * rows)


def _byte_letters() -> list[str]:
    """The visible letter that GPT-2's byte-level BPE writes for each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def byte_level() -> TinyVocabulary:
    """All bytes, a few merges and ChatML's markers: 268 tokens, BPE."""
    space, line = _byte_letters()[0x20], _byte_letters()[0x0A]
    merges = (
        f"{space} t",
        f"{space}t h",
        f"{space}th e",
        "i n",
        "a n",
        f"{line} {line}",
        f"{line}{line} {line}",
    )
    tokens = (*_byte_letters(), *(merge.replace(" ", "") for merge in merges))
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>", "<|fim|>")
    return TinyVocabulary(
        "gpt2",
        tokens + specials,
        (_NORMAL,) * len(tokens) + (_CONTROL,) * len(specials),
        merges,
        bos=len(tokens),
        eos=len(tokens) + 2,
    )


def sentence_piece() -> TinyVocabulary:
    """SPM with byte tokens and a BOS that the model wants: 369 tokens."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    pairs = ["▁t", "he", "▁the", "in", "▁a", "an", "on", "er", "▁h", "▁w", "▁s", "lo", "ll", "or"]
    tokens = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, *pairs)
    types = (_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * (1 + len(letters) + len(pairs)))
    scores = tuple([0.0] * 259 + [-100.0] * (1 + len(letters)) + [-float(n) for n in range(len(pairs))])
    return TinyVocabulary("llama", tokens, types, scores=scores, bos=1, eos=2, add_bos=True)


def vocabulary_of_file(path: Path) -> TinyVocabulary:
    """The texts and kinds of a real model's tokens, enough to draft for it; merges are left out."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    vocab = llama_cpp.llama_model_get_vocab(model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    found = TinyVocabulary(
        "gpt2",
        tuple(llama_cpp.llama_vocab_get_text(vocab, token).decode("utf-8") for token in range(n_vocab)),
        tuple(
            _CONTROL if llama_cpp.llama_vocab_is_control(vocab, token) else _NORMAL
            for token in range(n_vocab)
        ),
        ("a n",),
        bos=llama_cpp.llama_vocab_bos(vocab),
        eos=llama_cpp.llama_vocab_eos(vocab),
    )
    llama_cpp.llama_model_free(model)
    return found


@dataclass(frozen=True)
class TinyModel:
    """What a tiny file holds; equal ones have equal bytes.

    ``likeness`` to the weights of ``seed`` alone goes from 1 (the same model) to 0 (an unrelated one): a
    draft between them is right now and then.
    """

    seed: int = 0
    likeness: float = 1.0
    vocabulary: TinyVocabulary = field(default_factory=byte_level)
    architecture: str = "llama"  # or another of _LAYERS
    n_embd: int = 64
    n_layer: int = 2
    n_ctx_train: int = 8192
    template: str | None = CHATML
    role: str = "model"  # general.type

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_type(self.role)
        writer.add_name(f"tiny {self.architecture}")
        writer.add_license("mit")
        writer.add_file_type(0)
        writer.add_context_length(self.n_ctx_train)
        writer.add_embedding_length(self.n_embd)
        writer.add_block_count(self.n_layer)
        self._add_vocabulary(writer)
        for name, shape in self._shapes(writer).items():
            writer.add_tensor(name, self._weights(name, shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_vocabulary(self, writer: gguf.GGUFWriter) -> None:
        words = self.vocabulary
        writer.add_vocab_size(len(words.tokens))
        writer.add_tokenizer_model(words.model)
        writer.add_token_list(words.tokens)
        writer.add_token_types(words.types)
        if words.model == "gpt2":
            writer.add_tokenizer_pre(words.pre)
            writer.add_token_merges(words.merges)
        else:
            writer.add_token_scores(words.scores)
        if words.bos >= 0:
            writer.add_bos_token_id(words.bos)
        writer.add_eos_token_id(words.eos)
        writer.add_add_bos_token(words.add_bos)
        if self.template is not None:
            writer.add_chat_template(self.template)

    def _shapes(self, writer: gguf.GGUFWriter) -> dict[str, tuple[int, ...]]:
        """Tensor shapes, rows first."""
        n, rows = self.n_embd, len(self.vocabulary.tokens)
        output_norm = "token_embd_norm.weight" if self.architecture == "lfm2" else "output_norm.weight"
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, n), output_norm: (n,)}
        if self.architecture != "bert":
            shapes["output.weight"] = (rows, n)
        kinds = [_LAYERS[self.architecture][place % 2] for place in range(self.n_layer)]
        self._add_sizes(writer, kinds)
        for place, kind in enumerate(kinds):
            layer = {"attn_norm.weight": (n,)} | getattr(self, f"_{kind}_layer")()
            shapes |= {f"blk.{place}.{name}": shape for name, shape in layer.items()}
        return shapes

    def _add_sizes(self, writer: gguf.GGUFWriter, kinds: Sequence[str]) -> None:
        """The keys that tell the layers' sizes."""
        if self.architecture == "bert":
            writer.add_layer_norm_eps(1e-5)
        else:
            writer.add_layer_norm_rms_eps(1e-5)
        if self.architecture in ("bert", "dream"):
            writer.add_causal_attention(False)
        if self.architecture == "t5":
            writer.add_relative_attn_buckets_count(32)
        if self.architecture == "gemma3":
            writer.add_sliding_window(_WINDOW)
            writer.add_key_length(n_head := self.n_embd // 2)
            writer.add_value_length(n_head)
        if self.architecture != "mamba":
            writer.add_head_count(2)
            writer.add_feed_forward_length(_N_FF)
        if {"scan", "convolution"} & set(kinds) and self.architecture != "mamba":
            writer.add_head_count_kv([2 if kind == "attention" else 0 for kind in kinds])
        if "convolution" in kinds:
            writer.add_shortconv_l_cache(_KERNEL)
        if "delta" in kinds:
            writer.add_full_attention_interval(2)
            writer.add_rope_dimension_sections([4, 6, 6, 0])
            writer.add_ssm_conv_kernel(_KERNEL)
            writer.add_ssm_inner_size(self.n_embd)
            writer.add_ssm_state_size(self.n_embd // 2)
            writer.add_ssm_time_step_rank(2)
            writer.add_ssm_group_count(2)
        if "scan" in kinds or "mamba" in kinds:
            writer.add_ssm_conv_kernel(_KERNEL)
            writer.add_ssm_inner_size(2 * self.n_embd)
            writer.add_ssm_state_size(_STATE)
            writer.add_ssm_time_step_rank(_RANK)

    def _feed_forward(self) -> dict[str, tuple[int, ...]]:
        return {
            "ffn_norm.weight": (self.n_embd,),
            "ffn_gate.weight": (_N_FF, self.n_embd),
            "ffn_up.weight": (_N_FF, self.n_embd),
            "ffn_down.weight": (self.n_embd, _N_FF),
        }

    def _attention_layer(self) -> dict[str, tuple[int, ...]]:
        n = self.n_embd
        layer: dict[str, tuple[int, ...]] = {
            **{f"attn_{part}.weight": (n, n) for part in ("q", "k", "v", "output")},
            **self._feed_forward(),
        }
        if self.architecture in ("lfm2", "gemma3", "qwen35"):
            layer |= {f"attn_{part}_norm.weight": (n // 2,) for part in "qk"}
        if self.architecture == "gemma3":
            layer |= {"post_attention_norm.weight": (n,), "post_ffw_norm.weight": (n,)}
        if self.architecture == "qwen35":  # its queries have gates; its norm of the feed-forward another name
            layer |= {"attn_q.weight": (2 * n, n), "post_attention_norm.weight": (n,)}
            del layer["ffn_norm.weight"]
        return layer

    def _convolution_layer(self) -> dict[str, tuple[int, ...]]:
        n = self.n_embd
        return {
            "shortconv.conv.weight": (n, _KERNEL),
            "shortconv.in_proj.weight": (3 * n, n),
            "shortconv.out_proj.weight": (n, n),
            **self._feed_forward(),
        }

    def _delta_layer(self) -> dict[str, tuple[int, ...]]:
        n = self.n_embd
        layer = {
            "attn_qkv.weight": (3 * n, n),
            "attn_gate.weight": (n, n),
            "ssm_conv1d.weight": (3 * n, _KERNEL),
            "ssm_dt.bias": (2,),
            "ssm_a": (2,),
            "ssm_beta.weight": (2, n),
            "ssm_alpha.weight": (2, n),
            "ssm_norm.weight": (n // 2,),
            "ssm_out.weight": (n, n),
            "post_attention_norm.weight": (n,),
            **self._feed_forward(),
        }
        del layer["ffn_norm.weight"]
        return layer

    def _mamba_layer(self) -> dict[str, tuple[int, ...]]:
        n, inner = self.n_embd, 2 * self.n_embd
        return {
            "ssm_in.weight": (2 * inner, n),
            "ssm_conv1d.weight": (inner, _KERNEL),
            "ssm_conv1d.bias": (inner,),
            "ssm_x.weight": (_RANK + 2 * _STATE, inner),
            "ssm_dt.weight": (inner, _RANK),
            "ssm_dt.bias": (inner,),
            "ssm_a": (inner, _STATE),
            "ssm_d": (inner,),
            "ssm_out.weight": (n, inner),
        }

    def _scan_layer(self) -> dict[str, tuple[int, ...]]:
        norms = {"ssm_dt_norm.weight": (_RANK,)} | {f"ssm_{part}_norm.weight": (_STATE,) for part in "bc"}
        return self._mamba_layer() | norms | self._feed_forward()

    def _weights(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Random matrices that keep a vector's length, a head that gives logits of deviation 3."""
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        key = list(name.encode())
        own = np.random.default_rng([self.seed, *key]).normal(size=shape)
        if self.likeness < 1:
            other = np.random.default_rng([self.seed + 1000, *key]).normal(size=shape)
            own = self.likeness * own + (1 - self.likeness**2) ** 0.5 * other
        scale = {
            "token_embd.weight": 1 / shape[-1] ** 0.5 if self.architecture == "gemma3" else 1.0,
            "output.weight": 3 / shape[-1] ** 0.5,
        }
        if name.endswith("ssm_a"):
            return -np.abs(own).astype(np.float32)
        if name == "output.weight":
            own[np.array(self.vocabulary.types) == _CONTROL] = 0  # so that it does not end at once
        return (own * scale.get(name, 1 / shape[-1] ** 0.5)).astype(np.float32)

"""Proves that the installed llama.cpp runs here: a tiny model, written on the spot, decodes two tokens.

``python -m app.backend.selfcheck [--gpu]`` ends with 0 when it did; with ``--gpu`` a GPU must be there too.
A build made for another processor dies here instead of in the middle of an answer.
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
from pathlib import Path

import llama_cpp

_N_VOCAB = 64
_N_EMBD = 64
_N_FF = 128
_UINT32, _FLOAT32, _STRING = 4, 6, 8  # GGUF value types
_F32, _Q8_0 = 0, 8  # GGML tensor types


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _field(key: str, value: int | float | str) -> bytes:
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, float):
        return _string(key) + struct.pack("<If", _FLOAT32, value)
    return _string(key) + struct.pack("<II", _UINT32, value)


def tiny_gguf() -> bytes:
    """A one-layer llama model of random Q8_0 weights, without a vocabulary, as the bytes of a GGUF file."""
    fields: dict[str, int | float | str] = {
        "general.architecture": "llama",
        "llama.vocab_size": _N_VOCAB,
        "llama.context_length": 64,
        "llama.embedding_length": _N_EMBD,
        "llama.block_count": 1,
        "llama.feed_forward_length": _N_FF,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "none",
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (_N_EMBD, _N_VOCAB),
        "output_norm.weight": (_N_EMBD,),
        "output.weight": (_N_EMBD, _N_VOCAB),
        "blk.0.attn_norm.weight": (_N_EMBD,),
        "blk.0.attn_q.weight": (_N_EMBD, _N_EMBD),
        "blk.0.attn_k.weight": (_N_EMBD, _N_EMBD),
        "blk.0.attn_v.weight": (_N_EMBD, _N_EMBD),
        "blk.0.attn_output.weight": (_N_EMBD, _N_EMBD),
        "blk.0.ffn_norm.weight": (_N_EMBD,),
        "blk.0.ffn_gate.weight": (_N_EMBD, _N_FF),
        "blk.0.ffn_up.weight": (_N_EMBD, _N_FF),
        "blk.0.ffn_down.weight": (_N_FF, _N_EMBD),
    }
    weights = random.Random(0)
    infos, data = b"", b""
    for name, shape in shapes.items():
        kind = _F32 if len(shape) == 1 else _Q8_0
        infos += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", kind, len(data))
        if kind == _F32:
            data += struct.pack(f"<{shape[0]}f", *[1.0] * shape[0])
        else:
            for _ in range(shape[0] * shape[1] // 32):
                data += struct.pack("<e", 0.002) + weights.randbytes(32)
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields))
    head += b"".join(_field(key, value) for key, value in fields.items()) + infos
    return head + bytes(-len(head) % 32) + data


def _decode_two_tokens(path: Path) -> None:
    model_params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        raise SystemExit("llama.cpp could not load a model of its own format")
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = 64
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        raise SystemExit("llama.cpp could not make a context")
    for token in (1, 2):
        batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
        if status := llama_cpp.llama_decode(context, batch):
            raise SystemExit(f"llama_decode returned {status}")
        logits = llama_cpp.llama_get_logits_ith(context, -1)[:_N_VOCAB]
        if len(set(logits)) < 2 or any(logit != logit for logit in logits):
            raise SystemExit("llama.cpp computes nonsense on this machine")
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def main(gpu: bool) -> None:
    """Ends the process with 1 and a line on standard error when the build does not run here."""
    llama_cpp.llama_backend_init()
    if gpu and not llama_cpp.llama_supports_gpu_offload():
        raise SystemExit("this build of llama.cpp finds no GPU here")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tiny.gguf")
        path.write_bytes(tiny_gguf())
        _decode_two_tokens(path)
    print("llama.cpp decodes on this machine")


if __name__ == "__main__":
    main(gpu="--gpu" in sys.argv[1:])

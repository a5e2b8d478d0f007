"""How much memory llama.cpp will take for a model, from a load that allocates nothing.

llama.cpp can simulate a load (``no_alloc``): it places every layer and plans its buffers as it would for a
real one, and tells the sizes of caches and compute buffers in its log. About weights it says nothing there;
those come from the file (see ``weights``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import llama_cpp

from app.backend.context import Context
from app.backend.llama import LOG_TO_STDERR, never_cancelled
from app.backend.model import Model
from app.backend.weights import weights_of
from app.core.memory import RAM, Amount, ModelMemory

_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (.+), is_swa")
_CACHE_LAYER = re.compile(r"llama_kv_cache\w*: layer +\d+: dev = (.+)")
_CACHE = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
_STATE = re.compile(r" (\S+) RS buffer size = +([\d.]+) MiB")
_COMPUTE = re.compile(r" (\S+) +(?:compute|output) buffer size = +([\d.]+) MiB")
_TENSOR_LAYER = re.compile(r"blk\.(\d+)\.")
_MIB = 1 << 20
# From the batch's length on every buffer grows with the context in a straight line.
_FAR = 1 << 16

DeviceOf = Callable[[str], str]
Sizes = Counter[tuple[str, str]]  # bytes by what and device


def memory_of(
    role: str,
    path: Path,
    gpu_layers: int,
    n_batch: int,
    cache_types: tuple[str, str],
    graphics: Sequence[str],
) -> ModelMemory:
    """What the model and a context of one sequence take, with ``graphics`` the names of such devices.

    Raises HeadstartError where it cannot be loaded.
    """

    def device_of(buffer: str) -> str:
        # A device's buffers are called CUDA0 or MTL0_Private, the host's CPU, CPU_Mapped or CUDA_Host.
        return next((name for name in graphics if buffer == name or buffer.startswith(f"{name}_")), RAM)

    log: list[str] = []
    callback = llama_cpp.llama_log_callback(
        lambda level, line, _: log.append(line.decode("utf-8", "replace"))
    )
    llama_cpp.llama_log_set(callback, None)
    try:
        model = Model(path, gpu_layers, no_alloc=True)
        layers = {int(match[1]): device_of(match[2]) for line in log if (match := _LAYER.search(line))}
        n_ctx = max(n_batch, 1024)
        near, far = (
            _buffers(model, n_ctx + more, n_batch, cache_types, log, device_of) for more in (0, _FAR)
        )
        model.close()
    finally:
        llama_cpp.llama_log_set(LOG_TO_STDERR, None)
    amounts = [Amount(what, device, size) for (what, device), size in _weights(path, layers).items()]
    for (what, device), size in near.items():
        per_token = (far[what, device] - size) / _FAR
        amounts.append(Amount(what, device, size - per_token * n_ctx, per_token))
    return ModelMemory(
        role,
        tuple(amounts),
        gpu_layers=sum(device != RAM for device in layers.values()),
        n_ctx_most=(model.n_ctx_train or None) if role == "draft" else None,
    )


def _buffers(
    model: Model, n_ctx: int, n_batch: int, types: tuple[str, str], log: list[str], device_of: DeviceOf
) -> Sizes:
    """The cache and the compute buffers of a context that is made and thrown away."""
    log.clear()
    Context(model, n_ctx, n_batch, 1, never_cancelled(), *types).close()
    sizes = Sizes()
    layers: list[str] = []
    for line in log:
        if match := _CACHE_LAYER.search(line):
            layers.append(device_of(match[1]))
        elif match := _CACHE.search(line):  # one cache's size follows its layers, which are equally large
            for device in layers:
                sizes["cache", device] += round(float(match[1]) * _MIB / len(layers))
            layers.clear()
        elif match := _STATE.search(line):
            sizes["cache", device_of(match[1])] += round(float(match[2]) * _MIB)
        elif match := _COMPUTE.search(line):
            sizes["compute", device_of(match[1])] += round(float(match[2]) * _MIB)
    return sizes


def _weights(path: Path, layers: Mapping[int, str]) -> Sizes:
    """The weights by device, and the copies of those on the processor that ggml repacks."""
    sizes = Sizes()
    for weight in weights_of(path):
        match = _TENSOR_LAYER.match(weight.name)
        layer = int(match[1]) if match else max(layers) if weight.name.startswith("output") else None
        device = RAM if layer is None else layers.get(layer, RAM)
        if device != RAM or not weight.shares:
            sizes["weights", device] += weight.bytes
        if device == RAM and weight.repacked:
            sizes["repacked", RAM] += weight.repacked
    return sizes

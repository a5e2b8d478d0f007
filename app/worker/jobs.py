"""Work that needs llama.cpp for a moment, each job run in a process of its own (see worker.tasks).

A job sends its results through the connection; an error it raises is passed on to the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.backend.context import Context
from app.backend.devices import devices, llama_facts
from app.backend.files import read_facts
from app.backend.llama import never_cancelled
from app.backend.memory import memory_of
from app.backend.model import Model, vocabulary_of
from app.backend.quantize import plan_copy, require_loading, write_copy
from app.core.copies import ModelCopy
from app.core.errors import HeadstartError
from app.core.layers import layers_that_fit
from app.core.memory import by_device
from app.core.models import USABLE_KINDS, WHY_UNUSABLE, PairCheck
from app.core.settings import LoadSettings
from app.core.split import parts
from app.core.vocabulary import compare
from app.engine.agreement import agreeing
from app.worker.machine import usable_cores

Send = Callable[[Any], None]
Texts = Sequence[tuple[Sequence[int], Sequence[int]]]  # ids of prompts and of what followed them


def inspect(send: Send, paths: Sequence[Path]) -> None:
    """Send (path, facts or the reason why there are none) for each file."""
    for path in paths:
        try:
            send((path, read_facts(path)))
        except HeadstartError as error:
            send((path, error.what))


def check(send: Send, target: Path, drafts: Sequence[Path]) -> None:
    """Send (path, PairCheck) for each draft."""
    target_kind = read_facts(target).kind
    with vocabulary_of(target) as model:
        ours = model.vocabulary()
    for path in drafts:
        try:
            kinds = {"target": target_kind, "draft": read_facts(path).kind}
            unusable = [
                f"the {role} cannot be used: {WHY_UNUSABLE[kind]}"
                for role, kind in kinds.items()
                if kind not in USABLE_KINDS
            ]
            if unusable:
                send((path, PairCheck(False, tuple(unusable))))
                continue
            with vocabulary_of(path) as model:
                send((path, compare(ours, model.vocabulary())))
        except HeadstartError as error:
            send((path, PairCheck(False, (error.what,))))


def facts(send: Send) -> None:
    """Send the llama.cpp build's facts."""
    send(llama_facts())


def plan(send: Send, source: Path, wanted: ModelCopy) -> None:
    """Send the plan of a copy."""
    send(plan_copy(source, wanted))


def copy(send: Send, source: Path, destination: Path, wanted: ModelCopy) -> None:
    """Send the number of each tensor while a copy is written, from 1."""
    write_copy(source, destination, wanted, usable_cores(), send)
    if wanted.skipped_layers:
        require_loading(destination, wanted)


def agreement(send: Send, model: Path, texts: Texts) -> None:
    """Send how many of the texts' output ids the model ranks first, of how many."""
    send(_agreement(model, texts))


def cut_agreements(
    send: Send, model: Path, scratch: Path, cuts: Sequence[tuple[int, ...]], texts: Texts
) -> None:
    """Send the same for the model without some of its layers, cut by cut; ``scratch`` is written over."""
    for layers in cuts:
        write_copy(model, scratch, ModelCopy(None, layers), usable_cores(), lambda number: None)
        send(_agreement(scratch, texts))


def _agreement(path: Path, texts: Texts) -> tuple[int, int]:
    layers = layers_that_fit(path.stat().st_size, read_facts(path).n_layer, devices())
    n_ctx = max(len(prompt) + len(output) for prompt, output in texts)
    model = Model(path, layers)
    try:
        context = Context(model, n_ctx, min(512, n_ctx), usable_cores(), never_cancelled())
        try:
            right = sum(agreeing(context, *text) for text in texts)
        finally:
            context.close()
    finally:
        model.close()
    return right, sum(len(output) for _, output in texts)


def memory(send: Send, load: LoadSettings, given_back: Mapping[str, int]) -> None:
    """Send the devices, then the ModelMemory of the target, and of the draft if there is one.

    ``given_back`` says how much more than now will be free on graphics devices before the load.
    """
    send(devices())
    graphics = [
        dataclasses.replace(device, memory_free=device.memory_free + given_back.get(device.name, 0))
        for device in devices()
        if device.kind in ("gpu", "igpu")
    ]
    names = [device.name for device in graphics]
    for role, path, layers, types in (
        ("target", load.target, load.gpu_layers, (load.cache_type_k, load.cache_type_v)),
        ("draft", load.draft, load.draft_gpu_layers, (load.draft_cache_type_k, load.draft_cache_type_v)),
    ):
        if path is None:
            continue
        if layers is None:
            size = sum(part.stat().st_size for part in parts(path))
            layers = layers_that_fit(size, read_facts(path).n_layer, graphics) if graphics else 0
        taken = memory_of(role, path, layers, load.n_batch, types, names)
        send(taken)
        needs = by_device(taken.parts(load.n_ctx))
        graphics = [
            dataclasses.replace(device, memory_free=max(device.memory_free - needs[device.name], 0))
            for device in graphics
        ]

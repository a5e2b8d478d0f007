"""Work that needs llama.cpp for a moment, each job run in a process of its own (see worker.tasks).

A job sends its results through the connection; an error it raises is passed on to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.backend.devices import llama_facts
from app.backend.files import read_facts
from app.backend.llama import vocabulary_of
from app.backend.quantize import plan_copy, write_copy
from app.core.copies import ModelCopy
from app.core.errors import HeadstartError
from app.core.models import WHY_UNUSABLE, PairCheck
from app.core.vocabulary import compare
from app.worker.machine import usable_cores

Send = Callable[[Any], None]


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
                if kind != "model"
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

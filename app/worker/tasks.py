"""What the main process asks of llama.cpp without loading it: each call runs a process of its own.

A file that crashes the reader harms only that process.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.core.copies import CopyPlan, ModelCopy
from app.core.errors import Cancelled, HeadstartError
from app.core.memory import ModelMemory
from app.core.models import Device, LlamaFacts, ModelFacts, PairCheck
from app.core.settings import LoadSettings
from app.worker.child import deaf_to_ctrl_c, prepare, reason_of_death

_spawn = multiprocessing.get_context("spawn")
SILENT_S = 60.0  # what reading the head of one file may take
Texts = Sequence[tuple[Sequence[int], Sequence[int]]]


def inspect_models(
    paths: Sequence[Path], on_result: Callable[[Path, ModelFacts | str], None] | None = None
) -> dict[Path, ModelFacts | str]:
    """Facts of each file, or the reason why it cannot be read; ``on_result`` is told each as it comes."""
    results: dict[Path, ModelFacts | str] = {}

    def keep(path: Path, result: ModelFacts | str) -> None:
        results[path] = result
        if on_result:
            on_result(path, result)

    while unread := [path for path in paths if path not in results]:
        try:
            for path, result in _run("inspect", list(unread), silent_s=SILENT_S):
                keep(path, result)
        except _ChildDied:
            for crashed in [path for path in unread if path not in results][:1]:
                keep(crashed, "the file makes llama.cpp's reader crash or hang")
    return results


def check_drafts(target: Path, drafts: Sequence[Path]) -> dict[Path, PairCheck]:
    """For each draft whether it fits the target. Raises HeadstartError where the target cannot be read."""
    results: dict[Path, PairCheck] = {}
    while unread := [path for path in drafts if path not in results]:
        try:
            results.update(_run("check", target, unread, silent_s=SILENT_S))
        except _ChildDied:
            for crashed in [path for path in unread if path not in results][:1]:
                results[crashed] = PairCheck(False, ("reading the pair makes llama.cpp crash or hang",))
    return results


def check_pair(target: Path, draft: Path) -> PairCheck:
    """Whether a draft fits a target. Raises HeadstartError where the target cannot be read."""
    return check_drafts(target, [draft])[draft]


def llama_cpp_facts() -> LlamaFacts:
    """The llama.cpp build in use. Raises HeadstartError where it cannot run here."""
    found: LlamaFacts = next(_run("facts"))
    return found


def list_devices() -> tuple[Device, ...]:
    """ggml's devices. Raises HeadstartError where llama.cpp cannot run here."""
    return llama_cpp_facts().devices


def memory_of(
    load: LoadSettings, given_back: Mapping[str, int]
) -> tuple[tuple[Device, ...], tuple[ModelMemory, ...]]:
    """ggml's devices, and what the target takes of them, then the draft; ``given_back`` as in the job.

    Raises HeadstartError where a model cannot be loaded.
    """
    found, *models = _run("memory", load, given_back)
    return found, tuple(models)


def plan_copy(source: Path, copy: ModelCopy) -> CopyPlan:
    """What a copy of a model will be. Raises HeadstartError where it can't be made."""
    plan: CopyPlan = next(_run("plan", source, copy))
    return plan


def write_copy(
    source: Path,
    destination: Path,
    copy: ModelCopy,
    on_tensor: Callable[[int], None],
    cancelled: Callable[[], bool],
) -> None:
    """Write a copy of a model; ``on_tensor`` is told the number of each tensor as it begins, from 1.

    Raises HeadstartError where it fails and Cancelled; what was written of ``destination`` is then left to
    the caller.
    """
    for number in _run("copy", source, destination, copy, cancelled=cancelled):
        on_tensor(number)


def agreement(model: Path, texts: Texts, cancelled: Callable[[], bool]) -> float:
    """The share of the texts' output ids that the model ranks first, each behind those before it.

    ``texts``: pairs of prompt ids and output ids. Raises HeadstartError and Cancelled.
    """
    right, total = next(_run("agreement", model, texts, cancelled=cancelled))
    return float(right / total)


def cut_agreements(
    model: Path, scratch: Path, cuts: Sequence[tuple[int, ...]], texts: Texts, cancelled: Callable[[], bool]
) -> Iterator[float]:
    """The same for the model without some of its layers, cut by cut.

    ``scratch`` is a file to write over, left to the caller. Raises HeadstartError and Cancelled.
    """
    for right, total in _run("cut_agreements", model, scratch, cuts, texts, cancelled=cancelled):
        yield right / total


class _ChildDied(HeadstartError):
    """The process ended at its work, without a word."""


def _run(
    job: str,
    *arguments: Any,
    cancelled: Callable[[], bool] = lambda: False,
    silent_s: float = math.inf,
) -> Iterator[Any]:
    """Run a function of worker.jobs in a process of its own and yield what it sends.

    One that has started and then sends nothing for ``silent_s`` seconds counts as dead.
    """
    ours, theirs = _spawn.Pipe()
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
        log = Path(folder) / "log"
        child = _spawn.Process(target=_job_main, args=(theirs, str(log), job, arguments), daemon=True)
        with deaf_to_ctrl_c():
            child.start()
        theirs.close()
        started = False
        heard_at = time.monotonic()
        try:
            while True:
                arrived = ours.poll(0.1)
                if cancelled():
                    raise Cancelled
                if not arrived:
                    if started and time.monotonic() - heard_at > silent_s:
                        raise _ChildDied("the file reader gives no sign of life", "leave this file out")
                    continue
                heard_at = time.monotonic()
                kind, value = ours.recv()
                if kind == "done":
                    return
                if kind == "error":
                    raise value
                if kind == "value":
                    yield value
                started = True
        except (EOFError, OSError):
            child.join()
            output = log.read_text("utf-8", "replace") if log.exists() else ""
            died = _ChildDied if started else HeadstartError
            reason = reason_of_death(child.exitcode or 0, output)
            raise died(reason, "run 'python launch.py doctor'") from None
        finally:
            ours.close()
            child.kill()
            child.join()


def _job_main(connection: Connection[Any, Any], log: str, job: str, arguments: Sequence[Any]) -> None:
    prepare(log)
    try:
        work = getattr(importlib.import_module("app.worker.jobs"), job)  # loads llama.cpp
        connection.send(("started", None))
        work(lambda value: connection.send(("value", value)), *arguments)
        connection.send(("done", None))
    except HeadstartError as error:
        connection.send(("error", error))
    except BrokenPipeError:
        pass

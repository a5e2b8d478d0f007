"""Copies of model files: a cheaper one as its own target's draft, or the same model in another type."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.copies import CopyPlan, ModelCopy, check_type, layers_text, layers_to_skip
from app.core.errors import Cancelled, HeadstartError, UsageError
from app.core.models import WHY_UNUSABLE, ModelFacts
from app.core.paths import models_dir, user_data_dir
from app.core.split import parts
from app.library import cache
from app.library.fetch import DISK_MARGIN, size_text
from app.worker import tasks

# (what is being done, parts of it done, parts of it to do); called often, also while nothing changes.
OnProgress = Callable[[str, int, int], None]

USUAL_TYPE = "Q4_K_M"
QUANT_ENDING = re.compile(r"[-._](i?q\d\w*|b?f16|fp16|f32)$", re.IGNORECASE)
# What a draft's metadata says of the file that it was made from.
SOURCE_SHA256, SOURCE_NAME, SKIPPED = (
    f"headstart.{key}" for key in ("source.sha256", "source.name", "skipped_layers")
)
WRITING, TRIAL = ".writing", ".trial"  # endings of files that are not to stay
_LONGEST_VALUE = 127  # bytes of a metadata value
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Making:
    """A copy of ``source`` that can be made: where to, and what it will be.

    ``target``: the file that it is to draft for, where it is a draft; the new file remembers it.
    """

    source: Path
    destination: Path
    copy: ModelCopy
    plan: CopyPlan
    target: Path | None = None


def facts_of(target: Path) -> ModelFacts:
    """The facts of a file that can be copied. Raises HeadstartError for one that can't be."""
    if len(parts(target)) > 1:
        raise HeadstartError(
            f"{target.name} is one part of a split model, which can't be copied",
            "join the parts with llama.cpp's `llama-gguf-split --merge` first",
        )
    facts = tasks.inspect_models([target])[target]
    if isinstance(facts, str):
        raise HeadstartError(f"can't read {target}: {facts}")
    if facts.kind in WHY_UNUSABLE:
        raise HeadstartError(f"{target.name} can't be copied: {WHY_UNUSABLE[facts.kind]}")
    return facts


def plan_draft(
    target: Path,
    file_type: str | None = None,
    skip: str | None = None,
    name: str | None = None,
    output: Path | None = None,
) -> Making:
    """What making a draft of ``target`` from itself will take; a second, in helper processes.

    Args:
        file_type: None: Q4_K_M, or the types that the target has where those are smaller.
        skip: layers to leave out, as core.copies.layers_to_skip reads them.
        name: the new file's name in the models folder, without its ending.
        output: the new file itself, instead.

    Raises:
        UsageError: an unknown type or layer, a name that is none.
        HeadstartError: this target can't be copied so, or the copy would not be cheaper.
    """
    file_type = file_type and check_type(file_type)
    facts = facts_of(target)
    layers: tuple[int, ...] = ()
    if skip:
        if facts.kind != "model":
            raise HeadstartError(
                f"layers of {target.name} can't be left out: its memory is partly recurrent",
                "choose a smaller type instead",
            )
        layers = layers_to_skip(skip, facts.n_layer)
    types = [file_type] if file_type else [USUAL_TYPE, *([None] if layers else [])]
    copies = [ModelCopy(type_, layers) for type_ in types]
    plans = [(copy, tasks.plan_copy(target, copy)) for copy in copies]
    copy, plan = min(plans, key=lambda pair: pair[1].pass_bytes)
    if plan.cost >= 1:
        raise HeadstartError(
            f"as {file_type or USUAL_TYPE} {target.name} would cost {plan.cost:.2f} times what it costs now,"
            " and a draft must cost less",
            "choose a smaller type, or leave layers out",
        )
    return Making(target, place_of(target, copy, name, output), copy, plan, target)


def plan_copy(target: Path, file_type: str, output: Path | None = None) -> Making:
    """What writing ``target`` in another type will take. Raises as ``plan_draft``."""
    file_type = check_type(file_type)
    facts_of(target)
    stem = QUANT_ENDING.sub("", target.stem)
    output = _free(output or models_dir() / f"{stem}-{file_type.lower()}.gguf")
    copy = ModelCopy(file_type)
    return Making(target, output, copy, tasks.plan_copy(target, copy))


def make(making: Making, on_progress: OnProgress, cancelled: Callable[[], bool] = lambda: False) -> Path:
    """Write the copy and return its path.

    It grows beside its place and is renamed when it is whole; whatever ends this, nothing else is left.
    Raises HeadstartError, and Cancelled where ``cancelled`` returned true.
    """
    with only_one():
        remove_leftovers(making.destination.parent)
        return write(making, making.destination, on_progress, cancelled)


def write(making: Making, path: Path, on_progress: OnProgress, cancelled: Callable[[], bool]) -> Path:
    """As ``make`` to another path, for one who holds ``only_one``."""
    copy = making.copy
    if making.target:
        known = sha256(making.target, on_progress, cancelled)
        copy = replace(copy, metadata=_metadata(making.target, known, copy.skipped_layers))
    beside = path.with_name(path.name + WRITING)
    step, total = f"writing {path.name}", making.plan.tensors
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_disk(making, path.parent)
        on_progress(step, 0, total)
        tasks.write_copy(
            making.source, beside, copy, lambda number: on_progress(step, number - 1, total), cancelled
        )
        on_progress(step, total, total)
        beside.replace(path)
    except OSError as error:
        raise HeadstartError(f"can't write {path}: {error.strerror}", "choose another place") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock on making files: it needs all cores, and two must not write one file."""
    from filelock import FileLock, Timeout

    file = user_data_dir() / "locks" / "making.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise HeadstartError(
            "a model file is being made already", "wait for that, or stop it and repeat this"
        ) from None
    try:
        yield
    finally:
        lock.release()


def sha256(path: Path, on_progress: OnProgress, cancelled: Callable[[], bool]) -> str:
    """A file's SHA-256, remembered until the file changes. Raises Cancelled."""
    if known := cache.recall(path, "sha256"):
        return str(known)
    digest, total = hashlib.sha256(), path.stat().st_size
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                on_progress(f"reading {path.name}", file.tell(), total)
                if cancelled():
                    raise Cancelled
    except OSError as error:
        raise HeadstartError(f"can't read {path}: {error.strerror}") from error
    cache.remember(path, "sha256", digest.hexdigest())
    return digest.hexdigest()


def place_of(target: Path, copy: ModelCopy, name: str | None = None, output: Path | None = None) -> Path:
    """Where a draft goes: ``name`` and ``output`` as in ``plan_draft``, which raises the same."""
    return _free(output or models_dir() / f"{_file_name(name) if name else draft_name(target, copy)}.gguf")


def draft_name(target: Path, copy: ModelCopy) -> str:
    """How a draft is called where nobody names it."""
    words = [QUANT_ENDING.sub("", target.stem), "draft"]
    if copy.file_type:
        words.append(copy.file_type.lower())
    if copy.skipped_layers:
        words.append(f"cut{len(copy.skipped_layers)}")
    return "-".join(words)


def copy_words(copy: ModelCopy) -> str:
    """A copy in words."""
    words = copy.file_type or "types as they are"
    if copy.skipped_layers:
        words += f" without layers {layers_text(copy.skipped_layers)}"
    return words


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half made; for one who holds ``only_one``."""
    for ending in (WRITING, TRIAL):
        for left in folder.glob(f"*.gguf{ending}"):
            with contextlib.suppress(OSError):
                left.unlink()


def _metadata(target: Path, digest: str, skipped: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    name = target.name.encode("utf-8", "replace")[:_LONGEST_VALUE].decode("utf-8", "ignore")
    found = [(SOURCE_SHA256, digest), (SOURCE_NAME, name)]
    if skipped:
        found.append((SKIPPED, layers_text(skipped)[:_LONGEST_VALUE]))
    return tuple(found)


def _file_name(name: str) -> str:
    name = name.strip().removesuffix(".gguf")
    if not name or name.startswith(".") or set(name) & set('/\\:*?"<>|') or not name.isprintable():
        raise UsageError(f"'{name}' is no name for a file; use letters, numbers, spaces, dots and dashes")
    return name


def _free(output: Path) -> Path:
    output = output.expanduser().absolute()
    if output.suffix.lower() != ".gguf":
        raise UsageError(f"the output '{output}' must end in .gguf")
    if output.exists():
        raise HeadstartError(f"{output} exists already", "remove it, or choose another name")
    return output


def _require_disk(making: Making, folder: Path) -> None:
    needed = making.plan.size_bytes + DISK_MARGIN
    if (free := shutil.disk_usage(folder).free) < needed:
        raise HeadstartError(
            f"{making.destination.name} needs about {size_text(needed)} of disk in {folder}, "
            f"and {size_text(free)} are free",
            f"free {size_text(needed - free)} first",
        )

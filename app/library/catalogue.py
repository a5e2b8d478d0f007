"""The model files on disk: what each is, what it is called, and which can be loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib.metadata
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.models import USABLE_KINDS, ModelFacts
from app.core.paths import models_dir
from app.core.split import model_name, parts
from app.library import cache, folders
from app.library.folders import Found
from app.library.presets import Preset, PresetModel, load_models
from app.worker import tasks

# Reading costs a process, so a failure is kept; not for long, as it may be the moment's: no memory was left.
FAILURE_LASTS_S = 120.0
_failures: dict[Path, tuple[str, float, str]] = {}
_reading = threading.Lock()


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF on this machine; ``name`` is no other file's.

    ``kind`` is that of its facts, or ``broken``, ``incomplete`` (parts of a split model are missing) or
    ``unfinished`` (a download that stopped); only USABLE_KINDS can be loaded. ``problem`` is the reason where
    there are no facts. ``size_bytes`` covers all files of a split model, ``path`` is the first. ``sha256`` is
    None where nobody has computed it yet. ``source`` is that of the place it lies in (see folders.Place).
    """

    name: str
    path: Path
    size_bytes: int
    kind: str
    facts: ModelFacts | None = None
    problem: str | None = None
    sha256: str | None = None
    source: str = "models"

    @property
    def is_usable(self) -> bool:
        """Whether it can be a target or a draft."""
        return self.kind in USABLE_KINDS


def list_models(on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]:
    """Every model file in all places, by name.

    New or changed files are read in a helper process, about 0.3 s each; ``on_read(done, total)`` follows it.
    """
    files = scan()
    with _reading:  # whoever asks meanwhile finds it all remembered
        facts = _facts([file.path for file in files if not file.problem], on_read)
    return [file if file.problem else _described(file, facts[file.path]) for file in files]


def described(path: Path) -> ModelFile:
    """A file in any folder, as ``list_models`` would have it. Raises OSError where it is gone."""
    file = _looked_at(model_name(path), path)
    return file if file.problem else _described(file, _facts([path])[path])


def _facts(
    whole: list[Path], on_read: Callable[[int, int], None] | None = None
) -> dict[Path, ModelFacts | str]:
    facts: dict[Path, ModelFacts | str] = {
        path: known for path in whole if (known := _remembered_facts(path)) is not None
    }
    unread = [path for path in whole if path not in facts]

    def keep(path: Path, result: ModelFacts | str) -> None:
        facts[path] = result
        if isinstance(result, ModelFacts):
            cache.remember(path, learnt("facts"), dataclasses.asdict(result))
        else:
            with contextlib.suppress(OSError):
                _failures[path] = (cache.stamp(path), time.monotonic(), result)
        if on_read:
            on_read(sum(path in facts for path in unread), len(unread))

    if unread:
        tasks.inspect_models(unread, keep)
    return facts


def resolve(text: str) -> Path:
    """The absolute path of a model given as a path or as a name that ``list_models`` shows.

    Raises:
        HeadstartError: there is none, or the file is not a whole GGUF.
    """
    path = existing(text)
    if path and path.is_file():
        file = _looked_at(text, next(part for part in parts(path) if part.is_file()))
    elif found := named(text, files := scan()):
        file = found
    elif path and path.is_dir():
        remedy = "give a .gguf file in it, or a name that `models list` shows"
        raise HeadstartError(f"'{text}' is a folder", remedy)
    else:
        raise unknown(text, [file.name for file in files])
    if file.problem:
        raise HeadstartError(f"'{text}' can't be loaded: {file.problem}")
    return file.path


def name_of(path: Path) -> str:
    """What ``list_models`` calls a file, or the file's own name where that does not list it."""
    return next((file.name for file in scan() if file.path == path), model_name(path))


def missing(preset: Preset) -> list[PresetModel]:
    """The preset's files that are not in the models folder (told by name and size, without hashing)."""
    return [model for model in preset.models if not is_here(model)]


def is_here(model: PresetModel) -> bool:
    """Whether all its files are in the models folder, told by name and size."""
    path = path_of(model)
    if not model.is_exact:
        return all(part.is_file() for part in parts(path))
    return path.is_file() and path.stat().st_size == model.size


def path_of(model: PresetModel) -> Path:
    """Where the model's file is, or will be once it is fetched."""
    return models_dir() / model.place


def near_names(text: str, names: Iterable[str]) -> list[str]:
    """At most three names that a person may have meant: those that contain the text, else those like it."""
    by_key = {name.casefold(): name for name in names}
    wanted = text.casefold()
    containing = [key for key in by_key if wanted in key] if wanted else []
    near = containing[:3] or difflib.get_close_matches(wanted, by_key, n=3, cutoff=0.4)
    return [by_key[key] for key in near]


def header_problem(path: Path) -> str | None:
    """Why a file can't be a GGUF, told from its first bytes, or None."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as error:
        return f"it can't be read ({error.strerror})"
    if start[:4] == b"GGUF":
        return None
    if not start:
        return "the file is empty"
    if not start.strip(b"\0"):
        return "it begins with zeros: a download that broke off"
    if start.lstrip()[:1] == b"<":
        return "it is a web page, not a model: the download answered with an error page"
    if start[:4] == b"FUGG":
        return "it is a GGUF for big-endian machines"
    return "it is not a GGUF file"


def learnt(what: str) -> str:
    """The cache's key for what llama.cpp said: another one may read what this can't, and the other way."""
    return f"{what} by llama-cpp-python {_llama_cpp()}"


@functools.cache
def _llama_cpp() -> str:
    return importlib.metadata.version("llama-cpp-python")


def _remembered_facts(path: Path) -> ModelFacts | str | None:
    with contextlib.suppress(OSError, KeyError):
        stamp, since, reason = _failures[path]
        if stamp == cache.stamp(path) and time.monotonic() < since + FAILURE_LASTS_S:
            return reason
    value = cache.recall(path, learnt("facts"))
    try:
        return ModelFacts(**value) if isinstance(value, dict) else None
    except TypeError:  # written by a version with other fields
        return None


def _described(file: ModelFile, facts: ModelFacts | str) -> ModelFile:
    sha256 = file.sha256 or cache.recall(file.path, "sha256")
    if isinstance(facts, str):
        return dataclasses.replace(file, kind="broken", problem=facts, sha256=sha256)
    return dataclasses.replace(file, kind=facts.kind, facts=facts, sha256=sha256)


def scan() -> list[ModelFile]:
    """The files by name, looked at but not read: those without a problem still have the kind ``model``.

    A file that several places lead to belongs to the first. Names are given place by place, so that what is
    found in another never renames a file in models/.
    """
    files: list[ModelFile] = []
    seen: set[str] = set()
    taken: set[str] = set()
    for place in folders.places():
        found = []
        for each in folders.files_in(place):
            if _is_first_part(each.path) and (real := os.path.realpath(each.path)) not in seen:
                seen.add(real)
                found.append(each)
        for each, name in zip(found, _distinct_names(found, taken), strict=True):
            with contextlib.suppress(OSError):  # a finished download is renamed at any time
                file = _looked_at(name, each.path)
                files.append(dataclasses.replace(file, source=place.source, sha256=each.sha256))
    return sorted(files, key=lambda file: file.name.casefold())


def _is_first_part(path: Path) -> bool:
    return next(part for part in parts(path) if part == path or part.is_file()) == path


def _distinct_names(found: list[Found], taken: set[str]) -> list[str]:
    """For each file the shortest of its names that is not taken and no other of them wants; now taken."""
    names: dict[int, str] = {}
    for level in range(max((len(each.names) for each in found), default=0)):
        wanted = {
            place: each.names[min(level, len(each.names) - 1)]
            for place, each in enumerate(found)
            if place not in names
        }
        count = Counter(name.casefold() for name in wanted.values())
        for place, name in wanted.items():
            is_last = level >= len(found[place].names) - 1
            if is_last or (count[name.casefold()] == 1 and name.casefold() not in taken):
                names[place] = name
        taken.update(name.casefold() for name in names.values())
    return [names[place] for place in range(len(found))]


def existing(text: str) -> Path | None:
    """The absolute path of what the text names on the disk, if it does."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, a NUL in it, a ~ without a home
        path = Path(text).expanduser().absolute()
        if text and (path.is_symlink() or path.exists()):
            return path
    return None


def _asking_for(part: Path) -> str:
    """What ``models get`` wants to go on with a download: the file in its repository, or a model's name."""
    file = part.with_suffix("")
    inner = file.relative_to(models_dir()).parts if models_dir() in file.parents else ()
    return f"{inner[0]}/{inner[1]}:{'/'.join(inner[2:])}" if len(inner) > 2 else file.stem


def as_text(text: str) -> str:
    """A name on the disk, whose bytes may be no text, as text that can be written anywhere."""
    return text.encode("utf-8", "replace").decode()


def _looked_at(name: str, path: Path) -> ModelFile:
    if as_text(str(path)) != str(path):
        why = "its name or that of its folder is not UTF-8: rename it"
        return ModelFile(as_text(name), path, path.stat().st_size, "broken", problem=why)
    if path.suffix == ".part":
        problem = f"an unfinished download, `models get {_asking_for(path)}` goes on with it"
        return ModelFile(name, path, path.stat().st_size, "unfinished", problem=problem)
    all_parts = parts(path)
    there = [part for part in all_parts if part.is_file()]
    size = sum(part.stat().st_size for part in there)
    if lacking := [part.name for part in all_parts if part not in there]:
        problem = f"{len(lacking)} of its {len(all_parts)} files are missing, the first is {lacking[0]}"
        return ModelFile(name, path, size, "incomplete", problem=problem)
    broken = next(filter(None, map(header_problem, there)), None)
    return ModelFile(name, path, size, "broken" if broken else "model", problem=broken)


def named(text: str, files: list[ModelFile]) -> ModelFile | None:
    """The file of that name; letter case and ``.gguf`` count only where they tell two apart."""
    folded = text.casefold()
    for fits in (
        lambda name: name == text,
        lambda name: name.casefold() in (folded, folded.removesuffix(".gguf")),
    ):
        if found := [file for file in files if fits(file.name)]:
            return found[0]
    return None


def unknown(text: str, names: list[str]) -> HeadstartError:
    """What to say of a text that names nothing here, with the nearest of ``names``."""
    fetchable = load_models()[0]
    if text in fetchable:
        return HeadstartError(f"the model '{text}' is not here yet", f"`models get {text}` fetches it")
    near = near_names(text, [*names, *fetchable])
    remedy = f"did you mean {' or '.join(near)}?" if near else "`models list` shows the names"
    return HeadstartError(f"there is no file and no model '{text}'", remedy)

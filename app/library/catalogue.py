"""The model files on disk: what each is, which can be loaded, and which drafts fit a target."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib.metadata
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.models import ModelFacts, PairCheck
from app.core.paths import models_dir
from app.library import cache
from app.library.presets import Preset, PresetModel, load_models
from app.worker import tasks

SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF in the models folder.

    ``kind`` is that of its facts, or ``broken``, ``incomplete`` (parts of a split model are missing) or
    ``unfinished`` (a download that stopped); only a ``model`` can be loaded. ``problem`` is the reason where
    there are no facts. ``size_bytes`` covers all files of a split model, ``path`` is the first. ``sha256`` is
    None where nobody has computed it yet.
    """

    name: str
    path: Path
    size_bytes: int
    kind: str
    facts: ModelFacts | None = None
    problem: str | None = None
    sha256: str | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it can be a target or a draft."""
        return self.kind == "model"


def list_models(on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]:
    """Every model file in the models folder, by name.

    New or changed files are read in a helper process, about 0.3 s each; ``on_read(done, total)`` follows it.
    """
    files = _scan()
    whole = [file.path for file in files if not file.problem]
    facts: dict[Path, ModelFacts | str] = {
        path: known for path in whole if (known := _remembered_facts(path)) is not None
    }
    unread = [path for path in whole if path not in facts]

    def keep(path: Path, result: ModelFacts | str) -> None:
        facts[path] = result
        # A failure may be the moment's (no memory left), so it is not remembered.
        if isinstance(result, ModelFacts):
            cache.remember(path, _key("facts"), dataclasses.asdict(result))
        if on_read:
            on_read(sum(path in facts for path in unread), len(unread))

    if unread:
        tasks.inspect_models(unread, keep)
    return [file if file.problem else _described(file, facts[file.path]) for file in files]


def resolve(text: str) -> Path:
    """The absolute path of a model given as a path or as a name that ``list_models`` shows.

    Raises:
        HeadstartError: there is none, or the file is not a whole GGUF.
    """
    files = _scan()
    try:
        path = Path(text).expanduser().absolute()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, a ~ without a home
        path, is_file, is_folder = Path(), False, False
    if is_file:
        known = [file for file in files if file.path == path]
        file = known[0] if known else _looked_at(text, path)
    elif named := _named(text, files):
        file = named
    elif is_folder and text:
        remedy = "give a .gguf file in it, or a name that `models list` shows"
        raise HeadstartError(f"'{text}' is a folder", remedy)
    else:
        raise _unknown(text, [file.name for file in files])
    if file.problem:
        raise HeadstartError(f"'{text}' can't be loaded: {file.problem}")
    return file.path


def drafts_for(target: Path) -> list[tuple[ModelFile, PairCheck]]:
    """Every usable model on disk as a draft of ``target``: those that fit first, smallest first.

    The target's own file is among them. Checks run in a helper process and are remembered.
    """
    files = [file for file in list_models() if file.is_usable]

    def key(draft: Path) -> str:
        return _key(f"draft {draft} {cache.stamp(draft)}")

    checks: dict[Path, PairCheck] = {}
    for file in files:
        if known := cache.recall(target, key(file.path)):
            checks[file.path] = PairCheck(fits=known["fits"], reasons=tuple(known["reasons"]))
    if unknown := [file.path for file in files if file.path not in checks]:
        for draft, check in tasks.check_drafts(target, unknown).items():
            checks[draft] = check
            cache.remember(target, key(draft), dataclasses.asdict(check))
    pairs = [(file, checks[file.path]) for file in files]
    return sorted(pairs, key=lambda pair: (not pair[1].fits, pair[0].size_bytes))


def missing(preset: Preset) -> list[PresetModel]:
    """The preset's files that are not in the models folder (told by name and size, without hashing)."""
    return [model for model in preset.models if not _has_size(path_of(model), model.size)]


def path_of(model: PresetModel) -> Path:
    """Where the model's file is, or will be once it is fetched."""
    return models_dir() / model.file_name


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


@functools.cache
def _llama_cpp() -> str:
    return importlib.metadata.version("llama-cpp-python")


def _key(what: str) -> str:
    # Another llama.cpp may read what this one can't, and the other way round.
    return f"{what} by llama-cpp-python {_llama_cpp()}"


def _remembered_facts(path: Path) -> ModelFacts | None:
    value = cache.recall(path, _key("facts"))
    try:
        return ModelFacts(**value) if isinstance(value, dict) else None
    except TypeError:  # written by a version with other fields
        return None


def _described(file: ModelFile, facts: ModelFacts | str) -> ModelFile:
    sha256 = cache.recall(file.path, "sha256")
    if isinstance(facts, str):
        return dataclasses.replace(file, kind="broken", problem=facts, sha256=sha256)
    return dataclasses.replace(file, kind=facts.kind, facts=facts, sha256=sha256)


def _scan() -> list[ModelFile]:
    """The files by name, looked at but not read: those without a problem still have the kind ``model``."""
    folder = models_dir()
    files = []
    for path in filter(_is_first_part, _gguf_files(folder)):
        with contextlib.suppress(FileNotFoundError):  # a finished download is renamed at any time
            files.append(_looked_at(_stem(path), path))
    for longer in (_with_folder, _with_suffix):
        count = Counter(file.name.casefold() for file in files)
        files = [longer(file, folder) if count[file.name.casefold()] > 1 else file for file in files]
    return sorted(files, key=lambda file: file.name.casefold())


def _with_folder(file: ModelFile, folder: Path) -> ModelFile:
    return dataclasses.replace(file, name=(file.path.relative_to(folder).parent / file.name).as_posix())


def _with_suffix(file: ModelFile, folder: Path) -> ModelFile:
    return dataclasses.replace(file, name=file.path.relative_to(folder).as_posix())


def _gguf_files(folder: Path) -> Iterator[Path]:
    inside = Path(os.path.realpath(folder))
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            leads_out = not Path(os.path.realpath(path)).is_relative_to(inside)
            if name.lower().endswith((".gguf", ".gguf.part")) and not leads_out and path.is_file():
                yield path


def _stem(path: Path) -> str:
    if path.suffix == ".part":
        return path.name
    split = _split(path)
    return split["stem"] if split else path.stem


def _split(path: Path) -> re.Match[str] | None:
    split = SPLIT.fullmatch(path.stem)
    return split if split and 1 <= int(split["part"]) <= int(split["parts"]) else None


def _parts(path: Path) -> list[Path]:
    """All files of the model that ``path`` belongs to, whether they are there or not."""
    if not (split := _split(path)):
        return [path]
    stem, of = split["stem"], split["parts"]
    return [path.with_stem(f"{stem}-{part:05}-of-{of}") for part in range(1, int(of) + 1)]


def _is_first_part(path: Path) -> bool:
    return next(part for part in _parts(path) if part == path or part.is_file()) == path


def _looked_at(name: str, path: Path) -> ModelFile:
    if path.suffix == ".part":
        problem = f"an unfinished download, `models get {Path(path.stem).stem}` goes on with it"
        return ModelFile(name, path, path.stat().st_size, "unfinished", problem=problem)
    parts = _parts(path)
    there = [part for part in parts if part.is_file()]
    size = sum(part.stat().st_size for part in there)
    if lacking := [part.name for part in parts if part not in there]:
        problem = f"{len(lacking)} of its {len(parts)} files are missing, the first is {lacking[0]}"
        return ModelFile(name, path, size, "incomplete", problem=problem)
    broken = next(filter(None, map(header_problem, parts)), None)
    return ModelFile(name, path, size, "broken" if broken else "model", problem=broken)


def _named(text: str, files: list[ModelFile]) -> ModelFile | None:
    folded = text.casefold()
    for fits in (
        lambda name: name == text,
        lambda name: name.casefold() in (folded, folded.removesuffix(".gguf")),
    ):
        if found := [file for file in files if fits(file.name)]:
            return found[0]
    return None


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _unknown(text: str, names: list[str]) -> HeadstartError:
    fetchable = load_models()[0]
    if text in fetchable:
        return HeadstartError(f"the model '{text}' is not here yet", f"`models get {text}` fetches it")
    near = near_names(text, [*names, *fetchable])
    remedy = f"did you mean {' or '.join(near)}?" if near else "`models list` shows the names"
    return HeadstartError(f"there is no file and no model '{text}'", remedy)

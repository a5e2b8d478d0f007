"""What the Hugging Face hub has: repositories that words name, and the model files of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.core import split
from app.core.errors import UsageError
from app.library.programs import ask_hub

# What people sort by, in the hub's words.
SORTS = {
    "downloads": "downloads",
    "likes": "likes",
    "updated": "lastModified",
    "trending": "trendingScore",
}
QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d|TQ\d)(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|F32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
BYTES_PER_PARAMETER = 0.6  # of Q4_K_M, the type that most people load
SIZE = re.compile(r"(\d+(?:\.\d+)?)([BM])", re.IGNORECASE)
NOT_MODELS = ("mmproj", "imatrix")  # parts that only some programs put beside a model


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository with GGUF files. ``gated`` is "", "auto" or "manual"; ``updated`` an ISO time."""

    repository: str
    downloads: int
    likes: int
    updated: str | None
    gated: str
    licence: str | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A model in a repository: its first file's path, its bytes and paths in all.

    ``sha256`` is that of the only file, and None for a split model. ``quantization`` is told from the name,
    in upper case; "" where that says nothing, ``mmproj`` or ``imatrix`` for what is no model.
    """

    file: str
    quantization: str
    size: int
    sha256: str | None
    parts: tuple[str, ...]

    @property
    def is_model(self) -> bool:
        """Whether it is one by its name."""
        return self.quantization not in NOT_MODELS


@dataclass(frozen=True, slots=True)
class HubFiles:
    """A repository's models at a commit, the smallest first; ``contents``: size and SHA-256 of each file."""

    repository: str
    commit: str
    licence: str | None
    gated: str
    files: tuple[HubFile, ...]
    contents: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a search leaves out; the hub applies them.

    ``licence`` is the hub's short name of one, or "" for all; ``parameters`` the most that a model may have,
    or 0 for any number.
    """

    licence: str = ""
    is_open: bool = False  # without the gated ones
    parameters: int = 0


def search(
    words: str, limit: int = 20, sort: str = "downloads", filters: Filters | None = None
) -> list[HubRepository]:
    """The first repositories with GGUF files whose names have the words; ``sort`` is one of ``SORTS``.

    Raises:
        HeadstartError: the hub can't be reached, or refuses.
        UsageError: an unknown ``sort``, or a limit below 1.
    """
    if sort not in SORTS:
        raise UsageError(f"the hub is not sorted by '{sort}'", f"choose one of {', '.join(SORTS)}")
    if limit < 1:
        raise UsageError(f"a list of {limit} is none", "ask for at least one repository")
    filters = filters or Filters()
    gated = "false" if filters.is_open else ""
    parameters = f"max:{filters.parameters}" if filters.parameters else ""
    order = SORTS[sort]
    found = ask_hub("search", words.strip(), str(limit), order, filters.licence, gated, parameters)["found"]
    return [HubRepository(**one) for one in found]


def files_of(
    repository: str, revision: str | None = None, tick: Callable[[], None] = lambda: None
) -> HubFiles:
    """The repository's models, by default at its newest commit; ``tick`` may raise to end it.

    A model in several files is one; one that lacks some of its files is left out.

    Raises:
        HeadstartError: the hub can't be reached, refuses, or has no such repository.
    """
    answer = ask_hub("files", repository, revision or "", tick=tick)
    contents = {file: (size, sha256) for file, size, sha256 in answer["files"]}
    files = []
    for file, (_, sha256) in contents.items():
        parts = tuple(path.as_posix() for path in split.parts(Path(file)))
        if file == parts[0] and all(part in contents for part in parts):
            size = sum(contents[part][0] for part in parts)
            files.append(HubFile(file, quantization(file), size, sha256 if parts == (file,) else None, parts))
    files.sort(key=lambda file: (not file.is_model, file.size, file.file))
    return HubFiles(
        answer["repository"], answer["commit"], answer["licence"], answer["gated"], tuple(files), contents
    )


def quantization(file: str) -> str:
    """The quantisation that a file's name, or else its folder's, tells."""
    name = file.rpartition("/")[2].casefold()
    if what := next((what for what in NOT_MODELS if what in name), None):
        return what
    for part in reversed(file.removesuffix(".gguf").split("/")):
        if found := QUANTIZATION.findall(part):
            return str(found[-1]).upper()
    return ""


def fit(size: int, ram: int, gpu: int = 0) -> str:
    """Whether a model file suits a machine, told from its bytes alone: ``fits``, ``tight`` or ``large``.

    It fits where the file, once more by up to 60 % for what llama.cpp repacks and for the cache, and 0.5 GB
    of buffers go into 60 % of the RAM or 90 % of the largest graphics device; it is too large where the file
    and the buffers are more than both have.
    """
    if size <= _room(ram, gpu):
        return "fits"
    return "tight" if size + 0.5e9 <= ram + gpu else "large"


def most_parameters(size: str, memory: Callable[[], tuple[int, int]]) -> int:
    """The number of parameters that a size means: ``4B``, ``500M``, ``fits``, or "" for no limit, which is 0.

    ``fits`` is what a Q4_K_M file that fits has, on the RAM and graphics memory that ``memory`` tells. Raises
    UsageError for another text.
    """
    if size == "fits":
        return max(int(_room(*memory()) / BYTES_PER_PARAMETER), 1)
    if not size:
        return 0
    if not (found := SIZE.fullmatch(size)):
        raise UsageError(f"'{size}' is no size of a model", "give one such as 4B or 500M, or fits")
    return int(float(found[1]) * (1e9 if found[2] in "Bb" else 1e6))


def _room(ram: int, gpu: int) -> float:
    """Bytes of the largest file that fits."""
    return (max(0.6 * ram, 0.9 * gpu) - 0.5e9) / 1.6

"""Models split into several files: ``name-00001-of-00003.gguf`` and so on."""

from __future__ import annotations

import re
from pathlib import Path

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})", re.IGNORECASE)


def model_name(path: Path) -> str:
    """A file's name without its ending and its part's number."""
    if path.suffix == ".part":
        return path.name
    split = _match(path)
    return split["stem"] if split else path.stem


def parts(path: Path) -> list[Path]:
    """All files of the model that ``path`` belongs to, in order, whether they are there or not."""
    if not (split := _match(path)):
        return [path]
    stem, of = split["stem"], split["parts"]
    return [path.with_stem(f"{stem}-{part:05}-of-{of}") for part in range(1, int(of) + 1)]


def _match(path: Path) -> re.Match[str] | None:
    split = _SPLIT.fullmatch(path.stem)
    return split if split and 1 <= int(split["part"]) <= int(split["parts"]) else None

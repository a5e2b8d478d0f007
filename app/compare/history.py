"""Comparisons on disk: one file each in the user-data folder, written whole after every run."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from app.compare.record import Comparison
from app.core.errors import HeadstartError
from app.core.paths import user_data_dir


def folder() -> Path:
    """Where they are."""
    return user_data_dir() / "comparisons"


def new_id(now: datetime) -> str:
    """A name that no comparison has yet."""
    name = now.strftime("%Y%m%d-%H%M%S")
    taken = {path.stem for path in folder().glob(f"{name}*.json")}
    return next(
        candidate
        for candidate in (name, *(f"{name}-{number}" for number in range(2, 99)))
        if candidate not in taken
    )


def save(comparison: Comparison) -> None:
    """Write it beside its file and rename, so that a stop at any time leaves the last whole state.

    Raises HeadstartError where the folder cannot be written.
    """
    path = folder() / f"{comparison.id}.json"
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(comparison.as_json(), ensure_ascii=False, separators=(",", ":"))
        beside.write_text(text, "utf-8", errors="surrogatepass")
        beside.replace(path)
    except OSError as error:
        raise HeadstartError(
            f"cannot write {path}: {error.strerror}", "free some disk, or move the folder with HEADSTART_HOME"
        ) from None


def load(name: str) -> Comparison:
    """The comparison with this id; ``latest`` is the one made last. Raises HeadstartError without one."""
    path = _path(name)
    try:
        value = json.loads(path.read_text("utf-8", errors="surrogatepass"))
        return Comparison.from_json(value)
    except FileNotFoundError:
        raise HeadstartError(
            f"there is no comparison '{name}'", "`compare --history` lists those there are"
        ) from None
    except OSError as error:
        raise HeadstartError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise HeadstartError(
            f"{path} is not a comparison of this version ({type(error).__name__}: {error})",
            "remove it",
        ) from None


def remove(name: str) -> None:
    """Delete the comparison with this id. Raises HeadstartError where it cannot be deleted."""
    path = _path(name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HeadstartError(f"cannot delete {path}: {error.strerror}") from None


def entries() -> list[Comparison]:
    """All that can be read, the newest first."""
    found = []
    for name in _names():
        try:
            found.append(load(name))
        except HeadstartError:
            continue  # one broken file must not hide the others
    return found


def stamps() -> list[tuple[str, int]]:
    """Every id with the time of its file's last change in ns, the newest first."""
    return [
        (name, path.stat().st_mtime_ns) for name in _names() if (path := folder() / f"{name}.json").exists()
    ]


def _path(name: str) -> Path:
    if name == "latest":
        names = _names()
        if not names:
            raise HeadstartError("nothing has been compared yet", "start one with --target and --column")
        name = names[0]
    if Path(name).name != name or name.startswith("."):
        raise HeadstartError(f"'{name}' is not the name of a comparison", "`compare --history` lists them")
    return folder() / f"{name}.json"


def _names() -> list[str]:
    """The ids, the newest first."""
    files = list(folder().glob("*.json")) if folder().is_dir() else []
    return [path.stem for path in sorted(files, key=lambda path: (_made(path), path.stem), reverse=True)]


def _made(path: Path) -> str:
    return path.stem[:15]

"""Taking model files off the disk: those in models/, and no others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.paths import models_dir
from app.core.split import parts
from app.library import catalogue, fetch


def removable(text: str) -> list[Path]:
    """The files that ``remove`` would remove: all of a model, with what has arrived of those that lack.

    Raises HeadstartError for what is no model file in models/: another program's, a link, a path that leads
    out.
    """
    files = catalogue.scan()
    path = catalogue.existing(text)
    if path and not path.is_dir():
        real = os.path.realpath(path)
        held = [file for file in files if real in map(os.path.realpath, parts(file.path))]
        file = held[0] if held else None
    else:
        file = catalogue.named(text, files)
    if file and file.source != "models":
        what = f"'{text}' is not in {models_dir()} but in {file.path.parent}"
        raise HeadstartError(what, "remove it with the program that it belongs to")
    if path and path.is_symlink():
        raise HeadstartError(f"'{text}' is a link", "remove it where it was made")
    if path and not file:
        raise HeadstartError(f"'{text}' is no model file in {models_dir()}", "only those are removed")
    if not file:
        raise catalogue.unknown(text, [file.name for file in files if file.source == "models"])
    owned = [each for part in parts(file.path) for each in (part, fetch.part_of(part)) if each.is_file()]
    if links := [each for each in owned if each.is_symlink()]:
        raise HeadstartError(f"{links[0]} is a link", "remove it where it was made")
    return owned


def remove(text: str) -> int:
    """Remove a model in models/, given as a path or a name that the list shows; the bytes that this frees.

    Raises HeadstartError for what ``removable`` refuses, for what is being fetched just now, and where the
    disk refuses.
    """
    files = removable(text)
    freed = 0
    try:
        with contextlib.ExitStack() as locks:
            for whole in {file.with_name(file.name.removesuffix(".part")) for file in files}:
                locks.enter_context(fetch.only_one(whole))
            for file in files:
                size = file.stat().st_size
                file.unlink()
                freed += size
    except OSError as error:
        remedy = "unload the model if it is in use, and make its folder writable"
        raise HeadstartError(f"can't remove {error.filename}: {error.strerror}", remedy) from error
    with contextlib.suppress(OSError):  # the first folder that holds something else ends it
        for folder in files[0].parents:
            if folder == models_dir():
                break
            folder.rmdir()
    return freed

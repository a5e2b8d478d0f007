"""``models list | scan | remove | check``: what is on this machine, from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.errors import HeadstartError, UsageError
from app.core.paths import models_dir
from app.core.settings import LoadSettings
from app.core.text import harmless
from app.library import catalogue, fetch, folders, hub_commands, memory, pairs, removing
from app.library.presets import load_presets
from app.library.status_line import StatusLine
from app.library.tables import print_table

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> Subparsers:
    """Add ``models`` and what it can do to the command line; more can be added to what is returned."""
    parser = subparsers.add_parser("models", help="list, fetch, check, convert and make model files")
    commands: Subparsers = parser.add_subparsers(dest="models_command", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="the model files on this machine")
    listing.add_argument("--json", action="store_true", help="print a JSON list and nothing else")

    scanning = commands.add_parser("scan", help="the folders with model files; one more to look into")
    scanning.add_argument("folder", nargs="?", type=Path, help="a folder to look into from now on")
    scanning.add_argument("--forget", action="store_true", help="look into that folder no more")

    removing_ = commands.add_parser("remove", help="remove a model's files from models/")
    removing_.add_argument("name", help="a file in models/, or its name in `models list`")
    removing_.add_argument("--yes", action="store_true", help="do not ask")

    hub_commands.add_parsers(commands)

    checking = commands.add_parser("check", help="whether a draft fits a target (exit status 0 or 1)")
    checking.add_argument("target", help="a GGUF file, or a name that `models list` shows")
    checking.add_argument("draft", help="the same for the draft")
    checking.add_argument("--n-ctx", type=int, help="the context to hold in memory too, in tokens")
    checking.add_argument("--json", action="store_true", help="print a JSON object and nothing else")
    return commands


def run(args: argparse.Namespace) -> int:
    """Do one of the ``models`` commands; the exit status."""
    if args.models_command == "list":
        return _list(args.json)
    if args.models_command == "scan":
        return _scan(args.folder, args.forget)
    if args.models_command == "remove":
        return _remove(args.name, args.yes)
    if args.models_command in hub_commands.COMMANDS:
        return hub_commands.run(args)
    return _check(args.target, args.draft, args.json, args.n_ctx)


def _list(as_json: bool) -> int:
    files = _read()
    if as_json:
        print(json.dumps([_as_json(file) for file in files], indent=1))
        return 0
    presets, errors = load_presets()
    _warn(errors)
    if files:
        _print_files(files)
    else:
        print(f"no model files in {models_dir()} yet")
    if lacking := [preset for preset in presets if catalogue.missing(preset)]:
        print("\nto be had with `models get NAME`:")
        for preset in lacking:
            words = preset.summary if preset.is_tried else f"{preset.title} (not tried here)"
            print(f"  {preset.name} ({fetch.size_text(preset.size)}): {words}")
    return 0


def _read() -> list[catalogue.ModelFile]:
    line = StatusLine()
    try:
        return catalogue.list_models(lambda done, total: line.show("reading new files", done / total, ""))
    finally:
        line.end()


def _print_files(files: list[catalogue.ModelFile]) -> None:
    print_table([("name", "type", "parameters", "size", "context", "in", ""), *map(_as_row, files)])


def _as_json(file: catalogue.ModelFile) -> dict[str, object]:
    facts = file.facts
    return {
        "name": file.name,
        "path": str(file.path),
        "size_bytes": file.size_bytes,
        "architecture": facts.architecture if facts else None,
        "parameters": facts.parameters if facts else None,
        "quantization": facts.quantization if facts else None,
        "context": facts.n_ctx_train if facts else None,
        "vocabulary": facts.n_vocab if facts else None,
        "kind": file.kind,
        "source": file.source,
        "sha256": file.sha256,
    }


def _as_row(file: catalogue.ModelFile) -> tuple[str, ...]:
    size = fetch.size_text(file.size_bytes)
    if not (facts := file.facts):
        return (file.name, "-", "-", size, "-", file.source, f"{file.kind}: {file.problem}")
    note = "" if file.is_usable else file.kind
    parameters = (
        f"{facts.parameters / 1e9:.2f} B" if facts.parameters >= 1e9 else f"{facts.parameters / 1e6:.0f} M"
    )
    return (file.name, facts.quantization, parameters, size, str(facts.n_ctx_train), file.source, note)


def _scan(folder: Path | None, forget: bool) -> int:
    if not folder:
        if forget:
            raise UsageError("--forget needs a folder", "`models scan` shows them")
        files = _read()
        rows = [("place", "usable", "other files", "folder")]
        for place in folders.places():
            inside = [file for file in files if file.path.is_relative_to(place.path)]
            usable = sum(file.is_usable for file in inside)
            rows.append((place.title, str(usable), str(len(inside) - usable), str(place.path)))
        print_table(rows)
        return 0
    if forget:
        folders.forget_folder(folder)
        print(harmless(f"{folder} is left out from now on"))
        return 0
    folder = folders.add_folder(folder)
    inside = [file for file in _read() if file.path.is_relative_to(folder)]
    if inside:
        _print_files(inside)
    else:
        print(harmless(f"no model files in {folder} yet"))
    return 0


def _remove(name: str, is_sure: bool) -> int:
    files = removing.removable(name)
    names = harmless(", ".join(str(file.relative_to(models_dir())) for file in files))
    size = fetch.size_text(sum(file.stat().st_size for file in files))
    if not is_sure:
        if not sys.stdin.isatty():
            raise UsageError(f"nobody can be asked whether to remove {names}", "add --yes")
        print(f"remove {names} ({size})? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed", file=sys.stderr)
            return 1
    freed = removing.remove(name)
    print(f"removed {names}, {fetch.size_text(freed)} are free again")
    return 0


def _check(target: str, draft: str, as_json: bool, n_ctx: int | None) -> int:
    paths = catalogue.resolve(target), catalogue.resolve(draft)
    load = LoadSettings(*paths) if n_ctx is None else LoadSettings(*paths, n_ctx=n_ctx)
    check = pairs.check(*paths)
    if check.fits:
        memory.warn(load)
    if as_json:
        print(json.dumps(dataclasses.asdict(check)))
    elif check.fits:
        print(f"{draft} fits {target} as a draft")
    else:
        print(f"{draft} does not fit {target}: {'; '.join(check.reasons)}")
    return 0 if check.fits else 1


def _warn(errors: list[HeadstartError]) -> None:
    for error in errors:
        print(f"warning: {error}", file=sys.stderr)

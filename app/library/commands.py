"""``models list | get | check``: the library from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from app.core.errors import HeadstartError
from app.core.paths import models_dir
from app.library import catalogue, fetch, hub_commands
from app.library.presets import load_presets
from app.library.status_line import StatusLine
from app.library.tables import print_table
from app.worker import tasks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> Subparsers:
    """Add ``models`` and what it can do to the command line; more can be added to what is returned."""
    parser = subparsers.add_parser("models", help="list, fetch, check, convert and make model files")
    commands: Subparsers = parser.add_subparsers(dest="models_command", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="the model files on this machine")
    listing.add_argument("--json", action="store_true", help="print a JSON list and nothing else")

    hub_commands.add_parsers(commands)

    checking = commands.add_parser("check", help="whether a draft fits a target (exit status 0 or 1)")
    checking.add_argument("target", help="a GGUF file, or a name that `models list` shows")
    checking.add_argument("draft", help="the same for the draft")
    checking.add_argument("--json", action="store_true", help="print a JSON object and nothing else")
    return commands


def run(args: argparse.Namespace) -> int:
    """Do one of the ``models`` commands; the exit status."""
    if args.models_command == "list":
        return _list(args.json)
    if args.models_command in hub_commands.COMMANDS:
        return hub_commands.run(args)
    return _check(args.target, args.draft, args.json)


def _list(as_json: bool) -> int:
    line = StatusLine()
    files = catalogue.list_models(lambda done, total: line.show("reading new model files", done / total, ""))
    line.end()
    if as_json:
        print(json.dumps([_as_json(file) for file in files], indent=1))
        return 0
    presets, errors = load_presets()
    _warn(errors)
    if files:
        print_table([("name", "type", "parameters", "size", "context", ""), *map(_as_row, files)])
    else:
        print(f"no model files in {models_dir()} yet")
    if lacking := [preset for preset in presets if catalogue.missing(preset)]:
        print("\nto be had with `models get NAME`:")
        for preset in lacking:
            print(f"  {preset.name} ({fetch.size_text(preset.size)}): {preset.summary}")
    return 0


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
        "source": "models",
        "sha256": file.sha256,
    }


def _as_row(file: catalogue.ModelFile) -> tuple[str, ...]:
    size = fetch.size_text(file.size_bytes)
    if not (facts := file.facts):
        return (file.name, "-", "-", size, "-", f"{file.kind}: {file.problem}")
    note = "" if file.is_usable else file.kind
    parameters = (
        f"{facts.parameters / 1e9:.2f} B" if facts.parameters >= 1e9 else f"{facts.parameters / 1e6:.0f} M"
    )
    return (file.name, facts.quantization, parameters, size, str(facts.n_ctx_train), note)


def _check(target: str, draft: str, as_json: bool) -> int:
    check = tasks.check_pair(catalogue.resolve(target), catalogue.resolve(draft))
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

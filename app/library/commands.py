"""``models list | get | check | requantize``: the library from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.errors import HeadstartError, UsageError
from app.core.paths import models_dir
from app.core.text import harmless
from app.library import catalogue, fetch
from app.library.presets import Preset, PresetModel, best_preset, load_models, load_presets
from app.worker import tasks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# llama.cpp's types that are worth writing, with the bits a weight takes in them (for the disk's sake).
BITS_PER_WEIGHT = {
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.7,
    "Q4_K_M": 4.9,
    "Q4_0": 4.6,
}
QUANT_ENDING = re.compile(r"[-._](i?q\d\w*|b?f16|fp16|f32)$", re.IGNORECASE)
INTERRUPTED = 130


def add_parser(subparsers: Subparsers) -> None:
    """Add ``models`` and what it can do to the command line."""
    parser = subparsers.add_parser("models", help="list, fetch, check and convert model files")
    commands = parser.add_subparsers(dest="models_command", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="the model files on this machine")
    listing.add_argument("--json", action="store_true", help="print a JSON list and nothing else")

    getting = commands.add_parser("get", help="fetch a preset's files or one model")
    getting.add_argument(
        "name", nargs="?", help="a preset or a model; without it, the best pair for this machine"
    )

    checking = commands.add_parser("check", help="whether a draft fits a target (exit status 0 or 1)")
    checking.add_argument("target", help="a GGUF file, or a name that `models list` shows")
    checking.add_argument("draft", help="the same for the draft")
    checking.add_argument("--json", action="store_true", help="print a JSON object and nothing else")

    writing = commands.add_parser("requantize", help="write a copy of a model in another type")
    writing.add_argument("target", help="a GGUF file, or a name that `models list` shows")
    types = list(BITS_PER_WEIGHT)
    writing.add_argument("--type", required=True, type=str.upper, choices=types, help="the type to write")
    writing.add_argument("--output", type=Path, help="the new file (default: beside the others in models/)")


def run(args: argparse.Namespace) -> int:
    """Do one of the ``models`` commands; the exit status."""
    if args.models_command == "list":
        return _list(args.json)
    if args.models_command == "get":
        return _get(args.name)
    if args.models_command == "check":
        return _check(args.target, args.draft, args.json)
    return _requantize(args.target, args.type, args.output)


def _list(as_json: bool) -> int:
    line = _StatusLine()
    files = catalogue.list_models(lambda done, total: line.show("reading new model files", done / total, ""))
    line.end()
    if as_json:
        print(json.dumps([_as_json(file) for file in files], indent=1))
        return 0
    presets, errors = load_presets()
    _warn(errors)
    if files:
        _print_table([("name", "type", "parameters", "size", "context", ""), *map(_as_row, files)])
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


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    # A file may be named anything, with line breaks and control characters in it too.
    rows = [tuple(harmless(cell).replace("\n", " ") for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _get(name: str | None) -> int:
    presets, errors = load_presets()
    _warn(errors)
    for model in _wanted(name, presets):
        line = _StatusLine()
        try:
            path = fetch.get(model, line.follow, lambda: False)
        except KeyboardInterrupt:
            line.end()
            print("stopped; the same command goes on from here", file=sys.stderr)
            return INTERRUPTED
        finally:
            line.end()
        print(path)
    return 0


def _wanted(name: str | None, presets: list[Preset]) -> Sequence[PresetModel]:
    if name is None:
        import psutil

        ram = psutil.virtual_memory().total
        if not (best := best_preset(presets, ram)):
            what = f"no preset is sure to fit {fetch.size_text(ram)} of memory"
            raise HeadstartError(what, f"name one to try it: {', '.join(preset.name for preset in presets)}")
        print(
            f"{best.name} suits this machine best: {best.title}, {fetch.size_text(best.size)}",
            file=sys.stderr,
        )
        return best.models
    for preset in presets:
        if preset.name == name:
            return preset.models
    models = load_models()[0]
    if model := models.get(name.removesuffix(".gguf")):
        return (model,)
    known = [*(preset.name for preset in presets), *models]
    near = catalogue.near_names(name, known)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise HeadstartError(f"there is no preset or model '{name}' to fetch", remedy)


def _check(target: str, draft: str, as_json: bool) -> int:
    check = tasks.check_pair(catalogue.resolve(target), catalogue.resolve(draft))
    if as_json:
        print(json.dumps(dataclasses.asdict(check)))
    elif check.fits:
        print(f"{draft} fits {target} as a draft")
    else:
        print(f"{draft} does not fit {target}: {'; '.join(check.reasons)}")
    return 0 if check.fits else 1


def _requantize(target: str, type_: str, output: Path | None) -> int:
    source = catalogue.resolve(target)
    output = output or models_dir() / f"{QUANT_ENDING.sub('', source.stem)}-{type_.lower()}.gguf"
    output = output.expanduser().absolute()
    if output.suffix.lower() != ".gguf":
        raise UsageError(f"the output '{output}' must end in .gguf")
    if output.exists():
        raise HeadstartError(f"{output} exists already", "remove it, or choose another name with --output")
    facts = tasks.inspect_models([source])[source]
    if isinstance(facts, str):
        raise HeadstartError(f"can't read {source}: {facts}")
    beside = output.with_name(output.name + ".writing")
    line = _StatusLine()
    started = time.monotonic()

    def follow(done: int, total: int) -> None:
        fraction = done / total if total else 0
        elapsed = time.monotonic() - started
        left = f"{elapsed / fraction - elapsed:.0f} s left" if 0.02 < fraction < 1 else ""
        line.show(f"writing {output.name}", fraction, left)

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        needed = int(facts.parameters * BITS_PER_WEIGHT[type_] / 8 * 1.05) + fetch.DISK_MARGIN
        if (free := shutil.disk_usage(output.parent).free) < needed:
            have = f"{fetch.size_text(free)} are free"
            raise HeadstartError(f"{output.name} needs about {fetch.size_text(needed)} of disk, and {have}")
        tasks.requantize(source, beside, type_, follow, lambda: False)
        beside.replace(output)
    except KeyboardInterrupt:
        line.end()
        print("stopped; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        raise HeadstartError(f"can't write {output}: {error.strerror}") from error
    finally:
        line.end()
        beside.unlink(missing_ok=True)
    print(output)
    return 0


def _warn(errors: list[HeadstartError]) -> None:
    for error in errors:
        print(f"warning: {error}", file=sys.stderr)


@dataclass(slots=True)
class _StatusLine:
    """Progress on standard error: one line that changes on a terminal, else a line for every tenth."""

    _step: str = ""
    _tenth: int = -1
    _is_open: bool = False

    def follow(self, progress: fetch.Progress) -> None:
        """Show a download's progress."""
        details = f"of {fetch.size_text(progress.total)}"
        if progress.rate and progress.remaining_s:
            details += f", {fetch.size_text(progress.rate)}/s, {progress.remaining_s:.0f} s left"
        self.show(progress.step, progress.done / progress.total, details)

    def show(self, step: str, fraction: float, details: str) -> None:
        """Show how far a step is; each step keeps its own line."""
        text = f"{step}: {fraction:.0%} {details}".rstrip()
        tenth = int(fraction * 10)
        is_new = step != self._step
        if sys.stderr.isatty():
            if is_new:
                self.end()
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width].ljust(width)}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif is_new or tenth > self._tenth:
            print(text, file=sys.stderr, flush=True)
        self._step, self._tenth = step, tenth

    def end(self) -> None:
        """Leave the line, so that the next print begins a new one."""
        if self._is_open:
            print(file=sys.stderr)
        self._is_open = False

"""``models get | search``: the hub from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from app.core.errors import HeadstartError
from app.core.text import harmless
from app.library import fetch, search
from app.library.fetch import Progress, size_text
from app.library.presets import PresetModel, best_preset, load_presets
from app.library.status_line import StatusLine
from app.library.tables import print_table
from app.library.wanted import models_of
from app.worker import tasks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = ("get", "search")
INTERRUPTED = 130
FIT_WORDS = {"fits": "fits", "tight": "hardly fits", "large": "too large"}


def add_parsers(commands: Subparsers) -> None:
    """Add them to the ``models`` commands."""
    getting = commands.add_parser("get", help="fetch a preset's files or one model")
    getting.add_argument(
        "wanted",
        nargs="?",
        help="a preset, owner/repo:FILE, owner/repo:Q4_K_M, or a file's address on the Hugging Face hub; "
        "without it, the best pair for this machine",
    )
    searching = commands.add_parser("search", help="find models on the Hugging Face hub")
    searching.add_argument("words", nargs="+", help="words of the name, or owner/repo for its files")
    searching.add_argument("--sort", choices=list(search.SORTS), default="downloads")
    searching.add_argument("--limit", type=int, default=20, help="how many at most (default: 20)")
    searching.add_argument(
        "--size",
        default="",
        help="the most parameters, as 4B or 500M; fits: what fits this machine at Q4_K_M",
    )
    searching.add_argument("--licence", default="", help="only this one, by the hub's name: apache-2.0, mit")
    searching.add_argument("--no-gated", action="store_true", help="none whose terms must be accepted first")
    searching.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(args: argparse.Namespace) -> int:
    """Do one of them; the exit status."""
    if args.models_command == "get":
        return _get(args.wanted)
    words = " ".join(args.words)
    if "/" in words:
        return _files(words, args.json)
    filters = search.Filters(args.licence, args.no_gated, search.most_parameters(args.size, _memory))
    return _search(words, args.limit, args.sort, filters, args.json)


def _get(wanted: str | None) -> int:
    for error in load_presets()[1]:
        print(f"warning: {error}", file=sys.stderr)
    models = _best() if wanted is None else models_of(wanted)
    for place, model in enumerate(models):
        line = StatusLine()
        later = sum(each.size - fetch.bytes_here(each) for each in models[place + 1 :])
        try:
            path = fetch.get(model, partial(_follow, line), lambda: False, later)
        except KeyboardInterrupt:
            line.end()
            print("stopped; the same command goes on from here", file=sys.stderr)
            return INTERRUPTED
        finally:
            line.end()
        print(path)
    return 0


def _best() -> Sequence[PresetModel]:
    import psutil

    presets = load_presets()[0]
    ram = psutil.virtual_memory().total
    if not (best := best_preset(presets, ram)):
        what = f"no preset is sure to fit {size_text(ram)} of memory"
        tried = ", ".join(preset.name for preset in presets if preset.is_tried)
        raise HeadstartError(what, f"name one to try it: {tried}")
    print(f"{best.name} suits this machine best: {best.title}, {size_text(best.size)}", file=sys.stderr)
    return best.models


def _follow(line: StatusLine, progress: Progress) -> None:
    if not progress.total:  # the hub has not told it yet
        line.show(harmless(progress.step), 0, "")
        return
    details = f"of {size_text(progress.total)}"
    if progress.rate and progress.remaining_s:
        details += f", {size_text(progress.rate)}/s, {progress.remaining_s:.0f} s left"
    line.show(harmless(progress.step), progress.done / progress.total, details)


def _search(words: str, limit: int, sort: str, filters: search.Filters, as_json: bool) -> int:
    found = search.search(words, limit, sort, filters)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
    elif not found:
        left_out = " with these filters" if filters != search.Filters() else ""
        print(f"the hub has no GGUF repository for '{harmless(words)}'{left_out}")
    else:
        rows = [("repository", "downloads", "likes", "updated", "licence", "")]
        for one in found:
            updated, gate = (one.updated or "")[:10], "gated" if one.gated else ""
            rows.append(
                (one.repository, f"{one.downloads:,}", f"{one.likes:,}", updated, one.licence or "", gate)
            )
        print_table(rows)
        print("\n`models search OWNER/REPO` lists a repository's files")
    return 0


def _files(repository: str, as_json: bool) -> int:
    listed = search.files_of(models_of(repository)[0].hub.repository)
    ram, gpu = _memory()
    if as_json:
        files = [
            {
                "file": file.file,
                "quantization": file.quantization,
                "size_bytes": file.size,
                "sha256": file.sha256,
                "parts": file.parts,
                "fit": search.fit(file.size, ram, gpu),
            }
            for file in listed.files
        ]
        about = {"repository": listed.repository, "commit": listed.commit, "licence": listed.licence}
        print(json.dumps({**about, "gated": listed.gated, "files": files}, indent=1))
        return 0
    gate = f", gated: accept its terms on its page ({listed.gated})" if listed.gated else ""
    print(harmless(f"{listed.repository}, licence {listed.licence or 'unknown'}{gate}\n"))
    rows = [("type", "size", "files", "this machine", "file")]
    for file in listed.files:
        fits = FIT_WORDS[search.fit(file.size, ram, gpu)] if file.is_model else "no model"
        rows.append((file.quantization, size_text(file.size), str(len(file.parts)), fits, file.file))
    print_table(rows)
    print(harmless(f"\n`models get {listed.repository}:TYPE`, or `:FILE`, fetches one"))
    return 0


def _memory() -> tuple[int, int]:
    """Bytes of the RAM, and of the largest graphics device or 0."""
    import psutil

    gpu = 0
    with suppress(HeadstartError):  # a broken llama.cpp shows itself elsewhere
        gpu = max((device.memory_total for device in tasks.list_devices() if device.kind == "gpu"), default=0)
    return psutil.virtual_memory().total, gpu

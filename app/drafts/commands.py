"""``models make-draft`` and ``models requantize``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.copies import FILE_TYPES
from app.core.errors import UsageError
from app.core.text import harmless
from app.library import catalogue, making
from app.library.fetch import size_text
from app.library.status_line import StatusLine

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = ("make-draft", "requantize")
INTERRUPTED = 130


def add_parsers(commands: Subparsers) -> None:
    """Add both to the commands of ``models``."""
    types = ", ".join(FILE_TYPES)
    drafting = commands.add_parser("make-draft", help="write a cheaper copy of a target as its own draft")
    writing = commands.add_parser("requantize", help="write a copy of a model in another type")
    for parser in (drafting, writing):
        parser.add_argument("target", help="a GGUF file, or a name that `models list` shows")
    drafting.add_argument("--type", help=f"the draft's type (default {making.USUAL_TYPE}): {types}")
    drafting.add_argument(
        "--skip-layers", metavar="N|LIST", help="leave out N middle layers, or those listed (9-11,14)"
    )
    drafting.add_argument(
        "--search", action="store_true", help="make several, measure each here, and keep the best if one pays"
    )
    drafting.add_argument("--minutes", type=float, help="how long to search (default 20)")
    place = drafting.add_mutually_exclusive_group()
    place.add_argument("--name", help="the new file's name in models/")
    place.add_argument("--output", type=Path, help="the new file, where it is not to be in models/")
    writing.add_argument("--type", required=True, help=f"the type to write: {types}")
    writing.add_argument("--output", type=Path, help="the new file (default: beside the others in models/)")


def run(args: argparse.Namespace) -> int:
    """Do one of the commands; the exit status."""
    target = catalogue.resolve(args.target)
    if args.models_command == "requantize":
        return _make(making.plan_copy(target, args.type, args.output))
    if args.search:
        return _search(target, args)
    if args.minutes is not None:
        raise UsageError("--minutes is for a search; add --search")
    return _make(making.plan_draft(target, args.type, args.skip_layers, args.name, args.output))


def _make(wanted: making.Making) -> int:
    plan = wanted.plan
    cost = f", {plan.cost:.2f} times the target's cost a token" if wanted.target else ""
    words = making.copy_words(wanted.copy)
    _say(f"{wanted.destination.name}: {words}, about {size_text(plan.size_bytes)}{cost}")
    line = StatusLine()
    began: dict[str, float] = {}

    def follow(step: str, done: int, total: int) -> None:
        fraction = done / total
        elapsed = time.monotonic() - began.setdefault(step, time.monotonic())
        left = f"{elapsed / fraction - elapsed:.0f} s left" if 0.02 < fraction < 1 else ""
        line.show(step, fraction, left)

    try:
        path = making.make(wanted, follow)
    except KeyboardInterrupt:
        line.end()
        _say("stopped; nothing was written")
        return INTERRUPTED
    finally:
        line.end()
    print(path)
    return 0


def _search(target: Path, args: argparse.Namespace) -> int:
    from app.drafts import search, trials  # the comparison needs seconds to import

    if args.type or args.skip_layers:
        raise UsageError("a search chooses type and layers itself; leave out --type and --skip-layers")
    minutes = search.USUAL_MINUTES if args.minutes is None else args.minutes
    if not 0 < minutes <= 24 * 60:
        raise UsageError(f"minutes {minutes:g} must lie above 0 and within a day")
    line = StatusLine()

    def follow(news: trials.News) -> None:
        line.show(news.step, news.done / news.total, "")

    try:
        result = search.search(target, minutes, args.name, args.output, follow)
    except KeyboardInterrupt:
        line.end()
        _say("stopped; nothing was kept")
        return INTERRUPTED
    finally:
        line.end()
    print(harmless(trials.as_text(result.trials)))
    print(harmless(f"{result.verdict}."))
    if result.kept:
        print(result.kept)
    return 0


def _say(text: str) -> None:
    print(harmless(text), file=sys.stderr, flush=True)

"""``compare``: columns side by side on the command line."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app import generate
from app.compare import columns, history, machine, report, runner, workloads
from app.compare.record import Comparison, Prompt
from app.core.errors import HeadstartError, UsageError
from app.core.settings import LoadSettings
from app.core.text import harmless
from app.library import memory
from app.worker.client import WorkerClient

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_BAR_WIDTH = 24
_STDOUT = "-"


def add_parser(subparsers: Subparsers) -> None:
    """Add ``compare`` to the command line."""
    parser = subparsers.add_parser("compare", help="measure ways to answer side by side on this machine")
    parser.add_argument("--target", help="a GGUF file, or a name that `models list` shows")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=MODE[:key=value,…]",
        help="a way to answer, with generate's flags as keys (n_draft=8); up to six",
    )
    parser.add_argument("--modes", metavar="A,B", help="a column for each mode, with the flags below")
    parser.add_argument(
        "--sweep", metavar="KEY=V1,V2,…", help="every column but plain once for each value, as n_draft=1,2,4"
    )
    parser.add_argument("--prompts", type=Path, metavar="F.jsonl", help="a file of prompts, one JSON a line")
    parser.add_argument("--workload", help=f"built-in prompts: {', '.join(workloads.NAMES)}")
    parser.add_argument("--prompt", help="one prompt of your own")
    parser.add_argument("--repeats", type=int, default=3)
    generate.add_run_arguments(parser)
    parser.set_defaults(max_tokens=128)
    past = parser.add_argument_group("past comparisons (ID: as --history shows it, or latest)")
    past.add_argument("--history", action="store_true", help="list them")
    past.add_argument("--show", metavar="ID", help="show one")
    past.add_argument("--continue", dest="resume", metavar="ID", help="go on with one that was stopped")
    output = parser.add_argument_group("output ('-' for standard output)")
    output.add_argument("--json", nargs="?", const=_STDOUT, metavar="FILE")
    output.add_argument("--csv", metavar="FILE", help="one line a run")
    output.add_argument("--markdown", metavar="FILE", help="the tables")
    output.add_argument("--charts", type=Path, metavar="FOLDER", help="PNG and SVG")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments ask. Returns the exit status; raises HeadstartError where nothing ran."""
    if args.history:
        print(_history(history.entries()))
        return 0
    if args.show:
        _write(history.load(args.show), args)
        return 0
    comparison = _resumed(args.resume) if args.resume else _new(args)
    _warn_of_memory(comparison)
    cancelled = _make_runs(comparison)
    _write(comparison, args)
    if cancelled:
        print(f"stopped; go on with: compare --continue {comparison.id}", file=sys.stderr)
        return generate.INTERRUPTED
    if comparison.runs and all(row.error for row in comparison.runs):
        raise HeadstartError(f"every run failed, the first because {comparison.runs[0].error}")
    return 0


def _resumed(name: str) -> Comparison:
    comparison = history.load(name)
    target = comparison.columns[0].load.target
    if comparison.remaining() and not target.is_file():
        raise HeadstartError(f"the target {target} is no longer there", "put it back")
    return comparison


def _new(args: argparse.Namespace) -> Comparison:
    if not args.target:
        raise UsageError("no target; name one with --target")
    if args.repeats < 1:
        raise UsageError(f"repeats {args.repeats} must be at least 1")
    prompts = _prompts(args)
    given = columns.parse_columns(args, args.column, args.modes, args.sweep)
    chosen = columns.with_plain(given)
    if len(chosen) > len(given):
        print(f"added the column '{chosen[0].name}', over which speed-ups are told", file=sys.stderr)
    return runner.new(chosen, prompts, args.repeats, machine.facts(chosen))


def _warn_of_memory(comparison: Comparison) -> None:
    """A line for the first column of each way to load."""
    seen = set[LoadSettings]()
    for column in comparison.columns:
        if column.load not in seen:
            seen.add(column.load)
            memory.warn(column.load, f"column '{column.name}': ")


def _prompts(args: argparse.Namespace) -> Sequence[Prompt]:
    given = [value for value in (args.prompts, args.workload, args.prompt) if value is not None]
    if len(given) != 1:
        raise UsageError("give prompts in one way: --workload NAME, --prompts FILE or --prompt TEXT")
    if args.prompts is not None:
        return workloads.read_prompts(args.prompts)
    if args.workload is not None:
        return workloads.workload(args.workload)
    if not args.prompt.strip():
        raise UsageError("the prompt is empty; write something to answer")
    return [Prompt("prompt", "own", args.prompt)]


def _make_runs(comparison: Comparison) -> bool:
    """Make the remaining runs with a bar on standard error; returns whether they were stopped."""
    client = WorkerClient()
    cancelled = False
    try:
        work = runner.Runner(client, comparison)
        signal.signal(signal.SIGINT, lambda *_: work.cancel())
        show = _Progress()
        for event in work.events():
            show.take(event)
            if isinstance(event, runner.Ended):
                cancelled = event.cancelled
    finally:
        client.close()
    return cancelled


class _Progress:
    """A bar that is redrawn on a terminal; elsewhere a line a run."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._running = ""

    def take(self, event: runner.Event) -> None:
        """Show one event."""
        if isinstance(event, runner.RunStarted):
            self._running = f"{event.slot.column.name}, {event.slot.prompt.id}"
        if isinstance(event, runner.RunEnded):
            row = event.row
            speed = row.error or report.number(
                row.stats.tokens_per_s if row.stats else None, ".1f", " tokens/s"
            )
            self._line(f"{row.column}, {row.prompt_id}: {speed}", event.progress)
        elif self._terminal and isinstance(event, runner.Doing | runner.RunStarted):
            what = event.what if isinstance(event, runner.Doing) else "running"
            self._draw(f"{_bar(event.progress)} {self._running} {what}")
        elif isinstance(event, runner.Ended) and self._terminal:
            self._draw("")

    def _line(self, text: str, progress: runner.Progress) -> None:
        text = harmless(text)
        if self._terminal:
            self._draw(f"{_bar(progress)} {text}")
        else:
            print(f"{progress.done}/{progress.total} {text}{_left(progress)}", file=sys.stderr, flush=True)

    def _draw(self, text: str) -> None:
        print(f"\r\x1b[K{harmless(text)[:110]}", end="", file=sys.stderr, flush=True)


def _bar(progress: runner.Progress) -> str:
    filled = _BAR_WIDTH * progress.done // max(progress.total, 1)
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return f"{bar} {progress.done}/{progress.total}{_left(progress)}"


def _left(progress: runner.Progress) -> str:
    if progress.remaining_s is None or progress.done == progress.total:
        return ""
    seconds = round(progress.remaining_s)
    return f", about {seconds} s left" if seconds < 120 else f", about {round(seconds / 60)} min left"


def _write(comparison: Comparison, args: argparse.Namespace) -> None:
    """The exports, and the tables where standard output is free for them, else on standard error."""
    makers = {
        "json": lambda: json.dumps(report.as_json(comparison), ensure_ascii=False) + "\n",
        "csv": lambda: report.as_csv(comparison),
        "markdown": lambda: report.as_markdown(comparison),
    }
    asked = {name: getattr(args, name) for name in makers if getattr(args, name)}
    taken = _STDOUT in asked.values()
    print(harmless(report.as_text(comparison)), file=sys.stderr if taken else sys.stdout, flush=True)
    for name, where in asked.items():
        text = makers[name]()
        if where == _STDOUT:
            print(harmless(text) if sys.stdout.isatty() else text, end="", flush=True)
            continue
        try:
            Path(where).write_text(text, "utf-8", errors="replace", newline="")
        except OSError as error:
            raise HeadstartError(f"cannot write {where}: {error.strerror}", "name another file") from None
    if args.charts:
        from app.compare.charts import save  # Altair takes a second to import

        for path in save(comparison, args.charts):
            print(f"wrote {path}", file=sys.stderr)


def _history(entries: Sequence[Comparison]) -> str:
    if not entries:
        return "Nothing has been compared yet."
    return "\n".join(
        "  ".join(
            [
                comparison.id,
                f"{len(comparison.runs)}/{len(comparison.slots())} runs",
                comparison.columns[0].load.target.stem,
                ", ".join(column.name for column in comparison.columns),
            ]
        )
        for comparison in entries
    )

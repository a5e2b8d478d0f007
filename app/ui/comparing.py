"""The one comparison that is being made: in a thread of its own, so that no tab holds it up or ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.compare import runner
from app.compare.record import Comparison
from app.compare.summary import labels
from app.core.errors import HeadstartError
from app.ui import stream
from app.worker.client import WorkerClient


@dataclass(slots=True)
class _Live:
    """What is known of a comparison under way. ``lines`` are the current run's tokens as records."""

    number: int
    words: str = "Looking at this machine"
    comparison: Comparison | None = None
    work: runner.Runner | None = None
    labels: dict[str, str] = field(default_factory=dict)
    progress: runner.Progress | None = None
    run: int = 0
    column: str = ""
    prompt: str = ""
    lines: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_stopping: bool = False
    is_over: bool = False
    error: str = ""


class Comparing:
    """Makes comparisons one at a time; any number of tabs may follow."""

    def __init__(self, client: WorkerClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._live = _Live(0, is_over=True)

    @property
    def current(self) -> str:
        """The id of the comparison under way, or an empty string."""
        live = self._live
        return "" if live.is_over or not live.comparison else live.comparison.id

    def start(self, prepare: Callable[[], Comparison]) -> None:
        """Begin with what ``prepare`` makes, which may take seconds. Raises HeadstartError where one runs."""
        with self._lock:
            if not self._live.is_over:
                raise HeadstartError("a comparison is already being made", "stop it, or wait for its end")
            live = self._live = _Live(self._live.number + 1)
        threading.Thread(target=self._make, args=(live, prepare), daemon=True).start()

    def stop(self) -> None:
        """End it after what is done; the current run is dropped."""
        with self._lock:
            self._live.is_stopping = True
            if self._live.work:
                self._live.work.cancel()

    def news(self, seen: Mapping[str, int]) -> dict[str, Any]:
        """What has changed since ``seen``: the ``number``, ``run``, ``at`` and ``row`` of the last news."""
        with self._lock:
            live = self._live
            is_known = seen.get("number") == live.number
            at = seen.get("at", 0) if is_known and seen.get("run") == live.run else 0
            row = seen.get("row", 0) if is_known else 0
            progress = live.progress
            return {
                "number": live.number,
                "run": live.run,
                "at": len(live.lines),
                "row": len(live.rows),
                "lines": live.lines[at:],
                "rows": live.rows[row:],
                "id": live.comparison.id if live.comparison else "",
                "words": live.words,
                "column": live.column,
                "prompt": live.prompt,
                "done": progress.done if progress else 0,
                "total": progress.total if progress else 0,
                "remaining_s": progress.remaining_s if progress else None,
                "stopping": live.is_stopping,
                "over": live.is_over,
                "error": live.error,
            }

    def _make(self, live: _Live, prepare: Callable[[], Comparison]) -> None:
        try:
            comparison = prepare()
            work = runner.Runner(self._client, comparison)
            with self._lock:
                live.comparison, live.work = comparison, work
                live.labels, live.progress = labels(comparison), work.progress()
                live.rows = [_row_words(live, row) for row in comparison.runs]
                if live.is_stopping:
                    work.cancel()
            for event in work.events():
                with self._lock:
                    _take(live, event)
        except HeadstartError as error:
            live.error = str(error)
        except Exception as error:  # a page that waits must be told, whatever happened
            live.error = f"the comparison failed: {type(error).__name__}: {error}"
        finally:
            live.is_over = True


def _take(live: _Live, event: runner.Event) -> None:
    match event:
        case runner.Doing(what, progress):
            live.words, live.progress = what[:1].upper() + what[1:], progress
        case runner.RunStarted(slot, progress):
            live.run += 1
            live.lines = []
            live.column = live.labels[slot.column.name]
            live.prompt = f"{slot.prompt.id}, run {slot.repeat + 1}"
            live.words, live.progress = "Running", progress
        case runner.TokensCame(_, _, tokens):
            live.lines += map(stream.token_record, tokens)
        case runner.RunEnded(row, progress):
            live.rows.append(_row_words(live, row))
            live.progress = progress


def _row_words(live: _Live, row: Any) -> dict[str, Any]:
    speed = row.stats.tokens_per_s if row.stats else None
    return {
        "column": live.labels[row.column],
        "prompt": row.prompt_id,
        "repeat": row.repeat + 1,
        "speed": f"{speed:.1f}" if speed else "",
        "error": row.error or "",
    }

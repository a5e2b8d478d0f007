"""The one draft that is being made or searched for: in a thread of its own, so that no tab ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.core.errors import Cancelled, HeadstartError
from app.worker.client import WorkerClient

if TYPE_CHECKING:
    from app.drafts.trials import News, Result
    from app.library.making import Making

OnProgress = Callable[[str, int, int], None]
Stopped = Callable[[], bool]


class Workshop(Protocol):
    """What makes the drafts; tests put their own in its place."""

    def plan(self, target: Path, file_type: str | None, skip: str | None, name: str | None) -> Making: ...
    def make(self, making: Making, on_progress: OnProgress, stopped: Stopped) -> Path: ...
    def search(
        self, target: Path, minutes: float, on_news: Callable[[News], None], stopped: Stopped
    ) -> Result: ...


@dataclass(frozen=True, slots=True)
class DiskWorkshop:
    """The workshop of this machine. Its rooms are imported when first asked: the page must come up fast."""

    client: WorkerClient

    def plan(self, target: Path, file_type: str | None, skip: str | None, name: str | None) -> Making:
        """What making a draft will take."""
        from app.library.making import plan_draft

        return plan_draft(target, file_type, skip, name)

    def make(self, making: Making, on_progress: OnProgress, stopped: Stopped) -> Path:
        """Write it."""
        from app.library.making import make

        return make(making, on_progress, stopped)

    def search(
        self, target: Path, minutes: float, on_news: Callable[[News], None], stopped: Stopped
    ) -> Result:
        """Look for the best; the measuring runs wait their turn among the answers."""
        from app.drafts.search import search

        return search(target, minutes, on_news=on_news, cancelled=stopped, client=self.client)


@dataclass(slots=True)
class _Live:
    """What is known of the work under way, or of the last one."""

    number: int
    title: str = ""
    target: str = ""
    step: str = "Starting"
    done: int = 0
    total: int = 1
    rows: list[list[str]] = field(default_factory=list)
    verdict: str = ""
    kept: str = ""
    error: str = ""
    is_stopping: bool = False
    is_over: bool = False

    def take(self, step: str, done: int, total: int) -> None:
        self.step, self.done, self.total = step[:1].upper() + step[1:], done, total


class MakingDrafts:
    """Makes or searches, one at a time; any number of tabs may follow."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._lock = threading.Lock()
        self._live = _Live(0, is_over=True)

    def make(self, making: Making) -> None:
        """Begin to write a draft. Raises HeadstartError where one is being made."""

        def work(live: _Live) -> None:
            path = self._workshop.make(making, live.take, lambda: live.is_stopping)
            live.kept = str(path)
            live.verdict = f"{path.name} is made: it stands first among the drafts of {making.source.name}"

        self._start(f"Making {making.destination.name}", str(making.target), work)

    def search(self, target: Path, minutes: float) -> None:
        """Begin to search. Raises HeadstartError where a draft is being made."""
        from app.drafts import trials

        def work(live: _Live) -> None:
            def take(news: News) -> None:
                live.take(news.step, news.done, news.total)
                live.rows = [list(row) for row in trials.rows(news.trials)]

            result = self._workshop.search(target, minutes, take, lambda: live.is_stopping)
            live.rows = [list(row) for row in trials.rows(result.trials)]
            live.kept = str(result.kept or "")
            live.verdict = result.verdict

        self._start(f"Searching for a draft of {target.name}", str(target), work)

    def stop(self) -> None:
        """End it; nothing half made stays."""
        self._live.is_stopping = True

    def news(self) -> dict[str, Any]:
        """How it stands."""
        live = self._live
        return {
            "number": live.number,
            "title": live.title,
            "target": live.target,
            "step": "Stopping" if live.is_stopping and not live.is_over else live.step,
            "done": live.done,
            "total": live.total,
            "rows": live.rows,
            "verdict": live.verdict and live.verdict + ".",
            "kept": live.kept,
            "failed": live.error,
            "stopping": live.is_stopping,
            "over": live.is_over,
        }

    def _start(self, title: str, target: str, work: Callable[[_Live], None]) -> None:
        with self._lock:
            if not self._live.is_over:
                raise HeadstartError("a draft is already being made", "stop it, or wait for its end")
            self._live = live = _Live(self._live.number + 1, title, target)
        threading.Thread(target=self._run, args=(live, work), daemon=True).start()

    def _run(self, live: _Live, work: Callable[[_Live], None]) -> None:
        try:
            work(live)
        except Cancelled:
            live.verdict = "Stopped; nothing was kept"
        except HeadstartError as error:
            live.error = str(error)
        except Exception as error:  # a page that waits must be told, whatever happened
            live.error = f"making the draft failed: {type(error).__name__}: {error}"
        finally:
            live.is_over = True

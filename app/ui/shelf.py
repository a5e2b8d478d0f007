"""What the page knows of presets and model files, through the library and at a bearable price."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.core.errors import HeadstartError
from app.core.memory import MemoryEstimate
from app.core.models import Device, PairCheck
from app.core.settings import LoadSettings
from app.library.catalogue import ModelFile
from app.library.fetch import Progress
from app.library.presets import Preset, PresetModel

if TYPE_CHECKING:
    from app.compare.outlook import Expectation


class Shelf(Protocol):
    """Presets, model files and downloads, as the page asks for them; tests put their own in its place."""

    def presets(self) -> tuple[list[Preset], list[HeadstartError]]: ...
    def models(self) -> list[ModelFile]: ...
    def drafts_for(self, target: Path) -> list[tuple[ModelFile, PairCheck]]: ...
    def missing(self, preset: Preset) -> list[PresetModel]: ...
    def path_of(self, model: PresetModel) -> Path: ...
    def best_preset(self) -> Preset | None: ...
    def download(self, preset: Preset) -> Download: ...
    def memory(self, load: LoadSettings) -> MemoryEstimate: ...
    def outlook(self, load: LoadSettings) -> list[Expectation]: ...


@dataclass(slots=True)
class Download:
    """A preset's files on their way, in a thread of its own that any number of tabs may watch."""

    preset: Preset
    total: int
    done_before: int = 0
    progress: Progress | None = None
    error: HeadstartError | None = None
    is_over: bool = False
    cancelled: bool = False

    @property
    def done(self) -> int:
        """Bytes of all its files so far."""
        return self.done_before + (self.progress.done if self.progress else 0)

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go, or None while that is unknown."""
        rate = self.progress.rate if self.progress else None
        return (self.total - self.done) / rate if rate else None


class DiskShelf:
    """The shelf of this machine. The library is imported when first asked: the page must come up fast."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._downloads: dict[str, Download] = {}
        self._best: list[Preset | None] = []

    def presets(self) -> tuple[list[Preset], list[HeadstartError]]:
        """The shipped presets, and what is wrong with those that can't be read."""
        from app.library.presets import load_presets

        return load_presets()

    def models(self) -> list[ModelFile]:
        """Every model file on this machine."""
        from app.library.catalogue import list_models

        return list_models()

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

    def download(self, preset: Preset) -> Download:
        """The download of the preset's missing files: the one under way, or a new one."""
        with self._lock:
            download = self._downloads.get(preset.name)
            if download is None or download.is_over:
                files = self.missing(preset)
                download = Download(preset, sum(file.size for file in files))
                self._downloads[preset.name] = download
                threading.Thread(target=_fetch, args=(download, files), daemon=True).start()
            return download


def _best_preset() -> Preset | None:
    import psutil

    from app.library.presets import best_preset, load_presets
    from app.worker.tasks import list_devices

    devices: Sequence[Device] = ()
    with contextlib.suppress(HeadstartError):  # a broken llama.cpp shows itself when an answer is asked for
        devices = list_devices()
    return best_preset(load_presets()[0], psutil.virtual_memory().total, devices)


def _fetch(download: Download, files: list[PresetModel]) -> None:
    from app.core.errors import Cancelled
    from app.library.fetch import get

    try:
        for place, file in enumerate(files):
            later = sum(other.size for other in files[place + 1 :])

            def note(progress: Progress, later: int = later) -> None:
                download.progress = progress
                download.total = download.done_before + progress.total + later  # the first was a guess

            get(file, note, lambda: download.cancelled)
            download.done_before += download.progress.total if download.progress else file.size
            download.progress = None
    except Cancelled:
        download.cancelled = True
    except HeadstartError as error:
        download.error = error
    except Exception as error:
        download.error = HeadstartError(f"the download of {download.preset.title} failed: {error}")
    finally:
        download.is_over = True

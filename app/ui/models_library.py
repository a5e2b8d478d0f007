"""What the Models tab asks of the library; imported when first asked, since the page must come up fast."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.core.errors import HeadstartError
from app.core.memory import MemoryEstimate
from app.core.settings import LoadSettings

if TYPE_CHECKING:
    from app.compare.outlook import Expectation
    from app.library.catalogue import ModelFile
    from app.library.downloads import DownloadQueue
    from app.library.folders import Place
    from app.library.pairs import Candidate, Sibling
    from app.library.presets import Preset
    from app.library.search import HubFiles, HubRepository


class Library(Protocol):
    """Files, pairs, the hub and the downloads; tests put their own in its place."""

    def models(self, on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]: ...
    def remove(self, path: Path) -> int: ...
    def places(self) -> list[Place]: ...
    def add_folder(self, path: Path) -> None: ...
    def forget_folder(self, path: Path) -> None: ...
    def rank_drafts(self, target: Path) -> list[Candidate]: ...
    def siblings(self, target: ModelFile) -> list[Sibling]: ...
    def estimate(self, load: LoadSettings) -> MemoryEstimate: ...
    def outlook(self, load: LoadSettings) -> list[Expectation]: ...
    def fit(self, n_bytes: int) -> str: ...
    def presets(self) -> list[Preset]: ...
    def is_here(self, preset: Preset) -> bool: ...
    def search(
        self, words: str, sort: str, size: str, licence: str, no_gated: bool
    ) -> list[HubRepository]: ...
    def files_of(self, repository: str) -> HubFiles: ...
    def save_token(self, token: str) -> None: ...
    def token_source(self) -> str: ...
    def queue(self) -> DownloadQueue: ...


class DiskLibrary:
    """The library of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: DownloadQueue | None = None

    def models(self, on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]:
        """Every model file of every place; ``on_read(done, total)`` follows the reading of new ones."""
        from app.library.catalogue import list_models

        return list_models(on_read)

    def remove(self, path: Path) -> int:
        """Delete a model in the models folder; the bytes that are free then."""
        from app.library.removing import remove

        return remove(str(path))

    def places(self) -> list[Place]:
        """The folders that are looked into."""
        from app.library.folders import places

        return places()

    def add_folder(self, path: Path) -> None:
        """Look into this one too."""
        from app.library.folders import add_folder

        add_folder(path)

    def forget_folder(self, path: Path) -> None:
        """Do not look there any more."""
        from app.library.folders import forget_folder

        forget_folder(path)

    def rank_drafts(self, target: Path) -> list[Candidate]:
        """The drafts that fit, best first, then the others with their reasons; may take seconds."""
        from app.library.pairs import rank_drafts

        return rank_drafts(target)

    def siblings(self, target: ModelFile) -> list[Sibling]:
        """Small models of the target's family that are known from the hub."""
        from app.library.pairs import siblings

        return siblings(target)

    def estimate(self, load: LoadSettings) -> MemoryEstimate:
        """The memory that this would take; may take seconds."""
        from app.library.memory import estimate

        return estimate(load)

    def outlook(self, load: LoadSettings) -> list[Expectation]:
        """What Auto may gain with these models, by kind of task."""
        from app.compare.outlook import outlook

        return outlook(load)

    def fit(self, n_bytes: int) -> str:
        """Whether a model file of that size suits this machine: ``fits``, ``tight`` or ``large``."""
        from app.library.search import fit

        return fit(n_bytes, *_memory())

    def presets(self) -> list[Preset]:
        """The shipped presets."""
        from app.library.presets import load_presets

        return load_presets()[0]

    def is_here(self, preset: Preset) -> bool:
        """Whether nothing of it is left to fetch."""
        from app.library.catalogue import missing

        return not missing(preset)

    def search(self, words: str, sort: str, size: str, licence: str, no_gated: bool) -> list[HubRepository]:
        """Repositories of the hub; ``size`` as in ``most_parameters``."""
        from app.library.search import Filters, most_parameters, search

        filters = Filters(licence, no_gated, most_parameters(size, _memory))
        return search(words, sort=sort, filters=filters)

    def files_of(self, repository: str) -> HubFiles:
        """A repository's model files."""
        from app.library.search import files_of

        return files_of(repository)

    def save_token(self, token: str) -> None:
        """Keep a hub token, or keep none any more."""
        from app.library.tokens import save_token

        save_token(token)

    def token_source(self) -> str:
        """Where the token comes from that the hub is sent, in words; empty where there is none."""
        from app.library.tokens import token_source

        return token_source()

    def queue(self) -> DownloadQueue:
        """The program's one queue; what a former run left unfinished goes on when it is first asked for."""
        from app.library.downloads import DownloadQueue

        with self._lock:
            if self._queue is None:
                self._queue = DownloadQueue()
            return self._queue

    def close(self) -> None:
        """End the downloads; the next start goes on with them."""
        with self._lock:
            if self._queue is not None:
                self._queue.close()


@functools.cache
def _memory() -> tuple[int, int]:
    """Bytes of this machine's RAM and of its largest graphics device, or 0."""
    import psutil

    from app.worker.tasks import list_devices

    gpu = 0
    with contextlib.suppress(HeadstartError):  # a broken llama.cpp shows itself elsewhere
        gpu = max((device.memory_total for device in list_devices() if device.kind == "gpu"), default=0)
    return psutil.virtual_memory().total, gpu

"""The model files on this machine as the Models tab shows them, and the folders that are looked into."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.errors import HeadstartError
from app.core.models import WHY_UNUSABLE
from app.core.paths import models_dir
from app.core.split import model_name
from app.ui.figures import size
from app.ui.models_library import Library

if TYPE_CHECKING:
    from app.library.catalogue import ModelFile
    from app.library.folders import Place

PATIENCE_S = 0.3  # what a look waits for before it tells how far the reading is
KINDS = {
    "broken": "broken",
    "incomplete": "incomplete",
    "unfinished": "unfinished download",
    "projector": "image projector",
    "vocabulary": "vocabulary only",
}


@dataclass(slots=True)
class _Reading:
    """One look at all the files, which any number of tabs may wait for."""

    done: int = 0
    total: int = 0
    files: list[ModelFile] = field(default_factory=list)
    error: HeadstartError | None = None
    over: threading.Event = field(default_factory=threading.Event)


class Disk:
    """Answers the script's questions about files and folders."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._reading: _Reading | None = None
        self.acts: dict[str, Callable[..., Any]] = {
            "look": self._look,
            "remove": self._remove,
            "add_folder": self._add_folder,
            "forget_folder": self._forget_folder,
        }

    def files(self) -> list[ModelFile]:
        """The files as they were last seen; looks at them if nobody has yet."""
        reading = self._reading if self._reading and not self._reading.error else self._start()
        reading.over.wait()
        if reading.error:
            raise reading.error
        return reading.files

    def file(self, path: str) -> ModelFile:
        """The file of that path. Raises HeadstartError where it isn't there any more."""
        found = next((file for file in self.files() if str(file.path) == path), None)
        if found is None:
            raise HeadstartError("this file is not there any more", "look again")
        return found

    def sizes(self) -> set[tuple[str, int]]:
        """Name and size of each file, to tell what of the hub's is here."""
        return {(file.path.name, file.size_bytes) for file in self.files()}

    def _start(self) -> _Reading:
        with self._lock:
            if self._reading is None or self._reading.over.is_set():
                self._reading = _Reading()
                threading.Thread(target=self._read, args=(self._reading,), daemon=True).start()
            return self._reading

    def _read(self, reading: _Reading) -> None:
        def note(done: int, total: int) -> None:
            reading.done, reading.total = done, total

        try:
            reading.files = self._library.models(note)
        except HeadstartError as error:
            reading.error = error
        except Exception as error:  # a page that waits must be told, whatever happened
            reading.error = HeadstartError(f"reading the model files failed: {type(error).__name__}: {error}")
        finally:
            reading.over.set()

    def _look(self, fresh: bool) -> dict[str, Any]:
        """The files, or how far their reading is; ``fresh`` begins one unless it is under way."""
        reading = self._start() if fresh or self._reading is None else self._reading
        if not reading.over.wait(PATIENCE_S):
            return {"reading": [reading.done, reading.total]}
        if reading.error:
            raise reading.error
        places = self._library.places()
        home = {file.path: _home(file.path, places) for file in reading.files}
        counts = Counter(place.path for place in home.values() if place)
        return {
            "rows": [row(file, home[file.path]) for file in reading.files],
            "places": [
                {
                    "path": str(place.path),
                    "title": title(place),
                    "count": counts[place.path],
                    "forgettable": place.source == "added",
                }
                for place in places
            ],
            "free": size(shutil.disk_usage(_existing(models_dir())).free),
        }

    def _remove(self, path: str) -> dict[str, Any]:
        file = self.file(path)
        freed = self._library.remove(file.path)
        return {"said": f"{file.name} is removed, {size(freed)} are free again"}

    def _add_folder(self, path: str) -> dict[str, Any]:
        if not path.strip():
            raise HeadstartError("no folder is named", "type its path")
        self._library.add_folder(Path(path.strip()))
        return {}

    def _forget_folder(self, path: str) -> dict[str, Any]:
        self._library.forget_folder(Path(path))
        return {}


def title(place: Place) -> str:
    """What the place is called on the page."""
    return {"models": "models folder", "added": f"folder {place.title}"}.get(place.source, place.title)


def row(file: ModelFile, place: Place | None) -> dict[str, Any]:
    """A line of the table: numbers to sort by, and words to show."""
    facts = file.facts
    return {
        "id": str(file.path),
        "name": file.name,
        "usable": file.is_usable,
        "kind": "" if file.is_usable else KINDS.get(file.kind, file.kind),
        "reason": "" if file.is_usable else file.problem or WHY_UNUSABLE.get(file.kind, ""),
        "architecture": facts.architecture if facts else "",
        "parameters": facts.parameters if facts else 0,
        "parameters_words": parameters(facts.parameters) if facts else "",
        "quantization": facts.quantization if facts else "",
        "context": facts.n_ctx_train if facts else 0,
        "vocabulary": facts.n_vocab if facts else 0,
        "template": facts.has_chat_template if facts else None,
        "size": file.size_bytes,
        "size_words": size(file.size_bytes),
        "source": title(place) if place else file.source,
        "licence": (facts.licence if facts else None) or "",
        "removable": file.source == "models",
    }


def title_of(repository: str, file: str) -> str:
    """What the queue calls the download of a file."""
    return f"{repository}: {model_name(Path(file))}"


def parameters(number: int) -> str:
    """As names of models give it: 135 M, 1.5 B."""
    if number < 1_000_000:
        return str(number)
    return f"{number / 1e6:.0f} M" if number < 1e9 else f"{number / 1e9:.1f} B"


def _home(path: Path, places: list[Place]) -> Place | None:
    """The innermost place that the file lies in."""
    around = [place for place in places if place.path in path.parents]
    return max(around, key=lambda place: len(place.path.parts), default=None)


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())

"""What can be had: the presets, the hub's repositories and their files, and the downloads under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.ui.figures import count, seconds, size
from app.ui.models_disk import Disk, title_of
from app.ui.models_library import Library

if TYPE_CHECKING:
    from app.library.downloads import DownloadState
    from app.library.presets import Preset

UNDER_WAY = ("waiting", "running")


class Find:
    """Answers the script's questions about the hub and the queue."""

    def __init__(self, library: Library, disk: Disk) -> None:
        self._library = library
        self._disk = disk
        self.acts: dict[str, Callable[..., Any]] = {
            "presets": self._presets,
            "search": self._search,
            "files": self._files,
            "token": self._token,
            "queue": self._queue,
            "download": self._download,
            "cancel": self._cancel,
            "retry": self._retry,
            "forget": self._forget,
        }

    # ---- what there is ------------------------------------------------------------------------------------

    def _presets(self) -> dict[str, Any]:
        return {
            "presets": [
                {
                    "wanted": preset.name,
                    "file": preset.title,
                    "summary": preset.summary if preset.is_tried else _origins(preset),
                    "size": size(preset.size),
                    "fit": self._library.fit(preset.size),
                    "tried": preset.is_tried,
                    "titles": [
                        title_of(model.hub.repository, f"{model.name}.gguf") for model in preset.models
                    ],
                }
                for preset in self._library.presets()
                if not self._library.is_here(preset)
            ]
        }

    def _search(self, words: str, sort: str, size: str, licence: str, no_gated: bool) -> dict[str, Any]:
        return {
            "found": [
                {
                    "repository": one.repository,
                    "words": f"{_short(one.downloads)} downloads · {count(one.likes, 'like')}"
                    + (f" · updated {one.updated[:10]}" if one.updated else ""),
                    "licence": one.licence or "",
                    "gated": bool(one.gated),
                }
                for one in self._library.search(words.strip(), sort, size, licence, no_gated)
            ]
        }

    def _files(self, repository: str) -> dict[str, Any]:
        listed = self._library.files_of(repository)
        here = self._disk.sizes()
        return {
            "gated": listed.gated,
            "licence": listed.licence or "",
            "files": [
                {
                    "wanted": f"{repository}:{file.file}",
                    "file": file.file,
                    "quantization": file.quantization,
                    "size": size(file.size),
                    "parts": count(len(file.parts), "file") if len(file.parts) > 1 else "",
                    "here": (file.file.rpartition("/")[2], file.size) in here,
                    "fit": self._library.fit(file.size),
                    "titles": [title_of(listed.repository, file.file)],
                }
                for file in listed.files
                if file.is_model
            ],
        }

    def _token(self, token: str | None = None) -> dict[str, Any]:
        """Keep a token, or none any more if it is empty; where the one comes from that is used now."""
        if token is not None:
            self._library.save_token(token)
        return {"source": self._library.token_source()}

    # ---- the queue ----------------------------------------------------------------------------------------

    def _queue(self) -> dict[str, Any]:
        states = self._library.queue().states()
        return {
            "entries": [entry(state) for state in states],
            "under_way": sum(state.state in UNDER_WAY for state in states),
        }

    def _download(self, wanted: str) -> dict[str, Any]:
        self._library.queue().add(wanted.strip())
        return self._queue()

    def _cancel(self, id: str) -> dict[str, Any]:
        self._library.queue().cancel(id)
        return self._queue()

    def _retry(self, id: str) -> dict[str, Any]:
        self._library.queue().retry(id)
        return self._queue()

    def _forget(self, id: str) -> dict[str, Any]:
        self._library.queue().forget(id)
        return self._queue()


def entry(state: DownloadState) -> dict[str, Any]:
    """A download as a line of the queue."""
    moved = f"{size(state.done)} of {size(state.total)}" if state.total else size(state.done)
    words = [moved]
    if state.state == "running":
        words += [f"{size(round(state.rate))}/s"] if state.rate else []
        left = state.remaining_s
        words += [f"about {seconds(max(1, round(left)))} to go"] if left is not None else []
    return {
        "id": state.id,
        "title": state.title,
        "state": state.state,
        "step": state.step,
        "words": " · ".join(words),
        "fraction": state.done / state.total if state.total else 0,
        "error": state.error or "",
        "path": str(state.path) if state.path and state.state == "done" else "",
    }


def _origins(preset: Preset) -> str:
    return " + ".join(model.hub.repository for model in preset.models)


def _short(number: int) -> str:
    if number < 1000:
        return str(number)
    return f"{number / 1e3:.0f} k" if number < 1e6 else f"{number / 1e6:.1f} M"

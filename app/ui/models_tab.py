"""The Models tab: what is on disk, what fits together, what can be had, what is on its way."""

from __future__ import annotations

from app.ui.components import answering, scripted
from app.ui.models_disk import Disk
from app.ui.models_find import Find
from app.ui.models_library import Library
from app.ui.models_pairs import Pairs

SCRIPTS = [
    "nodes.js",
    "memory-bar.js",
    "outlook-list.js",
    "models.js",
    "models-disk.js",
    "models-pairs.js",
    "models-find.js",
    "models-queue.js",
]


class ModelsTab:
    """Builds the tab into the open Blocks; its script asks, its rooms answer."""

    def __init__(self, library: Library) -> None:
        disk = Disk(library)
        acts = {**disk.acts, **Pairs(library, disk).acts, **Find(library, disk).acts}
        scripted(
            "models.html", SCRIPTS, value={}, elem_id="models", server_functions=[answering("models", acts)]
        )

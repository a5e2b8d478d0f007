"""The tab "Make a draft": a cheaper copy of a target, made as asked or searched for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.core.copies import FILE_TYPES
from app.core.errors import UsageError
from app.ui.components import answering, scripted
from app.ui.figures import size
from app.ui.making_drafts import MakingDrafts, Workshop
from app.ui.picker import require_listed, target_options, valid
from app.ui.shelf import Shelf

SCRIPTS = ["nodes.js", "make-draft.js"]
_MOST_MINUTES = 24 * 60


class MakeDraftTab:
    """Builds the tab into the open Blocks and answers its script."""

    def __init__(self, shelf: Shelf, workshop: Workshop) -> None:
        self._shelf = shelf
        self._workshop = workshop
        self._work = MakingDrafts(workshop)
        acts: dict[str, Callable[..., Any]] = {
            "begin": self._begin,
            "plan": self._plan,
            "make": self._make,
            "search": self._search,
            "halt": self._halt,
            "news": self._work.news,
        }
        scripted(
            "make-draft.html",
            SCRIPTS,
            value={},
            elem_id="make-draft",
            server_functions=[answering("drafts", acts)],
        )

    def _begin(self, target: str) -> dict[str, Any]:
        from app.drafts.search import USUAL_MINUTES
        from app.drafts.trials import HEADING

        targets = target_options(self._shelf)
        return {
            "targets": targets or [("", "no model yet", "fetch one on the Models tab")],
            "target": valid(target, targets),
            "types": [name for name in FILE_TYPES if name not in ("F32", "F16", "BF16")],
            "minutes": USUAL_MINUTES,
            "heading": HEADING,
        }

    def _plan(self, **asked: str) -> dict[str, Any]:
        """What it will be, or why it can't be made."""
        wanted = self._wanted(**asked)
        plan, copy = wanted.plan, wanted.copy
        layers = f"{len(copy.skipped_layers)} layers fewer" if copy.skipped_layers else "all layers"
        return {
            "name": wanted.destination.stem,
            "size": f"about {size(plan.size_bytes)}",
            "cost": f"{plan.cost:.2f}",
            "words": f"{copy.file_type or 'types as they are'}, {layers}",
        }

    def _make(self, **asked: str) -> dict[str, Any]:
        self._work.make(self._wanted(**asked))
        return {}

    def _search(self, target: str, minutes: str) -> dict[str, Any]:
        try:
            number = float(minutes)
        except ValueError:
            raise UsageError(f"'{minutes}' is not a number of minutes") from None
        if not 0 < number <= _MOST_MINUTES:
            raise UsageError(f"minutes {number:g} must lie above 0 and within a day")
        self._work.search(self._target(target), number)
        return {}

    def _halt(self) -> dict[str, Any]:
        self._work.stop()
        return {}

    def _wanted(self, target: str, type: str, skip: str, name: str) -> Any:
        return self._workshop.plan(
            self._target(target), type or None, skip.strip() or None, name.strip() or None
        )

    def _target(self, text: str) -> Path:
        if not text:
            raise UsageError("there is no target yet; fetch a model on the Models tab")
        require_listed(self._shelf, Path(text))
        return Path(text)

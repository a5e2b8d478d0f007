"""Who can answer: presets, targets, the drafts that fit, and the offer to fetch what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.errors import HeadstartError
from app.core.settings import Mode
from app.library.catalogue import as_text
from app.library.presets import Preset, PresetModel
from app.ui.figures import seconds, size
from app.ui.shelf import Shelf
from app.worker.machine import usable_memory

if TYPE_CHECKING:
    from app.library.downloads import DownloadState

Picks = Mapping[str, Any]  # preset, target, mode, draft; "" where nothing is picked
NO_DRAFT = "none"  # picked on purpose, for Auto
Offer = dict[str, Any] | None  # what the card shows
Option = tuple[str, str, str]  # value, words, why it can't be chosen or ""
DRAFTING = (Mode.AUTO.value, Mode.DRAFT.value)  # the modes that may have a draft model
READY, TO_FETCH, UNTRIED = "Ready", "To fetch", "Well-known pairs, not tried here"


@dataclass(frozen=True, slots=True)
class Picker:
    """Turns picks into what the page shows of them."""

    shelf: Shelf

    def preset(self, name: str | None) -> Preset | None:
        """The preset of that name."""
        return next((preset for preset in self.shelf.presets()[0] if preset.name == name), None)

    def first(self) -> Preset | None:
        """The preset to begin with: the largest that is all here."""
        ready = [preset for preset in self.shelf.presets()[0] if not self.shelf.missing(preset)]
        return max(ready, key=lambda preset: preset.size, default=None)

    def picks_of(self, preset: Preset) -> Picks:
        """What a preset picks."""
        draft = str(self.shelf.path_of(preset.draft)) if preset.draft else NO_DRAFT
        target = str(self.shelf.path_of(preset.target))
        mode = preset.speculation.mode.value
        return {"preset": preset.name, "target": target, "mode": mode, "draft": draft}

    def shown(self, picks: Picks, offer: Offer) -> tuple[dict[str, Any], dict[str, Any], Offer]:
        """The values of picker, notes and offer, after the ``offer`` that is shown now.

        A pick that can't be used any more is replaced, and a note says so.
        """
        presets, errors = self.shelf.presets()
        try:
            targets = target_options(self.shelf)
        except HeadstartError as error:  # llama.cpp itself does not load here
            targets, errors = [], [*errors, error]
        target = valid(picks.get("target"), targets)
        mode = picks.get("mode") or Mode.AUTO.value
        drafts, problem = draft_options(self.shelf, target) if mode in DRAFTING else ([], None)
        picked = picks.get("draft")
        draft = valid(picked, drafts, avoid=target)
        if mode == Mode.AUTO.value:
            drafts = [(NO_DRAFT, "No draft, look-ups alone", ""), *drafts]
            draft = NO_DRAFT if picked == NO_DRAFT else draft or NO_DRAFT
        chosen = self.preset(picks.get("preset"))
        value = {
            "preset": chosen.name if chosen else "",
            "target": target,
            "mode": mode,
            "draft": draft,
            "options": {
                "preset": self._preset_options(presets),
                "target": targets or [("", "no model yet", "fetch a preset")],
                "draft": drafts or [("", "none", "no model is here to draft")],
            },
        }
        problems = [str(error) for error in [*errors, *([problem] if problem else [])]]
        problems += replacement("target", picks.get("target"), target, targets)
        problems += replacement("draft", picked if picked != NO_DRAFT else None, draft, drafts)
        notes = {"summary": chosen.summary if chosen else "", "problems": problems}
        if not offer or offer["state"] != "fetching":  # the browser has "" for None
            is_missing = chosen is not None and bool(self.shelf.missing(chosen))
            stays = offer and offer.get("dismissable")
            offer = self.offer(chosen) if chosen and is_missing else offer if stays else None
        return value, notes, offer

    def offer(self, preset: Preset) -> dict[str, Any]:
        """The card that offers to fetch what a preset lacks."""
        licences = ", ".join(dict.fromkeys(model.licence for model in preset.models if model.licence))
        return {
            "state": "offer",
            "preset": preset.name,
            "title": f"{preset.title} is not on this machine yet",
            "words": f"{preset.summary} Licence: {licences}.",
            "button": f"Fetch {_size_words(self.shelf.missing(preset))}",
            "dismissable": False,
        }

    def best_offer(self) -> Offer:
        """The offer of the best preset for this machine, unless it is here."""
        best = self.shelf.best_preset()
        if best is None or not self.shelf.missing(best):
            return None
        title = f"A better pair for this machine: {best.title}"
        return {**self.offer(best), "title": title, "dismissable": True}

    def _preset_options(self, presets: list[Preset]) -> list[tuple[str, str, str, str]]:
        """As options, with the group that each belongs to; what is ready comes first."""
        groups: dict[str, list[tuple[str, str, str, str]]] = {READY: [], TO_FETCH: [], UNTRIED: []}
        _, ram = usable_memory()
        for preset in presets:
            lacking = self.shelf.missing(preset)
            group = TO_FETCH if preset.is_tried else UNTRIED
            words = f"{preset.title} ({_size_words(lacking)} to fetch)" if lacking else preset.title
            words += ", more than this machine's RAM" if preset.size > ram else ""
            groups[group if lacking else READY].append((preset.name, words, "", group if lacking else READY))
        return [("", "Your own choice", "", ""), *(option for group in groups.values() for option in group)]


def _size_words(files: list[PresetModel]) -> str:
    """How large the files are together, as far as that is known."""
    total = size(sum(file.size for file in files))
    if not all(file.size for file in files):
        return "all" if total == size(0) else f"more than {total}"
    return total if all(file.is_exact for file in files) else f"about {total}"


def progress_card(preset: Preset, files: Sequence[DownloadState]) -> dict[str, Any]:
    """The card while a preset's files are on their way."""
    step = next((file.step for file in files if file.step), "Waiting for other downloads")
    done, total = (sum(numbers) for numbers in zip(*((file.done, file.total) for file in files), strict=True))
    rate = sum(file.rate or 0 for file in files)
    left = f", about {seconds((total - done) / rate)} to go" if rate else ""
    return {
        "state": "fetching",
        "preset": preset.name,
        "title": preset.title,
        "words": f"{step}: {size(done)} of {size(total)}{left}",
        "fraction": done / total if total else 0,
    }


def target_options(shelf: Shelf) -> list[Option]:
    """Every model file; one that can't be loaded has the reason."""
    return [
        (
            as_text(str(file.path)),
            file.name,
            "" if file.is_usable else file.problem or f"of kind '{file.kind}'",
        )
        for file in shelf.models()
    ]


def draft_options(shelf: Shelf, target: str) -> tuple[list[Option], HeadstartError | None]:
    """Every model as a draft of the target, those that don't fit with the reason; or why that is unknown."""
    if not target:
        return [], None
    try:
        checked = shelf.drafts_for(Path(target))
    except HeadstartError as error:
        return [], error
    return [
        (str(file.path), file.name, "" if check.fits else "; ".join(check.reasons) or "does not fit")
        for file, check in checked
    ], None


def replacement(role: str, picked: str | None, taken: str, options: list[Option]) -> list[str]:
    """What to say where the ``picked`` file is gone or broken and another was ``taken``; mostly nothing."""
    if not picked or picked == taken or not options:
        return []
    names = {path: name for path, name, _ in options}
    if role == "draft" and picked in names:  # the list itself says why it does not fit
        return []
    why = next((problem for path, _, problem in options if path == picked), "it is not there any more")
    instead = f"{names[taken]} was chosen instead" if taken else "nothing can take its place"
    return [f"The {role} {Path(picked).stem} can't be used ({why}); {instead}"]


def require_listed(shelf: Shelf, *paths: Path | None) -> None:
    """Raise HeadstartError unless each path is one that can be picked: a request need not come from the page
    itself, nor be as young as the folder."""
    listed = {file.path for file in shelf.models()}
    for path in filter(None, paths):
        if path not in listed:
            raise HeadstartError(f"{path.name} is not among the models here", "choose another")


def valid(value: str | None, options: list[Option], avoid: str = "") -> str:
    """The value if it can be chosen, else the first that can, rather not the one to avoid."""
    possible = [path for path, _, problem in options if not problem]
    if value in possible:
        return str(value)
    return next((path for path in possible if path != avoid), "")

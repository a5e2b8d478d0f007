"""What a comparison consists of, and how it is written as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.settings import LoadSettings, Mode, Request, SamplingSettings, SpeculationSettings
from app.core.stats import Stats

SCHEMA = 1
# Those that are shown.
MACHINE_FACTS = frozenset({"os", "cpu", "ram_bytes", "threads", "llama_cpp", "devices", "models"})
Replay = tuple[tuple[float, tuple[tuple[str, str], ...]], ...]
RunKey = tuple[str, str, int]  # column, prompt, repeat


@dataclass(frozen=True, slots=True)
class Column:
    """One way to answer: the models, and a request that lacks only its prompt."""

    name: str
    load: LoadSettings
    request: Request

    @property
    def mode(self) -> Mode:
        """How tokens are proposed."""
        return self.request.speculation.mode

    def settings(self) -> dict[str, Any]:
        """Every setting by the name of its flag."""
        own = {"max_tokens": self.request.max_tokens, "stop": list(self.request.stop)}
        parts = (self.load, self.request.speculation, self.request.sampling)
        values = {name: value for part in parts for name, value in dataclasses.asdict(part).items()} | own
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def as_json(self) -> dict[str, Any]:
        """As ``from_json`` reads it."""
        return {"name": self.name, "mode": self.mode.value, "settings": self.settings()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Column:
        """The column that ``as_json`` wrote."""
        settings = value["settings"]

        def fields(kind: type) -> dict[str, Any]:
            return {field.name: settings[field.name] for field in dataclasses.fields(kind)}

        load = fields(LoadSettings)
        load |= {role: Path(load[role]) for role in ("target", "draft") if load[role]}
        return cls(
            value["name"],
            LoadSettings(**load),
            Request(
                (),
                max_tokens=settings["max_tokens"],
                stop=tuple(settings["stop"]),
                sampling=SamplingSettings(**fields(SamplingSettings)),
                speculation=SpeculationSettings(
                    **fields(SpeculationSettings) | {"mode": Mode(settings["mode"])}
                ),
            ),
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question; ``category`` is the kind of task."""

    id: str
    category: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Audit:
    """A greedy output beside plain's: ``identical``, ``near_tie`` or ``different``.

    At the first difference, ``position`` in the output: ``ids`` are plain's and this run's (None where one
    had ended), ``gap`` is how far apart the target puts them token by token, after penalties; None where
    they are not its two favourites.
    """

    verdict: str
    position: int | None = None
    ids: tuple[int | None, int | None] | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Where it failed, ``error`` says why and there are no figures."""

    column: str
    prompt_id: str
    category: str
    repeat: int
    output_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    stats: Stats | None = None
    audit: Audit | None = None
    error: str | None = None
    replay: Replay = ()

    @property
    def key(self) -> RunKey:
        """What tells it from the other runs."""
        return self.column, self.prompt_id, self.repeat

    def as_json(self) -> dict[str, Any]:
        """Without the replay."""
        return dataclasses.asdict(dataclasses.replace(self, replay=()), dict_factory=_without_replay)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Row:
        """The row that ``as_json`` wrote, its replay included where it is there."""
        stats, audit = value["stats"], value["audit"]
        if stats:
            per_position = ("drafted_per_position", "accepted_per_position")
            stats = Stats(**stats | {name: tuple(stats[name]) for name in per_position})
        if audit:
            audit = Audit(**audit | {"ids": tuple(audit["ids"]) if audit["ids"] else None})
        replay = tuple(
            (t, tuple((text, kind) for text, kind in tokens)) for t, tokens in value.get("replay", ())
        )
        return cls(
            **value
            | {"output_ids": tuple(value["output_ids"]), "stats": stats, "audit": audit, "replay": replay}
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """One run to make."""

    column: Column
    prompt: Prompt
    repeat: int

    @property
    def key(self) -> RunKey:
        """That of its row."""
        return self.column.name, self.prompt.id, self.repeat


@dataclass(slots=True)
class Comparison:
    """Columns, prompts and the runs made so far; ``created`` is local time in ISO format."""

    id: str
    created: str
    machine: dict[str, Any]
    columns: tuple[Column, ...]
    prompts: tuple[Prompt, ...]
    repeats: int
    runs: list[Row] = field(default_factory=list)

    @property
    def baseline(self) -> Column | None:
        """What the others are measured against: the first plain column."""
        return next((column for column in self.columns if column.mode is Mode.PLAIN), None)

    def slots(self) -> list[Slot]:
        """Every run in order: A B C for each prompt, and all of that again for each repeat.

        The columns take turns at each prompt, so that a machine which grows slower slows them alike. The
        baseline goes first, since the others are audited against it.
        """
        order = sorted(self.columns, key=lambda column: column is not self.baseline)
        return [
            Slot(column, prompt, repeat)
            for repeat in range(self.repeats)
            for prompt in self.prompts
            for column in order
        ]

    def remaining(self) -> list[Slot]:
        """The runs still to make, in order."""
        made = {row.key for row in self.runs}
        return [slot for slot in self.slots() if slot.key not in made]

    def plain_run(self, row: Row) -> Row | None:
        """The baseline's run of the same prompt and repeat."""
        wanted = (self.baseline.name if self.baseline else None, *row.key[1:])
        return next((run for run in self.runs if run.key == wanted), None)

    def speedups(self) -> dict[RunKey, float]:
        """Each run's speed over that of the plain run of the same prompt and repeat, where both have one."""
        speeds = {
            row.key: row.stats.tokens_per_s for row in self.runs if row.stats and row.stats.tokens_per_s
        }
        plain = self.baseline.name if self.baseline else ""
        pairs = {key: (speed, speeds.get((plain, *key[1:]))) for key, speed in speeds.items()}
        return {key: speed / base for key, (speed, base) in pairs.items() if base}

    def as_json(self) -> dict[str, Any]:
        """All of it, replays included, as ``from_json`` reads it."""
        return {
            "schema": SCHEMA,
            "id": self.id,
            "created": self.created,
            "machine": self.machine,
            "columns": [column.as_json() for column in self.columns],
            "prompts": [dataclasses.asdict(prompt) for prompt in self.prompts],
            "repeats": self.repeats,
            "runs": [row.as_json() | {"replay": row.replay} for row in self.runs],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Comparison:
        """The comparison that ``as_json`` wrote. Raises KeyError, TypeError or ValueError for others."""
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']}")
        if lacking := MACHINE_FACTS.difference(value["machine"]):
            raise KeyError(", ".join(sorted(lacking)))
        return cls(
            value["id"],
            value["created"],
            value["machine"],
            tuple(Column.from_json(column) for column in value["columns"]),
            tuple(Prompt(**prompt) for prompt in value["prompts"]),
            value["repeats"],
            [Row.from_json(row) for row in value["runs"]],
        )


def _without_replay(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != "replay"}

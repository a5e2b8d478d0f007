"""A comparison as JSON, CSV, Markdown, and as tables for a terminal."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from app.compare.record import SCHEMA, Comparison
from app.compare.summary import (
    Spread,
    Summary,
    acceptance_by_position,
    categories,
    labels,
    median_of,
    rows_of,
    summarise,
    verdicts,
)
from app.core.stats import Stats

_FIGURES = [field.name for field in dataclasses.fields(Stats)]
NOTHING = "–"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The export: every run without its replay, and the summary."""
    return {
        "schema": SCHEMA,
        "id": comparison.id,
        "created": comparison.created,
        "machine": comparison.machine,
        "columns": [column.as_json() for column in comparison.columns],
        "prompts": [dataclasses.asdict(prompt) for prompt in comparison.prompts],
        "repeats": comparison.repeats,
        "runs": [row.as_json() for row in comparison.runs],
        "summary": [dataclasses.asdict(part) for part in summarise(comparison)],
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts(comparison)],
    }


def as_csv(comparison: Comparison) -> str:
    """One line a run: what it was, its figures, its speed-up and its audit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    audit_fields = ["verdict", "position", "gap"]
    writer.writerow(
        ["column", "prompt_id", "category", "repeat", "finish_reason", "speedup"]
        + _FIGURES
        + [f"audit_{name}" for name in audit_fields]
        + ["error"]
    )
    speedups = comparison.speedups()
    for row in comparison.runs:
        figures = [getattr(row.stats, name) if row.stats else None for name in _FIGURES]
        audit = [getattr(row.audit, name) if row.audit else None for name in audit_fields]
        cells = [row.column, row.prompt_id, row.category, row.repeat, row.finish_reason]
        writer.writerow(map(_cell, [*cells, speedups.get(row.key), *figures, *audit, row.error]))
    return out.getvalue()


def as_markdown(comparison: Comparison) -> str:
    """The tables and the verdicts."""
    parts = [f"## Comparison {comparison.id}", _machine(comparison)]
    for heading, rows in tables(comparison):
        parts.append(f"### {heading}")
        lines = [_markdown_row(rows[0]), "|".join(["", " --- ", *[" ---: "] * (len(rows[0]) - 1), ""])]
        parts.append("\n".join([*lines, *map(_markdown_row, rows[1:])]))
    if said := sentences(comparison):
        parts.append("\n".join(f"- {_escaped(sentence)}" for sentence in said))
    return "\n\n".join(parts) + "\n"


def as_text(comparison: Comparison) -> str:
    """The same for a terminal."""
    parts = []
    for heading, rows in tables(comparison):
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = [
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
                ]
            ).rstrip()
            for row in rows
        ]
        parts.append("\n".join([heading, *(f"  {line}" for line in lines)]))
    parts.append("\n".join(sentences(comparison)))
    return "\n\n".join(filter(None, parts))


def sentences(comparison: Comparison) -> list[str]:
    """The verdicts, and what the audit can't say of sampled outputs."""
    said = [verdict.text for verdict in verdicts(comparison)]
    sampled = [column.name for column in comparison.columns if column.request.sampling.temperature > 0]
    if sampled:
        said.append(
            f"Sampled ({', '.join(sampled)}): outputs may differ from plain's; the distribution is kept."
        )
    return said


def tables(comparison: Comparison) -> list[tuple[str, list[list[str]]]]:
    """A heading and rows of cells, the first of them the names: by column, by kind of task, what failed."""
    parts = summarise(comparison)
    words = labels(comparison)
    kinds = categories(comparison)
    positions = {
        column.name: acceptance_by_position(rows_of(comparison, column.name)) for column in comparison.columns
    }
    by_column = [
        [
            "column",
            "tokens/s",
            "x plain",
            "min to max",
            "accepted",
            "length",
            "per pass",
            "first token",
            "audit",
        ]
    ]
    for part in parts:
        if part.category is None:
            first = median_of(rows_of(comparison, part.column), "time_to_first_token_s")
            by_column.append(
                [
                    _named(part.column, words),
                    number(part.tokens_per_s, ".1f"),
                    number(part.speedup.median if part.speedup else None, ".2f"),
                    _range(part.speedup),
                    number(part.acceptance_rate, ".0%"),
                    number(part.mean_acceptance_length, ".2f"),
                    number(part.tokens_per_pass, ".2f"),
                    number(first, ".2f", " s"),
                    audit_words(part),
                ]
            )
    found = [("By column", by_column)]
    if len(kinds) > 1:
        by_kind = [["x plain (accepted)", *kinds]]
        for column in comparison.columns:
            cells = {part.category: part for part in parts if part.column == column.name}
            by_kind.append([column.name, *(_kind_cell(cells[kind]) for kind in kinds)])
        found.append(("By kind of task", by_kind))
    if any(positions.values()):
        longest = max(map(len, positions.values()))
        by_position = [["accepted at place", *map(str, range(1, longest + 1))]]
        for name, rates in positions.items():
            if rates:
                padding = [NOTHING] * (longest - len(rates))
                by_position.append([name, *(number(rate, ".0%") for rate in rates), *padding])
        found.append(("By place in the draft", by_position))
    failed = [row for row in comparison.runs if row.error]
    if failed:
        reasons = [["column", "prompt", "repeat", "why it failed"]]
        reasons += [[row.column, row.prompt_id, str(row.repeat), row.error or ""] for row in failed]
        found.append(("Failed", reasons))
    parted = [row for row in comparison.runs if row.audit and row.audit.verdict != "identical"]
    if parted:
        evidence = [["column", "prompt", "repeat", "verdict", "position", "plain's, this", "gap"]]
        for row in parted:
            if row.audit:
                ids = " ".join(NOTHING if token is None else str(token) for token in row.audit.ids or ())
                verdict = "near-tie" if row.audit.verdict == "near_tie" else "DIFFERENT"
                place, gap = str(row.audit.position), number(row.audit.gap, ".3f")
                evidence.append([row.column, row.prompt_id, str(row.repeat), verdict, place, ids, gap])
        found.append(("Outputs that part from plain's", evidence))
    return found


def number(value: float | None, form: str, unit: str = "") -> str:
    """A figure, or a dash where there is none."""
    return NOTHING if value is None else f"{value:{form}}{unit}"


def audit_words(part: Summary) -> str:
    """The audit's counts in words; a dash where outputs may differ (sampling) or nothing ran."""
    if part.audit is None:
        return NOTHING
    names = {"identical": "identical", "near_tie": "near-tie", "different": "DIFFERENT"}
    return ", ".join(f"{count} {names[verdict]}" for verdict, count in part.audit.items() if count)


def _named(name: str, words: dict[str, str]) -> str:
    if words[name].casefold() == name.casefold():
        return name
    return words[name] if words[name].endswith(f"({name})") else f"{name} ({words[name]})"


def _kind_cell(part: Summary) -> str:
    if part.speedup is None:
        return number(part.tokens_per_s, ".1f", " tok/s")
    accepted = "" if part.acceptance_rate is None else f" ({part.acceptance_rate:.0%})"
    return f"{part.speedup.median:.2f}{accepted}"


def _range(spread: Spread | None) -> str:
    return f"{spread.min:.2f} to {spread.max:.2f}" if spread else NOTHING


def _machine(comparison: Comparison) -> str:
    machine = comparison.machine
    models = ", ".join(f"{model['name']} ({model['quantization']})" for model in machine["models"])
    return _escaped(
        f"{comparison.created} · {machine['cpu']}, {machine['threads']} threads, "
        f"{machine['ram_bytes'] / 2**30:.0f} GiB · llama.cpp {machine['llama_cpp']['version']} · {models}"
    )


def _cell(value: Any) -> Any:
    """A spreadsheet reads some texts as formulas, and a list needs a form."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _escaped(text: str) -> str:
    for sign in "\\`*<>|[]":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"

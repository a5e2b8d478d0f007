"""A comparison as the Compare tab shows it: every text ready to be set, every figure from the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.compare.record import Column, Comparison, Row
from app.compare.report import audit_words, number
from app.compare.summary import (
    Summary,
    acceptance_by_position,
    categories,
    labels,
    median_of,
    rows_of,
    summarise,
    verdicts,
)
from app.compare.workloads import KINDS
from app.core.tokens import TokenKind
from app.ui.figures import count, size

SAMPLED = "Sampled: outputs may differ from plain's; what is kept is the distribution."
OUTPUT_KINDS = {kind.value for kind in TokenKind if kind.is_output}


def entry(comparison: Comparison) -> dict[str, Any]:
    """A line of the history."""
    total = len(comparison.slots())
    return {
        "id": comparison.id,
        "when": comparison.created.replace("T", " ")[:16],
        "target": comparison.columns[0].load.target.stem,
        "machine": comparison.machine["cpu"],
        "columns": list(labels(comparison).values()),
        "done": len(comparison.runs),
        "total": total,
        "left": total - len(comparison.runs),
    }


def result(comparison: Comparison) -> dict[str, Any]:
    """All of the result but the charts and the replays."""
    words = labels(comparison)
    parts = summarise(comparison)
    whole = {part.column: part for part in parts if part.category is None}
    return {
        **entry(comparison),
        "verdicts": [{"text": said.text, "outcome": said.outcome} for said in verdicts(comparison)],
        "table": _table(comparison, whole, words),
        "kinds": _kinds(comparison, parts, words),
        "positions": _positions(comparison, words),
        "audit": [
            _audited(comparison, column, whole[column.name], words[column.name])
            for column in comparison.columns
            if column is not comparison.baseline
        ],
        "failed": [
            {"column": words[row.column], "prompt": row.prompt_id, "repeat": row.repeat + 1, "why": row.error}
            for row in comparison.runs
            if row.error
        ],
        "facts": _facts(comparison),
    }


def replays(comparison: Comparison) -> dict[str, Any]:
    """Every run's tokens by time: prompts, repeats, and for both the columns' rounds."""
    words = labels(comparison)
    prompts = {prompt.id: prompt.prompt for prompt in comparison.prompts}
    ran = [row for row in comparison.runs if row.replay]
    return {
        "columns": [[column.name, words[column.name]] for column in comparison.columns],
        "prompts": [[id_, prompts[id_]] for id_ in dict.fromkeys(row.prompt_id for row in ran)],
        "runs": [
            {
                "column": row.column,
                "prompt": row.prompt_id,
                "repeat": row.repeat,
                "rounds": row.replay,
                "speed": number(row.stats.tokens_per_s if row.stats else None, ".1f"),
            }
            for row in ran
        ],
    }


def _table(comparison: Comparison, whole: dict[str, Summary], words: dict[str, str]) -> dict[str, Any]:
    names = [
        "",
        "tokens/s",
        "x plain",
        "min to max",
        "accepted",
        "length",
        "per pass",
        "first token",
        "audit",
    ]
    rows = []
    for column in comparison.columns:
        part, made = whole[column.name], rows_of(comparison, column.name)
        spread = None if column is comparison.baseline else part.speedup
        rows.append(
            [
                words[column.name],
                number(part.tokens_per_s, ".1f"),
                number(spread.median if spread else None, ".2f"),
                f"{spread.min:.2f} to {spread.max:.2f}" if spread else number(None, ""),
                number(part.acceptance_rate, ".0%"),
                number(part.mean_acceptance_length, ".2f"),
                number(part.tokens_per_pass, ".2f"),
                number(median_of(made, "time_to_first_token_s"), ".2f", " s"),
                "the measure" if column is comparison.baseline else audit_words(part),
            ]
        )
    return {"names": names, "rows": rows}


def _kinds(comparison: Comparison, parts: Sequence[Summary], words: dict[str, str]) -> dict[str, Any] | None:
    """Speed-up by kind of task, with the acceptance rate below; nothing where there is one kind only."""
    kinds = categories(comparison)
    if len(kinds) < 2:
        return None
    rows = []
    for column in comparison.columns:
        if column is comparison.baseline:
            continue
        cells = []
        for part in (part for part in parts if part.column == column.name and part.category):
            gain = part.speedup.median if part.speedup else None
            accepted = number(part.acceptance_rate, ".0%", " accepted")
            cells.append({"gain": gain, "words": number(gain, ".2f", "x"), "more": accepted})
        rows.append({"name": words[column.name], "cells": cells})
    return {"names": [KINDS.get(kind, kind) for kind in kinds], "rows": rows}


def _positions(comparison: Comparison, words: dict[str, str]) -> dict[str, Any] | None:
    rates = {
        words[column.name]: acceptance_by_position(rows_of(comparison, column.name))
        for column in comparison.columns
    }
    longest = max(map(len, rates.values()))
    if not longest:
        return None
    rows = [
        [name, *(number(rate, ".0%") for rate in found), *[number(None, "")] * (longest - len(found))]
        for name, found in rates.items()
        if found
    ]
    return {"names": ["", *map(str, range(1, longest + 1))], "rows": rows}


def _audited(comparison: Comparison, column: Column, part: Summary, label: str) -> dict[str, Any]:
    counts = part.audit or {}
    said = audit_words(part)
    if part.audit is None:
        is_sampled = column.request.sampling.temperature > 0
        said = SAMPLED if is_sampled else "not audited: plain was asked for something else, or nothing ran"
    parted = [
        _evidence(comparison, row) for row in rows_of(comparison, column.name) if row.audit and row.audit.ids
    ]
    return {"name": label, "words": said, "bug": bool(counts.get("different")), "parted": parted}


def _evidence(comparison: Comparison, row: Row) -> dict[str, Any]:
    """Where an output parts from plain's and how near the two tokens were."""
    audit, plain = row.audit, comparison.plain_run(row)
    assert audit
    assert audit.ids
    assert audit.position is not None
    texts = [_token(id_, run, audit.position) for id_, run in zip(audit.ids, (plain, row), strict=True)]
    gap = "they are not the target's two favourites" if audit.gap is None else f"{audit.gap:.3f} logits apart"
    where = f"{row.prompt_id}, run {row.repeat + 1}, token {audit.position + 1}"
    return {
        "bug": audit.verdict == "different",
        "verdict": "DIFFERENT" if audit.verdict == "different" else "near-tie",
        "where": where,
        "plain": texts[0],
        "this": texts[1],
        "gap": gap,
    }


def _token(id_: int | None, run: Row | None, position: int) -> str:
    """A token's text, from the replay, and its id."""
    if id_ is None:
        return "the end"
    told = [
        text for _, tokens in (run.replay if run else ()) for text, kind in tokens if kind in OUTPUT_KINDS
    ]
    return f"{told[position]!r} ({id_})" if position < len(told) else str(id_)


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    machine = comparison.machine
    devices = ", ".join(device["description"] for device in machine["devices"])
    asked = comparison.columns[0].request
    facts = [
        ("Made", comparison.created.replace("T", " ")),
        ("Processor", f"{machine['cpu']}, {count(machine['threads'], 'thread')} used"),
        ("Memory", size(machine["ram_bytes"])),
        ("Devices", devices or "none"),
        ("llama.cpp", machine["llama_cpp"]["version"]),
        ("System", machine["os"]),
        (
            "Asked for",
            f"{count(len(comparison.prompts), 'prompt')}, {count(comparison.repeats, 'repeat')}, "
            f"at most {count(asked.max_tokens, 'token')}, context {comparison.columns[0].load.n_ctx}",
        ),
    ]
    for model in machine["models"]:
        hashed = f", sha256 {model['sha256']}" if model["sha256"] else ""
        kind = model["quantization"] or "type unknown"
        facts.append(("Model", f"{model['name']}, {kind}, {size(model['size_bytes'])}{hashed}"))
    return facts

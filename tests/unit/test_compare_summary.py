"""Figures and verdicts, held against another computation from the exported JSON."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.compare import report
from app.compare.record import Prompt, Row
from app.compare.summary import acceptance_by_position, labels, outcome, rows_of, summarise, verdicts
from app.core.settings import Mode, SamplingSettings
from tests.unit.comparisons import DRAFT, K4, LOOKUP, MACHINE, PLAIN, PROMPTS, column, comparison, row

COLUMNS = (LOOKUP, PLAIN, K4)  # plain need not be the first
MANY = tuple(Prompt(f"{kind}{n}", kind, "…") for kind in ("code", "edit") for n in range(2))


@st.composite
def some_runs(draw: st.DrawFn) -> list[Row]:
    """Any subset of the runs, in any order, some of them failed."""
    rows = []
    for one in COLUMNS:
        for prompt in MANY:
            for repeat in range(2):
                fate = draw(st.sampled_from(["fine", "fine", "fine", "failed", "missing"]))
                if fate == "failed":
                    rows.append(Row(one.name, prompt.id, prompt.category, repeat, error="no"))
                elif fate == "fine":
                    drafted = 0 if one is PLAIN else draw(st.integers(0, 50))
                    rows.append(
                        row(
                            one.name,
                            prompt,
                            repeat,
                            draw(st.none() | st.floats(0.1, 500)),
                            draw(st.sampled_from([None, "identical", "near_tie", "different"])),
                            output_tokens=draw(st.integers(1, 90)),
                            target_passes=draw(st.integers(1, 90)),
                            drafted=drafted,
                            accepted=draw(st.integers(0, drafted)),
                            rounds_with_draft=min(drafted, draw(st.integers(1, 20))),
                        )
                    )
    return draw(st.permutations(rows))


def again(exported: dict[str, Any], name: str, category: str | None) -> dict[str, Any]:
    """One entry of the summary, computed from the exported runs alone."""
    plain = next(one["name"] for one in exported["columns"] if one["mode"] == "plain")
    runs = [run for run in exported["runs"] if run["stats"]]
    speed = {(run["column"], run["prompt_id"], run["repeat"]): run["stats"]["tokens_per_s"] for run in runs}
    mine = [run for run in runs if run["column"] == name and category in (None, run["category"])]
    speeds = [run["stats"]["tokens_per_s"] for run in mine if run["stats"]["tokens_per_s"] is not None]
    ratios = []
    for run in mine:
        own, base = (speed.get((who, run["prompt_id"], run["repeat"])) for who in (name, plain))
        if own is not None and base is not None:
            ratios.append(own / base)
    total = {
        key: sum(run["stats"][key] for run in mine)
        for key in ("drafted", "accepted", "rounds_with_draft", "output_tokens", "target_passes")
    }
    found = [run["audit"]["verdict"] for run in mine if run["audit"]]
    return {
        "column": name,
        "category": category,
        "tokens_per_s": statistics.median(speeds) if speeds else None,
        "speedup": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        if ratios
        else None,
        "acceptance_rate": total["accepted"] / total["drafted"] if total["drafted"] else None,
        "mean_acceptance_length": 1 + total["accepted"] / total["rounds_with_draft"]
        if total["rounds_with_draft"]
        else None,
        "tokens_per_pass": total["output_tokens"] / total["target_passes"]
        if total["target_passes"]
        else None,
        "audit": {one: found.count(one) for one in ("identical", "near_tie", "different")} if found else None,
    }


@settings(deadline=None)
@given(some_runs())
def test_the_export_recomputes(runs: list[Row]) -> None:
    exported = json.loads(json.dumps(report.as_json(comparison(COLUMNS, MANY, 2, runs))))
    assert [(part["column"], part["category"]) for part in exported["summary"]] == [
        (one.name, category) for one in COLUMNS for category in (None, "code", "edit")
    ]
    for part in exported["summary"]:
        assert part == again(exported, part["column"], part["category"])


def test_speedups_are_paired_by_prompt_and_repeat() -> None:
    first, second = PROMPTS
    runs = [
        row("plain", first, 0, 10), row("plain", first, 1, 20), row("plain", second, 0, 40),
        row("k4", first, 0, 15), row("k4", first, 1, 20), row("k4", second, 0, 20), row("k4", second, 1, 99),
    ]  # fmt: skip
    part = next(
        part for part in summarise(comparison(runs=runs)) if (part.column, part.category) == ("k4", None)
    )
    assert part.speedup is not None
    assert (part.speedup.median, part.speedup.min, part.speedup.max) == (1.0, 0.5, 1.5)
    assert part.tokens_per_s == 20  # the unpaired run counts here


def test_without_plain_there_are_no_speedups() -> None:
    only = comparison((K4, LOOKUP), runs=[row("k4"), row("lk")])
    assert [part.speedup for part in summarise(only)] == [None] * 6
    assert verdicts(only) == []


def test_rates_are_pooled() -> None:
    runs = [
        row(
            "k4", PROMPTS[0], drafted=10, accepted=10, rounds_with_draft=5, output_tokens=30, target_passes=10
        ),
        row(
            "k4", PROMPTS[1], drafted=90, accepted=0, rounds_with_draft=15, output_tokens=10, target_passes=10
        ),
    ]
    part = next(part for part in summarise(comparison(runs=runs)) if part.column == "k4")
    assert (part.acceptance_rate, part.mean_acceptance_length, part.tokens_per_pass) == (0.1, 1.5, 2.0)


def test_acceptance_by_position_adds_up_drafts_of_unlike_length() -> None:
    runs = [
        row("k4", drafted_per_position=(4, 2), accepted_per_position=(2, 1)),
        row("k4", PROMPTS[1], drafted_per_position=(4, 2, 1), accepted_per_position=(4, 0, 1)),
        Row("k4", "x", "code", 0, error="no"),
    ]
    assert acceptance_by_position(runs) == [0.75, 0.25, 1.0]
    assert acceptance_by_position([row()]) == []


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [
        ([1.5], "faster"),
        ([0.7], "slower"),
        ([1.16], "same"),
        ([0.86], "same"),
        ([1.04, 0.97, 1.0], "same"),
        ([1.09, 1.08], "same"),
        ([1.06] * 6, "faster"),
        ([0.96] * 6, "same"),
        ([1.3, 1.2, 1.4, 0.9], "faster"),
        ([1.3, 1.2, 0.6, 0.9, 1.1], "uneven"),
        ([0.7, 0.8, 0.75, 1.2], "slower"),
    ],
)
def test_the_outcome_allows_for_noise(speedups: list[float], expected: str) -> None:
    assert outcome(speedups) == expected


def test_verdicts_in_words() -> None:
    code, edit = PROMPTS
    runs = [row("plain", prompt, repeat, 10) for prompt in PROMPTS for repeat in (0, 1)]
    runs += [row("k4", prompt, repeat, 7 + repeat / 5) for prompt in PROMPTS for repeat in (0, 1)]
    runs += [row("lk", code, repeat, 7) for repeat in (0, 1)] + [
        row("lk", edit, repeat, 15) for repeat in (0, 1)
    ]
    said = verdicts(comparison(repeats=2, runs=runs))
    assert [verdict.text for verdict in said] == [
        "Draft 0.5B, K=4: 0.71x plain here (0.70 to 0.72); not worth it",
        "Lookup, K=10: 1.10x plain here (0.70 to 1.50); too uneven to say",
        "Lookup, K=10, on writing code: 0.70x plain here (0.70 to 0.70); not worth it",
        "Lookup, K=10, on editing: 1.50x plain here (1.50 to 1.50); worth it",
    ]
    assert [(v.column, v.category, v.outcome) for v in said] == [
        ("k4", None, "slower"), ("lk", None, "uneven"), ("lk", "code", "slower"), ("lk", "edit", "faster"),
    ]  # fmt: skip


def test_labels_tell_columns_apart() -> None:
    columns = (
        PLAIN,
        column("again"),
        column("p", Mode.DRAFT, DRAFT, p_min=0.5),
        column("w", Mode.DRAFT, DRAFT, SamplingSettings(temperature=0.8)),
        column("n", Mode.LOOKUP, ngram_min=3),
        LOOKUP,
        column("a", Mode.AUTO),
        column("b", Mode.AUTO, DRAFT),
    )
    assert labels(comparison(columns)) == {
        "plain": "Plain (plain)",
        "again": "Plain (again)",
        "p": "Draft 0.5B, K=4, p_min=0.5",
        "w": "Draft 0.5B, K=4, temperature 0.8",
        "n": "Lookup, K=4, n=3 to 6",
        "lk": "Lookup, K=10, n=4 to 6",
        "a": "Auto",
        "b": "Auto, 0.5B",
    }
    named = comparison((column("a", Mode.DRAFT, Path("/m/Qwen2.5-Coder-0.5b-q4_k_m.gguf")),))
    assert labels(named) == {"a": "Draft 0.5B, K=4"}
    unknown = comparison((K4,))
    unknown.machine = MACHINE | {"models": []}
    assert labels(unknown) == {"k4": "Draft draft, K=4"}


def test_rows_of_a_kind() -> None:
    runs = [row("k4", prompt) for prompt in PROMPTS] + [row("plain")]
    assert rows_of(comparison(runs=runs), "k4") == runs[:2]
    assert rows_of(comparison(runs=runs), "k4", "edit") == runs[1:2]

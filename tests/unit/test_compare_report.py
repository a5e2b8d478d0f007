"""Exports and charts say what the runs say."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from app.compare import charts, report
from app.compare.record import Audit, Comparison, Row
from app.compare.summary import summarise
from app.core.settings import Mode, SamplingSettings
from tests.unit.comparisons import DRAFT, PLAIN, PROMPTS, column, comparison, row


def measured() -> Comparison:
    """Plain, and a draft swept over K, on two prompts with two repeats."""
    swept = tuple(column(f"d n_draft={k}", Mode.DRAFT, DRAFT, n_draft=k) for k in (1, 4))
    runs = []
    for repeat in (0, 1):
        for prompt in PROMPTS:
            runs.append(
                row("plain", prompt, repeat, 10.0 + repeat, "identical", output_tokens=9, target_passes=9)
            )
            for k in (1, 4):
                figures: dict[str, Any] = {"drafted": 9, "accepted": 6, "rounds_with_draft": 3}
                figures |= {"drafted_per_position": (3,) * k, "accepted_per_position": (2,) * k}
                figures |= {"output_tokens": 9, "target_passes": 3, "time_to_first_token_s": 0.5}
                runs.append(row(f"d n_draft={k}", prompt, repeat, 12.0 + k, "identical", **figures))
    return comparison((PLAIN, *swept), repeats=2, runs=runs)


def values(chart: Any, field: str) -> list[float]:
    """The numbers of a field that a chart was given, wherever in it they are."""
    found = []
    for data in chart.to_dict().get("datasets", {}).values():
        found += [one[field] for one in data if field in one]

    def search(value: Any) -> None:
        if isinstance(value, dict):
            rows = value.get("data", {}).get("values", []) if isinstance(value.get("data"), dict) else []
            found.extend(one[field] for one in rows if field in one)
            for child in value.values():
                search(child)
        elif isinstance(value, list):
            for child in value:
                search(child)

    search(chart.to_dict())
    return found


def test_the_export_has_the_contracts_fields() -> None:
    exported = json.loads(json.dumps(report.as_json(measured())))
    assert exported["schema"] == 1
    assert exported["columns"][1]["settings"]["n_draft"] == 1
    assert set(exported["runs"][0]) == {
        "column", "prompt_id", "category", "repeat", "output_ids", "finish_reason", "stats", "audit", "error",
    }  # fmt: skip
    assert exported["runs"][0]["audit"] == {
        "verdict": "identical",
        "position": None,
        "ids": None,
        "gap": None,
    }
    assert list(exported["summary"][0]) == [
        "column", "category", "tokens_per_s", "speedup", "acceptance_rate", "mean_acceptance_length",
        "tokens_per_pass", "audit",
    ]  # fmt: skip


def test_csv_has_a_line_for_each_run() -> None:
    over = measured()
    over.runs.append(Row("=1+1", "c1", "code", 7, error="no"))
    lines = list(csv.DictReader(io.StringIO(report.as_csv(over))))
    assert len(lines) == len(over.runs)
    assert float(lines[1]["speedup"]) == pytest.approx(1.3)
    assert lines[2]["drafted_per_position"] == "3 3 3 3"
    assert (lines[-1]["column"], lines[-1]["error"], lines[-1]["tokens_per_s"]) == ("'=1+1", "no", "")


def test_tables_show_the_summary() -> None:
    text = report.as_text(measured())
    line = next(line for line in text.splitlines() if line.strip().startswith("d n_draft=4 "))
    cells = [cell.strip() for cell in line.strip().split("  ") if cell]
    assert cells == [
        "d n_draft=4 (Draft 0.5B, K=4)", "16.0", "1.53", "1.45 to 1.60", "67%", "3.00", "3.00",
        "0.50 s", "4 identical",
    ]  # fmt: skip
    assert "Draft 0.5B, K=4: 1.53x plain here (1.45 to 1.60); worth it" in text


def test_markdown_escapes_what_would_be_markup() -> None:
    over = comparison((column("a|b<i>"),), runs=[row("a|b<i>")])
    text = report.as_markdown(over)
    assert "a\\|b\\<i\\>" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {10, 4}


def test_failures_differences_and_sampling_are_told() -> None:
    sampled = column("s", Mode.LOOKUP, sampling=SamplingSettings(temperature=1.0))
    runs = [
        row(),
        Row("k4", "c1", "code", 0, error="the prompt has 9 tokens and the context holds 8"),
        Row("lk", "c1", "code", 0, (1, 3), "length", row().stats, Audit("different", 1, (2, 3), 1.25)),
        Row("lk", "e1", "edit", 0, (1, 3), "length", row().stats, Audit("near_tie", 0, (2, 3), 0.125)),
    ]
    text = report.as_text(comparison((PLAIN, column("k4"), column("lk"), sampled), runs=runs))
    assert "the prompt has 9 tokens and the context holds 8" in text
    assert "1 near-tie, 1 DIFFERENT" in text
    assert any(line.split()[-4:] == ["1", "2", "3", "1.250"] for line in text.splitlines())
    assert "Sampled (s): outputs may differ" in text


def test_the_bars_equal_the_table() -> None:
    over = measured()
    drawn = charts.all_charts(over)
    assert set(drawn) == {"speed", "kinds", "positions", "sweep-n_draft"}
    parts = {(part.column, part.category): part for part in summarise(over)}
    totals = [parts[one.name, None] for one in over.columns]
    assert set(values(drawn["speed"], "speed")) == {part.tokens_per_s for part in totals}
    kinds = [part.speedup.median for (_, kind), part in parts.items() if kind and part.speedup]
    assert set(values(drawn["kinds"], "speedup")) | {1.0} == set(kinds)
    assert set(values(drawn["sweep-n_draft"], "value")) == {1, 4}
    assert {part.speedup.median for part in totals[1:] if part.speedup} <= set(
        values(drawn["sweep-n_draft"], "speedup")
    )
    assert set(values(drawn["positions"], "rate")) == {2 / 3}


def test_numbers_stand_at_the_bars_and_dark_pages_get_light_ink() -> None:
    light, dark = charts.speed(measured()), charts.speed(measured(), dark=True)
    assert light is not None
    assert dark is not None
    assert set(values(light, "text")) == {"10.5", "13.0", "16.0"}
    assert light.to_dict()["config"]["background"] == "#ffffff"
    assert dark.to_dict()["config"]["background"] < "#333333"
    assert dark.to_dict()["config"]["axis"]["labelColor"] > "#cccccc"


def test_nothing_is_drawn_of_nothing() -> None:
    assert charts.all_charts(comparison()) == {}
    assert charts.overlay([]) is None


def test_charts_are_written_as_png_and_svg(tmp_path: Path) -> None:
    folder = tmp_path / "bilder ä"
    paths = charts.save(measured(), folder)
    assert len(paths) == 8
    assert all(path.parent == folder for path in paths)
    for path in paths:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in start
    assert "16.0" in (folder / "speed.svg").read_text("utf-8")


def test_past_comparisons_are_laid_over_each_other() -> None:
    chart = charts.overlay([measured(), comparison((PLAIN,), runs=[row(speed=3.0)])])
    assert set(values(chart, "speed")) == {10.5, 13.0, 16.0, 3.0}

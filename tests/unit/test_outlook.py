"""What a pair may gain: the rule, the recorded acceptances, and what past comparisons say."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compare import history
from app.compare.outlook import Expectation, outlook
from app.compare.record import Column, Comparison, Prompt, Row
from app.compare.workloads import KINDS
from app.core.costs import PassCosts
from app.core.outlook import Acceptance, acceptance_of, expected_speedup
from app.core.paths import PROJECT
from app.core.settings import MAX_DRAFT, LoadSettings, Mode, Request, SpeculationSettings
from app.core.stats import Stats
from app.worker import kept_costs
from app.worker.machine import usable_cores
from tests.record_acceptances import record
from tests.unit.comparisons import MACHINE

FLAT = PassCosts({1: 0.1, 32: 0.1})
STEEP = PassCosts({1: 0.1, 2: 0.2, 32: 3.2})
KEPT = st.lists(st.floats(0, 1), max_size=MAX_DRAFT).map(lambda values: tuple(sorted(values, reverse=True)))


def test_a_free_draft_that_is_always_right_gains_its_length() -> None:
    assert expected_speedup(FLAT, 0.0, Acceptance(1.0, (1.0,) * 4)) == pytest.approx(5)


def test_a_draft_costs_its_steps() -> None:
    # 1 + 0.8 + 0.5 tokens in one pass and two steps of a tenth of it; a third token would bring 0.05 for 0.1.
    found = expected_speedup(FLAT, 0.01, Acceptance(1.0, (0.8, 0.5, 0.05)))
    assert found == pytest.approx(2.3 / 1.2)


def test_where_a_pass_costs_as_much_as_its_tokens_nobody_gains() -> None:
    assert expected_speedup(STEEP, 0.0, Acceptance(1.0, (0.9, 0.8))) == 1.0


def test_rounds_without_a_draft_are_plain_ones() -> None:
    found = expected_speedup(PassCosts({1: 0.1, 5: 0.15}), 0.0, Acceptance(0.25, (1.0,) * 4))
    assert found == pytest.approx((1 + 0.25 * 4) / (1 + 0.25 * 0.5))


@given(
    st.dictionaries(st.integers(2, 32), st.floats(0.01, 10), max_size=6),
    st.floats(0, 1),
    st.floats(0, 1),
    KEPT,
)
def test_it_is_the_best_of_all_lengths(
    more: dict[int, float], step: float, share: float, kept: tuple[float, ...]
) -> None:
    passes = PassCosts({1: 0.1, **more})
    speeds = [1.0]
    for length in range(1, len(kept) + 1):
        seconds = share * (passes(length + 1) + length * step) + (1 - share) * passes(1)
        speeds.append((1 + share * sum(kept[:length])) * passes(1) / seconds)
    assert expected_speedup(passes, step, Acceptance(share, kept)) == pytest.approx(max(speeds))


def test_acceptance_from_counts() -> None:
    assert acceptance_of((10, 8, 4), (9, 4, 1), 10, 40) == Acceptance(0.25, (0.9, 0.5, 0.25))
    assert acceptance_of((), (), 0, 0) == Acceptance(0.0, ())


def test_the_recorded_acceptances_are_those_of_the_traces() -> None:
    recorded = json.loads((PROJECT / "app" / "compare" / "acceptances.json").read_text("utf-8"))
    with gzip.open(PROJECT / "tests" / "traces" / "coder-greedy.jsonl.gz", "rt", encoding="utf-8") as file:
        assert record(map(json.loads, file)) == recorded
    assert set(recorded["draft"]) == set(recorded["lookup"]) == set(KINDS)


# ---- with costs and comparisons on disk -----------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadSettings]:
    """Two files, a home that is empty, and nothing known."""
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home é"))
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    target.write_bytes(b"t")
    draft.write_bytes(b"d")
    return LoadSettings(target, draft)


def know(pair: LoadSettings, passes: dict[int, float], steps: dict[int, float] | None, threads: int) -> None:
    kept_costs.keep(
        kept_costs.name_of(pair.target, "target", threads, "more"), kept_costs.Kept(PassCosts(passes), 1)
    )
    if steps and pair.draft:
        kept_costs.keep(
            kept_costs.name_of(pair.draft, "draft", threads, "more"), kept_costs.Kept(PassCosts(steps), 1)
        )


def of_kind(found: list[Expectation], kind: str) -> Expectation:
    return next(one for one in found if one.kind == kind)


def column(name: str, mode: Mode, load: LoadSettings, draft: Path | None, **more: Any) -> Column:
    speculation = SpeculationSettings(mode, **more)
    return Column(name, LoadSettings(load.target, draft), Request((), speculation=speculation))


def compared(id_: str, columns: tuple[Column, ...], stats: dict[str, Stats]) -> None:
    """One run each, of editing."""
    prompt = Prompt("e", "edit", "Change.")
    runs = [Row(one.name, "e", "edit", 0, stats=stats[one.name]) for one in columns]
    history.save(Comparison(id_, "2026-01-31T12:00:00", MACHINE, columns, (prompt,), 1, runs))


def test_nothing_is_told_before_the_costs_are_measured(pair: LoadSettings) -> None:
    assert outlook(pair) == [Expectation(kind, None, False, None) for kind in KINDS]
    know(pair, {1: 0.1}, None, usable_cores())
    assert {one.expected for one in outlook(pair)} == {None}


def test_the_estimate_takes_the_recorded_acceptances_first(pair: LoadSettings) -> None:
    know(pair, {1: 0.1, 32: 0.1}, {1: 0.01}, usable_cores())
    kept = json.loads((PROJECT / "app" / "compare" / "acceptances.json").read_text("utf-8"))["draft"]
    for kind in ("code", "story"):
        acceptance = Acceptance(kept[kind]["share"], tuple(kept[kind]["kept"]))
        assert of_kind(outlook(pair), kind).expected == expected_speedup(FLAT, 0.01, acceptance)
    alone = outlook(LoadSettings(pair.target))
    assert of_kind(alone, "edit").expected > of_kind(alone, "translate").expected >= 1  # type: ignore[operator]


def test_costs_hold_for_the_threads_and_the_file_they_were_measured_with(pair: LoadSettings) -> None:
    know(pair, {1: 0.1, 32: 0.1}, {1: 0.01}, 3)
    assert of_kind(outlook(LoadSettings(pair.target, pair.draft, threads=3)), "code").expected
    assert of_kind(outlook(LoadSettings(pair.target, pair.draft, threads=2)), "code").expected is None
    pair.target.write_bytes(b"another")
    assert of_kind(outlook(LoadSettings(pair.target, pair.draft, threads=3)), "code").expected is None


def test_comparisons_of_the_pair_take_the_recorded_ones_place_and_give_the_measured_speed(
    pair: LoadSettings, tmp_path: Path
) -> None:
    know(pair, {1: 0.1, 32: 0.1}, {1: 0.01}, usable_cores())
    plain, other = column("plain", Mode.PLAIN, pair, None), tmp_path / "other.gguf"
    columns = (
        plain,
        column("k2", Mode.DRAFT, pair, pair.draft, n_draft=2),
        column("unsure", Mode.DRAFT, pair, pair.draft, p_min=0.9),
        column("other", Mode.DRAFT, pair, other),
        column("auto", Mode.AUTO, pair, pair.draft),
        column("alone", Mode.AUTO, pair, None),
    )
    counts = {"drafted_per_position": (10, 10), "accepted_per_position": (5, 2), "rounds_with_draft": 10}
    none = {"drafted_per_position": (10, 10), "accepted_per_position": (10, 10), "rounds_with_draft": 10}
    stats = {
        "plain": Stats(tokens_per_s=10.0),
        "k2": Stats(tokens_per_s=11.0, target_passes=10, **counts),  # type: ignore[arg-type]
        "unsure": Stats(tokens_per_s=11.0, target_passes=10, **none),  # type: ignore[arg-type]
        "other": Stats(tokens_per_s=11.0, target_passes=10, **none),  # type: ignore[arg-type]
        "auto": Stats(tokens_per_s=17.0),
        "alone": Stats(tokens_per_s=12.0),
    }
    compared("20260131-120000", columns, stats)
    compared(
        "20260131-130000", (plain, columns[4]), {"plain": stats["plain"], "auto": Stats(tokens_per_s=19.0)}
    )
    compared("20260131-140000", (columns[5],), {"alone": stats["alone"]})  # nothing to measure it by
    edit = of_kind(outlook(pair), "edit")
    looked_up = of_kind(outlook(LoadSettings(pair.target)), "edit")
    by_draft = expected_speedup(FLAT, 0.01, Acceptance(1.0, (0.5, 0.2)))
    assert edit == Expectation("edit", max(by_draft, looked_up.expected or 0), True, pytest.approx(1.8))
    assert looked_up.measured == pytest.approx(1.2)
    assert of_kind(outlook(pair), "code").measured is None


def test_a_look_up_column_tells_of_look_ups(pair: LoadSettings) -> None:
    know(pair, {1: 0.1, 32: 0.1}, None, usable_cores())
    stats = Stats(
        tokens_per_s=1.0,
        drafted_per_position=(4,),
        accepted_per_position=(3,),
        rounds_with_draft=4,
        target_passes=8,
    )
    compared("20260131-120000", (column("lk", Mode.LOOKUP, pair, None),), {"lk": stats})
    edit = of_kind(outlook(LoadSettings(pair.target)), "edit")
    assert (edit.expected, edit.is_own) == (expected_speedup(FLAT, 0.0, Acceptance(0.5, (0.75,))), True)


def test_a_broken_file_hides_nothing(pair: LoadSettings) -> None:
    know(pair, {1: 0.1, 32: 0.1}, {1: 0.01}, usable_cores())
    history.folder().mkdir(parents=True)
    (history.folder() / "20260131-120000.json").write_text("{", "utf-8")
    assert of_kind(outlook(pair), "code").expected

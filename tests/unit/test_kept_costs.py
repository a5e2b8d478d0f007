"""Costs of passes are found again for the same model, loaded the same way, on the same machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.core.costs import PassCosts
from app.worker import kept_costs, store

MEASURED = {1: 0.03, 4: 0.05, 16: 0.09}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    path = tmp_path / "ein Modell é.gguf"
    path.write_bytes(b"weights")
    return path


def test_what_is_kept_is_found_by_its_name(model: Path) -> None:
    name = kept_costs.name_of(model, 2, 0)
    assert kept_costs.recall(name) is None
    kept_costs.keep(name, kept_costs.Kept(PassCosts(MEASURED), 1))
    found = kept_costs.recall(name)
    assert found is not None
    assert found.costs.measured() == MEASURED
    assert kept_costs.recall(kept_costs.name_of(model, 4, 0)) is None


def test_the_latest_of_some_settings_is_found_without_knowing_the_rest(model: Path) -> None:
    for threads, layers, seconds in ((2, 0, 0.1), (2, 9, 0.2), (20, 0, 0.3), (2, 0, 0.4)):
        kept_costs.keep(
            kept_costs.name_of(model, threads, layers), kept_costs.Kept(PassCosts({1: seconds}), 1)
        )
    for settings, seconds in (((2,), 0.4), ((2, 9), None), ((20,), 0.3), ((), 0.4), ((3,), None)):
        found = kept_costs.latest(model, *settings)
        assert (found and found(1)) == seconds


def test_a_changed_file_is_another_model(model: Path) -> None:
    kept_costs.keep(kept_costs.name_of(model, 2, 0), kept_costs.Kept(PassCosts(MEASURED), 1))
    os.utime(model, ns=(1, 1))
    assert kept_costs.latest(model, 2) is None
    model.unlink()
    assert kept_costs.latest(model, 2) is None


@pytest.mark.parametrize(
    "content", [[], {"x": 1}, "text", {"NAME": {}}, {"NAME": {"1": "a"}}, {"NAME": {"2": 0.1}}]
)
def test_a_broken_file_is_as_none(model: Path, content: object) -> None:
    name = kept_costs.name_of(model, 2, 0)
    if isinstance(content, dict):
        content = {key.replace("NAME", name): value for key, value in content.items()}
    store.write("costs.json", content)
    assert kept_costs.recall(name) is None
    assert kept_costs.latest(model, 2) is None
    kept_costs.keep(name, kept_costs.Kept(PassCosts(MEASURED), 1))
    assert kept_costs.recall(name) is not None


def test_the_oldest_are_dropped(model: Path) -> None:
    for number in range(70):
        kept_costs.keep(f"model {number}", kept_costs.Kept(PassCosts({1: 0.1}), 1))
    kept = [number for number in range(70) if kept_costs.recall(f"model {number}")]
    assert kept == list(range(6, 70))

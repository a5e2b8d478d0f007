"""What a person can set is held within limits, and a refusal names the setting and the value."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import UsageError
from app.core.settings import (
    KV_TYPES,
    MAX_DRAFT,
    ChatMessage,
    LoadSettings,
    Mode,
    Request,
    SamplingSettings,
    SpeculationSettings,
)

MAX_INT = 2**31 - 1
NOT_NUMBERS = [math.nan, math.inf, -math.inf]
ASKED = (ChatMessage("user", "Hi"),)


def load(**settings: Any) -> LoadSettings:
    return LoadSettings(Path("target.gguf"), **settings)


def request(**settings: Any) -> Request:
    return Request(ASKED, **settings)


REFUSED = [
    (load, "n_ctx", [-1, 0, 7, MAX_INT + 1, 2**32 + 4096]),
    (load, "n_batch", [-1, 0, 65537, 2**32 + 512]),
    (load, "threads", [-1, 0, 513]),
    (load, "gpu_layers", [-1, MAX_INT + 1]),
    (load, "draft_gpu_layers", [-1, MAX_INT + 1]),
    *[
        (load, f"{role}cache_type_{part}", ["", "q4_k", "F16"])
        for role in ("", "draft_")
        for part in ("k", "v")
    ],
    (SamplingSettings, "temperature", [-0.1, 100.1, *NOT_NUMBERS]),
    (SamplingSettings, "top_k", [-1]),
    (SamplingSettings, "top_p", [0.0, -0.5, 1.01, *NOT_NUMBERS]),
    (SamplingSettings, "min_p", [-0.1, 1.0, *NOT_NUMBERS]),
    (SamplingSettings, "repeat_penalty", [0.0, -1.0, 10.1, *NOT_NUMBERS]),
    (SamplingSettings, "presence_penalty", [-10.1, 10.1, *NOT_NUMBERS]),
    (SamplingSettings, "frequency_penalty", [-10.1, 10.1, *NOT_NUMBERS]),
    (SamplingSettings, "repeat_last_n", [-2]),
    (SamplingSettings, "seed", [-1]),
    (SpeculationSettings, "n_draft", [-1, MAX_DRAFT + 1]),
    (SpeculationSettings, "p_min", [-0.1, 1.1, *NOT_NUMBERS]),
    (SpeculationSettings, "ngram_min", [-1, 0, 7]),
    (SpeculationSettings, "ngram_max", [3, 17]),
    (request, "max_tokens", [-1, 0]),
]
ACCEPTED = [
    (load, "n_ctx", [8, 256, MAX_INT]),
    (load, "n_batch", [1, 65536]),
    (load, "threads", [None, 1, 512]),
    (load, "gpu_layers", [None, 0, 999, MAX_INT]),
    (load, "draft_gpu_layers", [None, 0, 999]),
    (load, "cache_type_k", KV_TYPES),
    (SamplingSettings, "temperature", [0, 0.0, 0.01, 100]),
    (SamplingSettings, "top_k", [0, 1, 10**6]),
    (SamplingSettings, "top_p", [1e-9, 1.0]),
    (SamplingSettings, "min_p", [0.0, 0.999]),
    (SamplingSettings, "repeat_penalty", [0.1, 10]),
    (SamplingSettings, "presence_penalty", [-10, 0, 10]),
    (SamplingSettings, "repeat_last_n", [-1, 0, 10**6]),
    (SamplingSettings, "seed", [0, 2**64, 10**20]),
    (SpeculationSettings, "n_draft", [0, MAX_DRAFT]),
    (SpeculationSettings, "p_min", [0.0, 1.0]),
    (SpeculationSettings, "ngram_min", [1, 6]),
    (SpeculationSettings, "ngram_max", [4, 16]),
    (request, "max_tokens", [1, 10**9]),
    (request, "stop", [(), ("a", "\n\n")]),
]


def cases(table: list[tuple[Any, str, Any]]) -> list[Any]:
    return [pytest.param(make, name, value, id=f"{name}={value}") for make, name, vs in table for value in vs]


@pytest.mark.parametrize(("make", "name", "value"), cases(REFUSED))
def test_a_value_out_of_range_is_refused_by_name(make: Any, name: str, value: Any) -> None:
    with pytest.raises(UsageError) as refusal:
        make(**{name: value})
    spoken = {"n_ctx": "context", "n_batch": "batch"}.get(name, name)
    assert spoken in str(refusal.value)
    assert str(value) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("make", "name", "value"), cases(ACCEPTED))
def test_a_value_at_the_limit_is_taken_as_it_is(make: Any, name: str, value: Any) -> None:
    assert getattr(make(**{name: value}), name) == value


def test_every_number_has_a_limit() -> None:
    tested = {name for _, name, _ in REFUSED}
    for kind in (LoadSettings, SamplingSettings, SpeculationSettings, Request):
        numbers = {
            field.name for field in dataclasses.fields(kind) if "int" in field.type or "float" in field.type
        }
        assert numbers <= tested


def test_ngram_bounds_must_be_in_order() -> None:
    with pytest.raises(UsageError, match="ngram_min 5 and ngram_max 3"):
        SpeculationSettings(ngram_min=5, ngram_max=3)


def test_an_empty_stop_string_would_stop_at_once() -> None:
    with pytest.raises(UsageError, match="stop"):
        request(stop=("END", ""))


def test_the_defaults_are_greedy_and_plain() -> None:
    asked = request()
    assert asked.max_tokens == 256
    assert asked.sampling.temperature == 0
    assert not asked.sampling.has_penalties
    assert asked.speculation.mode is Mode.PLAIN
    assert asked.speculation.n_draft == 4
    assert (load().n_ctx, load().n_batch, load().threads) == (4096, 512, None)


@pytest.mark.parametrize(
    ("settings", "has"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"repeat_penalty": 0.9}, True),
        ({"presence_penalty": -1.0}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, True),
    ],
)
def test_penalties_are_known_to_do_nothing(settings: dict[str, Any], has: bool) -> None:
    assert SamplingSettings(**settings).has_penalties is has


def test_settings_can_be_compared_and_never_changed() -> None:
    assert load(n_ctx=512) == load(n_ctx=512) != load(n_ctx=513)
    assert len({load(), load(), request(), request()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().n_ctx = 1  # type: ignore[misc]

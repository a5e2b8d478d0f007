"""How many layers go to a GPU by default."""

from __future__ import annotations

import pytest

from app.core.layers import layers_that_fit
from app.core.models import Device

GIB = 1 << 30


def device(kind: str, free: int) -> Device:
    return Device(kind, kind, kind, free, free)


def test_none_without_a_gpu() -> None:
    assert layers_that_fit(GIB, 28, []) == 0
    assert layers_that_fit(GIB, 28, [device("cpu", 64 * GIB), device("accel", 64 * GIB)]) == 0


def test_all_and_the_output_where_there_is_plenty() -> None:
    assert layers_that_fit(GIB, 28, [device("gpu", 24 * GIB)]) == 29


def test_integrated_graphics_count() -> None:
    assert layers_that_fit(GIB, 28, [device("igpu", 24 * GIB)]) == 29


def test_several_gpus_add_up() -> None:
    one = layers_that_fit(10 * GIB, 39, [device("gpu", 4 * GIB)])
    two = layers_that_fit(10 * GIB, 39, [device("gpu", 4 * GIB)] * 2)
    assert 0 < one < two < 40


@pytest.mark.parametrize("free_gib", [1, 3, 7])
def test_the_layers_leave_a_part_of_the_memory_free(free_gib: int) -> None:
    layers = layers_that_fit(10 * GIB, 39, [device("gpu", free_gib * GIB)])
    assert layers > 0
    assert layers * (10 * GIB / 40) < 0.9 * free_gib * GIB


def test_an_unknown_size_and_depth_divide_nothing_by_zero() -> None:
    assert layers_that_fit(0, 0, [device("gpu", GIB)]) == 1

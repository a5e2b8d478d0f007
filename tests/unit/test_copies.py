"""Copies: what may be asked for, which layers go, and what a pass reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.copies import (
    FILE_TYPES,
    CopyPlan,
    TensorSize,
    check_type,
    layers_text,
    layers_to_skip,
    middle_layers,
    pass_bytes,
)
from app.core.errors import UsageError


def test_types_are_read_in_any_case_and_refused_with_a_reason() -> None:
    assert check_type("q4_k_m") == "Q4_K_M"
    for low in ("IQ1_S", "iq2_xs", "IQ3_XXS", "q2_k_s"):
        with pytest.raises(UsageError, match=rf"{low.upper()} .*importance matrix; Q2_K is the lowest"):
            check_type(low)
    with pytest.raises(UsageError, match=r"'Q9' is unknown; .*F16, .*Q2_K$"):
        check_type("Q9")
    assert all(check_type(name) == name for name in FILE_TYPES)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("1", (14,)),
        ("4", (13, 14, 15, 16)),
        ("28", tuple(range(1, 29))),
        ("9,", (9,)),
        ("14, 9-11", (9, 10, 11, 14)),
        ("9-11,10-12", (9, 10, 11, 12)),
    ],
)
def test_layers_to_skip_of_thirty(text: str, layers: tuple[int, ...]) -> None:
    assert layers_to_skip(text, 30) == layers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "0 layers can't be skipped"),
        ("29", "29 layers can't be skipped"),
        ("0,3", "not the first or the last"),
        ("3,29", "from 1 to 28"),
        ("30,", "from 1 to 28"),
        ("9-99999999999", "from 1 to 28"),
        ("11-9", "from 1 to 28"),
        ("", "neither a number"),
        ("-1", "neither a number"),
        ("a", "neither a number"),
        ("3,,4", "neither a number"),
        ("²", "neither a number"),
    ],
)
def test_layers_that_cannot_go(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        layers_to_skip(text, 30)


@pytest.mark.parametrize("n_layer", [0, 1, 2])
def test_a_model_without_inner_layers(n_layer: int) -> None:
    for text in ("1", "1,"):
        with pytest.raises(UsageError, match=f"has {n_layer}"):
            layers_to_skip(text, n_layer)


@given(st.integers(3, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 2))))
def test_middle_layers_leave_as_much_before_as_after(numbers: tuple[int, int]) -> None:
    n_layer, count = numbers
    layers = middle_layers(count, n_layer)
    before, after = layers[0], n_layer - 1 - layers[-1]
    assert len(layers) == count
    assert before >= 1
    assert after >= 1
    assert abs(before - after) <= 1


@given(st.sets(st.integers(1, 98), min_size=1))
def test_layers_as_text_are_read_back(layers: set[int]) -> None:
    text = layers_text(sorted(layers))
    assert layers_to_skip(text if "," in text or "-" in text else f"{text},", 100) == tuple(sorted(layers))


def test_what_a_pass_reads() -> None:
    embedding, norm = TensorSize("token_embd.weight", 1000), TensorSize("output_norm.weight", 4)
    head, layer = TensorSize("output.weight", 900), TensorSize("blk.0.attn_q.weight", 50)
    experts = TensorSize("blk.0.ffn_up_exps.weight", 800)
    assert pass_bytes([embedding, norm, head, layer], 0, 0) == 954  # a row of the embedding is looked up
    assert pass_bytes([embedding, norm, layer], 0, 0) == 1054  # and here it is the head too
    assert pass_bytes([head, layer, experts], 8, 2) == 1150
    assert CopyPlan(3, 2000, 500, 1000).cost == 0.5

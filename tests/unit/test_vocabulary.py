"""Which drafts may propose to which targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.vocabulary import MAX_PADDING, Vocabulary, compare

WORDS = [b"<s>", b"</s>", b"<unk>", b"<a>", b"<b>", *(f"word{n}".encode() for n in range(1000))]
BASE = Vocabulary("BPE", WORDS, frozenset({0, 1, 2}), bos=0, eos=None)


def padded(rows: int) -> Vocabulary:
    return replace(BASE, texts=[*WORDS, *(f"[PAD{n}]".encode() for n in range(rows))])


def renamed(token: int, text: bytes) -> Vocabulary:
    return replace(BASE, texts=[*WORDS[:token], text, *WORDS[token + 1 :]])


def test_a_vocabulary_fits_itself() -> None:
    assert compare(BASE, BASE).fits
    assert compare(BASE, BASE).reasons == ()


@pytest.mark.parametrize("rows", [1, 127, MAX_PADDING])
def test_padding_fits_in_both_directions(rows: int) -> None:
    assert compare(padded(rows), BASE).fits
    assert compare(BASE, padded(rows)).fits


def test_more_padding_is_refused_with_both_sizes() -> None:
    check = compare(padded(MAX_PADDING + 1), BASE)
    assert not check.fits
    assert "target 1134" in check.reasons[0]
    assert "draft 1005" in check.reasons[0]
    assert "target 1005, draft 1134" in compare(BASE, padded(MAX_PADDING + 1)).reasons[0]


def test_the_first_token_that_differs_is_named() -> None:
    other = renamed(900, b"other")
    other = replace(other, texts=[*other.texts[:700], b"mine", *other.texts[701:]])
    check = compare(BASE, other)
    assert check.reasons == ("token 700 differs: target 'word695', draft 'mine'",)


def test_the_same_width_is_not_enough() -> None:
    assert not compare(BASE, replace(BASE, texts=[*WORDS[:5], *reversed(WORDS[5:])])).fits


def test_a_text_that_is_no_utf8_is_named_all_the_same() -> None:
    assert "token 9 differs" in compare(BASE, renamed(9, b"\xff")).reasons[0]


def test_special_tokens_among_the_first_five_may_be_spelt_differently() -> None:
    assert compare(BASE, renamed(1, b"<|end|>")).fits


def test_only_special_ones_may() -> None:
    assert not compare(BASE, renamed(3, b"<|end|>")).fits
    beyond = replace(renamed(7, b"<|end|>"), special=frozenset({7}))
    assert not compare(replace(BASE, special=frozenset({7})), beyond).fits
    assert not compare(BASE, replace(renamed(1, b"<|end|>"), special=frozenset())).fits


def test_the_types_must_agree() -> None:
    check = compare(BASE, replace(BASE, type="SPM"))
    assert not check.fits
    assert "target BPE, draft SPM" in check.reasons[0]


@pytest.mark.parametrize(("field", "name"), [("bos", "BOS"), ("eos", "EOS")])
def test_bos_and_eos_count_where_they_are_added(field: str, name: str) -> None:
    check = compare(replace(BASE, **{field: 1}), replace(BASE, **{field: 2}))
    assert not check.fits
    assert f"{name} tokens added differ: target 1, draft 2" in check.reasons[0]
    assert not compare(replace(BASE, **{field: 1}), replace(BASE, **{field: None})).fits
    assert compare(replace(BASE, **{field: None}), replace(BASE, **{field: None})).fits


def test_every_reason_is_given() -> None:
    assert len(compare(BASE, replace(padded(500), type="SPM", bos=1)).reasons) == 3

"""Thinking parts are found at the beginning of an answer, and nowhere else."""

from __future__ import annotations

import pytest

from app.core.thinking import MARKERS, ThinkingSpan, find_thinking, split_thinking


@pytest.mark.parametrize(("opener", "closer"), MARKERS)
def test_every_marker_pair_is_split(opener: str, closer: str) -> None:
    assert split_thinking(f"{opener}\nadd them\n{closer}\n\nFour.") == ("add them", "Four.")


def test_text_without_markers_is_the_answer_unchanged() -> None:
    assert split_thinking("  Four.\n") == ("", "  Four.\n")
    assert find_thinking("Four.") is None


def test_template_that_opened_the_part() -> None:
    assert split_thinking("add them</think>Four.", opens_thinking=True) == ("add them", "Four.")


def test_template_opened_the_part_and_the_model_repeats_the_marker() -> None:
    assert split_thinking("<think>add them</think>Four.", opens_thinking=True) == ("add them", "Four.")


def test_open_part_has_no_answer_yet() -> None:
    assert split_thinking("<think>add th") == ("add th", "")
    assert split_thinking("add th", opens_thinking=True) == ("add th", "")
    assert find_thinking("\n<think>add") == ThinkingSpan(8, None, None)


def test_marker_inside_an_answer_stays_text() -> None:
    text = "Write <think>like this</think> in the prompt."
    assert split_thinking(text) == ("", text)


def test_only_the_first_part_counts() -> None:
    assert split_thinking("<think>a</think>b<think>c</think>") == ("a", "b<think>c</think>")


def test_other_pairs_closer_does_not_close() -> None:
    assert split_thinking("<think>a[/THINK]b</think>c") == ("a[/THINK]b", "c")


def test_offsets_give_the_parts() -> None:
    text = " <think>ab</think>cd"
    assert find_thinking(text) == ThinkingSpan(8, 10, 18)
    assert (text[8:10], text[18:]) == ("ab", "cd")


def test_empty_part() -> None:
    assert split_thinking("<think>\n\n</think>\n\nHi") == ("", "Hi")

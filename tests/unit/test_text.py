"""Tokens' bytes to text: the same text however the bytes fall into tokens, and nothing taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.text import OutputText


def settle(pieces: list[bytes], stop: list[str]) -> tuple[list[list[str]], bool]:
    """What is settled after each piece and at the end; whether a stop string ended it."""
    text, steps = OutputText(stop), []
    for piece in pieces:
        stopped = text.push(piece)
        steps.append(text.take_settled())
        if stopped:
            return steps, True
    text.finish()
    return [*steps, text.take_settled()], False


def joined(steps: list[list[str]]) -> str:
    return "".join(part for step in steps for part in step)


def read_plainly(text: str, stop: list[str]) -> tuple[str, bool]:
    """Character by character: the first stop string to be complete cuts, of several the longest."""
    for end in range(len(text) + 1):
        complete = [len(word) for word in stop if text[:end].endswith(word)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


LETTERS = st.text(st.sampled_from("ab\n<é語🙂"), max_size=24)
STOPS = st.lists(st.text(st.sampled_from("ab\n<é"), min_size=1, max_size=4), max_size=3)


@st.composite
def split_bytes(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Any split, empty pieces among them (control tokens bring no bytes)."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[low:high] for low, high in zip([0, *places], [*places, len(data)], strict=True)]


@given(text=LETTERS, stop=STOPS, data=st.data())
def test_any_split_reads_as_the_plain_text(text: str, stop: list[str], data: st.DataObject) -> None:
    pieces = data.draw(split_bytes(text.encode()))
    steps, stopped = settle(pieces, stop)
    assert (joined(steps), stopped) == read_plainly(text, stop)


@given(text=LETTERS, stop=STOPS, data=st.data())
def test_every_token_gets_one_text(text: str, stop: list[str], data: st.DataObject) -> None:
    pieces = data.draw(split_bytes(text.encode()))
    steps, stopped = settle(pieces, stop)
    pushed = len(steps) if stopped else len(pieces)
    assert sum(map(len, steps)) == pushed


@given(text=LETTERS, stop=STOPS, data=st.data())
def test_what_is_settled_is_what_the_whole_will_be(text: str, stop: list[str], data: st.DataObject) -> None:
    """After every piece: a prefix of the final text, and held back no longer than needed."""
    pieces = data.draw(split_bytes(text.encode()))
    output, pushed, settled = OutputText(stop), b"", ""
    final = read_plainly(text, stop)[0]
    for piece in pieces:
        if output.push(piece):
            break
        settled += "".join(output.take_settled())
        pushed += piece
        assert final.startswith(settled)
        whole = pushed.decode("utf-8", "ignore")
        may_begin = any(whole.endswith(word[:length]) for word in stop for length in range(1, len(word)))
        if not may_begin and whole.encode() == pushed:
            assert settled == whole


@given(data=st.binary(max_size=20), split=st.data())
def test_broken_utf8_reads_as_its_replacement(data: bytes, split: st.DataObject) -> None:
    steps, _ = settle(split.draw(split_bytes(data)), [])
    assert joined(steps) == data.decode("utf-8", "replace")


def test_a_character_over_three_tokens_belongs_to_the_one_that_completes_it() -> None:
    assert settle([b"a\xe8", b"\xaa", b"\x9eb"], []) == ([[], ["a"], ["", "語b"], []], False)


def test_control_tokens_between_the_bytes_of_a_character_wait_with_it() -> None:
    assert settle([b"\xc3", b"", b"\xa9"], []) == ([[], [], ["", "", "é"], []], False)


def test_half_a_character_at_the_end() -> None:
    assert settle([b"a", b"\xf0\x9f", b""], []) == ([["a"], [], [], ["\ufffd", ""]], False)
    assert settle([b"\xf0\x9f"], []) == ([[], ["\ufffd"]], False)


def test_half_a_character_before_a_whole_one() -> None:
    assert settle([b"\xf0\x9f", b"a"], []) == ([[], ["", "\ufffda"], []], False)


def test_a_stop_string_inside_one_token() -> None:
    assert settle([b"one", b" STOP two"], ["STOP"]) == ([["one"], [" "]], True)


def test_a_stop_string_over_three_tokens() -> None:
    steps, stopped = settle([b"x", b"yST", b"O", b"Pz"], ["STOP"])
    assert (steps, stopped) == ([["x"], [], [], ["y", "", ""]], True)


def test_what_might_have_been_a_stop_string_comes_out_when_it_is_none() -> None:
    steps, stopped = settle([b"ST", b"O", b"NE"], ["STOP"])
    assert (steps, stopped) == ([[], [], ["ST", "O", "NE"], []], False)


def test_what_might_have_been_a_stop_string_comes_out_at_the_end() -> None:
    assert settle([b"ST", b"O"], ["STOP"]) == ([[], [], ["ST", "O"]], False)


def test_half_a_character_before_a_stop_is_dropped_with_nothing_after_it() -> None:
    steps, stopped = settle([b"a.\xc3"], ["."])
    assert (steps, stopped) == ([["a"]], True)


def test_the_first_of_two_stop_strings_cuts() -> None:
    assert settle([b"abcd"], ["d", "bc"]) == ([["a"]], True)
    assert settle([b"abcd"], ["abcd", "bc"]) == ([["a"]], True)
    assert settle([b"a", b"b", b"c", b"d"], ["abcd", "bc"])[0][-1] == ["a", "", ""]

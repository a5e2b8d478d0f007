"""Where a reasoning model's thinking part ends and its answer begins."""

from __future__ import annotations

from dataclasses import dataclass

MARKERS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)


@dataclass(frozen=True, slots=True)
class ThinkingSpan:
    """Where the thinking part lies in a text, as character offsets, markers left out.

    The thinking is ``text[start:end]``, the answer ``text[answer:]``; ``end`` and ``answer`` are None while
    the part is still open.
    """

    start: int
    end: int | None
    answer: int | None


def find_thinking(text: str, opens_thinking: bool = False) -> ThinkingSpan | None:
    """The thinking part of a text that may still grow, or None where it has none (yet).

    A part counts only at the very beginning: a marker that the model writes about later is plain text.

    Args:
        opens_thinking: the chat template has already written the opening marker.
    """
    lead = len(text) - len(text.lstrip())
    pair = next((pair for pair in MARKERS if text.startswith(pair[0], lead)), None)
    if pair is not None:
        start, closers = lead + len(pair[0]), [pair[1]]
    elif opens_thinking:
        start, closers = 0, [closer for _, closer in MARKERS]
    else:
        return None
    found = [(at, closer) for closer in closers if (at := text.find(closer, start)) >= 0]
    if not found:
        return ThinkingSpan(start, None, None)
    end, closer = min(found)
    return ThinkingSpan(start, end, end + len(closer))


def split_thinking(text: str, opens_thinking: bool = False) -> tuple[str, str]:
    """``(thinking, answer)``, without markers and outer blank space; the text itself if it has no part.

    >>> split_thinking("<think>Two and two.</think> Four.")
    ('Two and two.', 'Four.')
    """
    span = find_thinking(text, opens_thinking)
    if span is None:
        return "", text
    if span.end is None or span.answer is None:
        return text[span.start :].strip(), ""
    return text[span.start : span.end].strip(), text[span.answer :].strip()

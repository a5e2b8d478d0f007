"""Which turns of a conversation still fit the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from app.core.settings import ChatMessage

Render = Callable[[Sequence[ChatMessage]], list[int]]


def fit(
    messages: Sequence[ChatMessage], render: Render, n_ctx: int, max_tokens: int
) -> tuple[list[int], int]:
    """The prompt's ids and how many of the oldest turns were left out to make room.

    A turn is a question with its answer. The system prompt and the last question always stay; a last
    question too long on its own comes back as it is, for the caller to refuse. Turns go until the answer
    has room for ``max_tokens``, or for a quarter of the context where that is less.
    """
    system = [message for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    room = n_ctx - min(max_tokens, n_ctx // 4)
    starts = [place for place in range(1, len(turns)) if turns[place].role == "user"]

    def without(left_out: int) -> list[int]:
        return render([*system, *turns[starts[left_out - 1] if left_out else 0 :]])

    ids = without(0)
    if len(ids) <= room or not starts:
        return ids, 0
    # A long conversation is rendered a few times only, not once a turn that goes.
    left_out = bisect_left(range(1, len(starts)), True, key=lambda count: len(without(count)) <= room) + 1
    return without(left_out), left_out

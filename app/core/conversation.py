"""Which turns of a conversation still fit the context."""

from __future__ import annotations

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
    left_out = 0
    ids = render([*system, *turns])
    while len(ids) > room:
        later = next((place for place in range(1, len(turns)) if turns[place].role == "user"), None)
        if later is None:
            break
        del turns[:later]
        left_out += 1
        ids = render([*system, *turns])
    return ids, left_out

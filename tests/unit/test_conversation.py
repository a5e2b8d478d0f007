"""Which turns are left out when a conversation outgrows the context."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.core.conversation import fit
from app.core.settings import ChatMessage


def message(role: str, n: int) -> ChatMessage:
    """A message of ``n`` letters."""
    return ChatMessage(role, "x" * n)


def render(messages: Sequence[ChatMessage]) -> list[int]:
    """One id a letter and two a message, so that what was kept shows in the ids."""
    ids: list[int] = []
    for one in messages:
        ids += [len(one.content) + 1000 * ["system", "user", "assistant"].index(one.role), 0]
        ids += [1] * len(one.content)
    return ids


SYSTEM, Q1, A1, Q2, A2, Q3 = (
    message("system", 10),
    message("user", 20),
    message("assistant", 30),
    message("user", 21),
    message("assistant", 31),
    message("user", 22),
)


def test_what_fits_stays_whole() -> None:
    turns = [SYSTEM, Q1, A1, Q2]
    assert fit(turns, render, 200, 50) == (render(turns), 0)


def test_the_oldest_turn_goes_first_with_its_answer() -> None:
    ids, left_out = fit([SYSTEM, Q1, A1, Q2, A2, Q3], render, 140, 30)
    assert (ids, left_out) == (render([SYSTEM, Q2, A2, Q3]), 1)


def test_turns_go_until_the_answer_has_room() -> None:
    ids, left_out = fit([SYSTEM, Q1, A1, Q2, A2, Q3], render, 100, 30)
    assert (ids, left_out) == (render([SYSTEM, Q3]), 2)


def test_a_long_answer_may_claim_a_quarter_of_the_context() -> None:
    turns = [SYSTEM, Q1, A1, Q2]
    n = len(render(turns))
    assert fit(turns, render, n + n // 3 + 1, 10_000)[1] == 0
    assert fit(turns, render, n + 1, 10_000)[1] == 1


def test_the_room_is_exact() -> None:
    turns = [Q1, A1, Q2]
    n = len(render(turns))
    assert fit(turns, render, n + 5, 5)[1] == 0
    assert fit(turns, render, n + 4, 5)[1] == 1


def test_the_system_prompt_and_the_last_question_always_stay() -> None:
    turns = [SYSTEM, Q1, A1, message("user", 500)]
    assert fit(turns, render, 64, 16) == (render([SYSTEM, turns[-1]]), 1)


def test_one_long_question_comes_back_for_the_caller_to_refuse() -> None:
    question = [message("user", 500)]
    assert fit(question, render, 64, 16) == (render(question), 0)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
    last=st.integers(0, 40),
    has_system=st.booleans(),
    n_ctx=st.integers(8, 300),
    max_tokens=st.integers(1, 100),
)
def test_as_few_turns_as_needed(
    sizes: list[tuple[int, int]], last: int, has_system: bool, n_ctx: int, max_tokens: int
) -> None:
    head = [SYSTEM] if has_system else []
    turns = [[message("user", q), message("assistant", a)] for q, a in sizes]
    tail = [message("user", last)]

    def kept(left_out: int) -> list[int]:
        return render([*head, *(m for turn in turns[left_out:] for m in turn), *tail])

    ids, left_out = fit([*head, *(m for turn in turns for m in turn), *tail], render, n_ctx, max_tokens)
    room = n_ctx - min(max_tokens, n_ctx // 4)
    assert ids == kept(left_out)
    assert len(ids) <= room or left_out == len(turns)
    assert left_out == 0 or len(kept(left_out - 1)) > room


def test_a_long_conversation_is_rendered_a_few_times_only() -> None:
    turns = [m for n in range(500) for m in (message("user", 9), message("assistant", 9))]
    renders = 0

    def counting(messages: Sequence[ChatMessage]) -> list[int]:
        nonlocal renders
        renders += 1
        return render(messages)

    ids, left_out = fit([*turns, Q1], counting, 256, 16)
    assert (ids, left_out) == (render([*turns[left_out * 2 :], Q1]), 491)
    assert renders < 15

"""The conversations of the open tabs, kept while the program runs, so that a reload finds them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.settings import ChatMessage
from app.core.thinking import split_thinking
from app.ui import stream


class CanCancel(Protocol):
    """What a conversation needs of a run."""

    def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Turn:
    """A question and what came of it. ``lines`` are its records as the browser gets them."""

    question: str
    lines: list[str] = field(default_factory=list)
    text: str = ""
    opens_thinking: bool = False
    figures: dict[str, Any] | None = None
    run: CanCancel | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        self.lines.append(stream.record("turn", self.question))


@dataclass(slots=True)
class Conversation:
    """One tab's turns and the settings it was last asked with."""

    turns: list[Turn] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def begin(self, question: str, replaces_last: bool = False) -> Turn:
        """A new turn, after or instead of the last one. A run still going ends."""
        self.stop()
        if replaces_last and self.turns:
            self.turns.pop()
        turn = Turn(question)
        self.turns.append(turn)
        return turn

    def stop(self) -> None:
        """Cancel whatever is being answered."""
        for turn in self.turns[-1:]:
            turn.stopped = True
            if turn.run is not None:
                turn.run.cancel()

    def settle(self, patience_s: float) -> None:
        """Cancel whatever is being answered, and wait a moment until its last words are kept."""
        self.stop()
        deadline = time.monotonic() + patience_s
        while any(turn.run for turn in self.turns) and time.monotonic() < deadline:
            time.sleep(0.02)

    def has(self, turn: Turn) -> bool:
        """Whether the turn is still part of it."""
        return turn in self.turns

    def clear(self) -> None:
        """Start over."""
        self.stop()
        self.turns = []

    def messages(self, system: str) -> tuple[ChatMessage, ...]:
        """What goes to the model: thinking left out, and turns without an answer, up to the last question."""
        messages = [ChatMessage("system", system)] if system.strip() else []
        for turn in self.turns[:-1]:
            answer = split_thinking(turn.text, turn.opens_thinking)[1]
            if answer:
                messages += [ChatMessage("user", turn.question), ChatMessage("assistant", answer)]
        messages += [ChatMessage("user", turn.question) for turn in self.turns[-1:]]
        return tuple(messages)

    def replay(self) -> str:
        """The whole conversation as one stream."""
        return stream.whole(turn.lines for turn in self.turns)


class Conversations:
    """By the id that a tab keeps; the longest unused are forgotten."""

    def __init__(self, capacity: int = 200) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, Conversation] = OrderedDict()

    def get(self, id_: str) -> Conversation:
        """The tab's conversation, a new one if it has none."""
        with self._lock:
            conversation = self._by_id.setdefault(id_, Conversation())
            self._by_id.move_to_end(id_)
            while len(self._by_id) > self._capacity:
                self._by_id.popitem(last=False)
            return conversation

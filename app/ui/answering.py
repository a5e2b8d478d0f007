"""From a run's messages to what the page shows: one generator an answer, which ends the run when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from app.core.errors import HeadstartError
from app.core.settings import LoadSettings, Mode, Request
from app.core.thinking import find_thinking
from app.core.tokens import DraftSource, TokenEvent, round_source
from app.ui import stream
from app.ui.conversation import Conversation, Turn
from app.ui.figures import FigureKeeper, count
from app.ui.reasons import why
from app.worker.messages import (
    Failed,
    Finished,
    Loading,
    Measuring,
    Message,
    Prefilling,
    RoundDone,
    Started,
    Waiting,
)

UPDATE_S = 0.2  # between two updates while tokens come
FIGURES_S = 0.5  # between two updates of the figures: numbers are read no faster, and drawing takes time
BEAT_S = 0.4  # between two updates while nothing happens; a closed tab is noticed only at an update

FINISHES = {
    "stop": "",
    "length": "cut at the longest answer that the settings allow",
    "context": "cut because the context is full",
    "cancelled": "stopped",
}


class Run(Protocol):
    """One answer being made."""

    @property
    def silence(self) -> str: ...
    def batches(self, timeout: float) -> Iterator[list[Message]]: ...
    def cancel(self) -> None: ...


class Client(Protocol):
    """What the page needs of the worker's client."""

    def submit(self, load: LoadSettings, request: Request) -> Run: ...
    def close(self) -> None: ...


class Answer:
    """Folds messages into a turn's records and figures."""

    def __init__(self, turn: Turn, keep: int, speculates: bool, draft: Path | None = None) -> None:
        self.turn = turn
        self._draft = draft
        self.figures = FigureKeeper(speculates=speculates)
        self._value = stream.head(keep) + "".join(turn.lines)
        self._started = time.monotonic()
        self._ends: list[int] = []  # where each output token's text ends
        self._folded: set[str] = set()
        self.finished = False

    def shown(self) -> tuple[str, dict[str, Any]]:
        """The values of the conversation and of the figures."""
        beat = round(time.monotonic() - self._started, 1)
        return self._value, {**self.figures.shown(), "running": not self.finished, "beat": beat}

    def status(self, words: str, fraction: float | None = None) -> None:
        """Say what the wait is for; not kept."""
        self._value += stream.record("status", words, fraction)

    def take(self, message: Message) -> None:
        """One message of the run."""
        match message:
            case Waiting(ahead):
                self.status(f"Waiting: {count(ahead, 'other answer')} first" if ahead else "Waiting")
            case Loading(role, name, fraction):
                self.status(f"Loading the {role}, {name}", fraction)
            case Measuring(name):
                self.status(f"Measuring how fast {name} is here")
            case Started(_, cached, left_out, opens_thinking):
                self.turn.opens_thinking = opens_thinking
                if left_out:
                    self._keep(stream.record("left_out", left_out))
                self.status("Reading the prompt" + (f" ({cached} tokens cached)" if cached else ""))
            case Prefilling(done, total):
                self.status(f"Reading the prompt: {done} of {total} tokens", done / total if total else None)
            case RoundDone():
                self._take_round(message)
            case Finished():
                self.figures.finish(message.stats, message.plain_tokens_per_s)
                self._end(message.finish_reason)
            case Failed():
                self.fail(message.what, message.remedy, message.log_tail)

    def fail(self, what: str, remedy: str, log: str = "") -> None:
        """The answer can't go on; what has come so far stays."""
        words = f"{what}; {remedy}" if remedy else what
        if "." not in words.partition(" ")[0]:  # else it begins with the name of a file
            words = words[:1].upper() + words[1:]
        self._keep(stream.record("failed", f"{words}.", log))
        self.figures.finish(self.figures.stats, self.figures.plain_tokens_per_s)
        self._end("failed")

    def abandon(self) -> None:
        """Nobody reads on: the tab was closed or reloaded."""
        if not self.finished:
            self.figures.finish(self.figures.stats, self.figures.plain_tokens_per_s)
            self._end("cancelled")

    def _end(self, reason: str) -> None:
        self.finished = True
        summary = self.figures.summary() if self.figures.stats.output_tokens or reason != "failed" else ""
        self._keep(stream.record("end", reason, summary, FINISHES.get(reason, "")))
        self.turn.figures = self.shown()[1]

    def _keep(self, line: str) -> None:
        self.turn.lines.append(line)
        self._value += line

    def _take_round(self, done: RoundDone) -> None:
        self.figures.observe(done.tokens, done.stats, done.t, done.plain_tokens_per_s)
        self._take_tokens(done.tokens)
        if done.choice:
            n_drafted = sum(token.source is DraftSource.MODEL for token in done.tokens)
            said = why(done.choice, self._draft, n_drafted)
            self._keep(stream.record("why", done.round, said))
            self.figures.explain(round_source(done.tokens), said, done.t)

    def _take_tokens(self, tokens: tuple[TokenEvent, ...]) -> None:
        for token in tokens:
            self._keep(stream.token_record(token))
            if token.kind.is_output:
                self.turn.text += token.text
                self._ends.append(len(self.turn.text))
        span = find_thinking(self.turn.text, self.turn.opens_thinking)
        if span is not None:
            self._fold("think", 0)
            if span.answer is not None:
                self._fold("answer", sum(end < span.answer for end in self._ends) + 1)

    def _fold(self, edge: str, index: int) -> None:
        if edge not in self._folded:
            self._folded.add(edge)
            self._keep(stream.record(edge, index))


def answer(
    client: Client, conversation: Conversation, turn: Turn, load: LoadSettings, request: Request
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Submit the request and yield the page's values, at least twice a second, until it has ended;
    the figures are skipped where their last ones are too fresh.

    Closing the generator cancels the run. A turn that has left the conversation has no more to show.
    """
    speculates = request.speculation.mode is not Mode.PLAIN
    making = Answer(turn, len(conversation.turns) - 1, speculates, load.draft)
    making.status("Sending")
    yield making.shown()
    run = None
    try:
        run = turn.run = client.submit(load, request)
        if turn.stopped:
            run.cancel()
        shown_at = figures_at = time.monotonic()
        is_new, silence = False, ""
        for batch in run.batches(UPDATE_S):
            for message in batch:
                making.take(message)
            if run.silence not in (silence, ""):
                silence = run.silence
                making.status(silence[:1].upper() + silence[1:])
            is_new = is_new or bool(batch)
            if time.monotonic() - shown_at >= (UPDATE_S if is_new else BEAT_S):
                if not conversation.has(turn):
                    return
                value, figures = making.shown()
                has_figures = not is_new or time.monotonic() - figures_at >= FIGURES_S
                yield value, figures if has_figures else gr.skip()
                shown_at, is_new = time.monotonic(), False
                figures_at = shown_at if has_figures else figures_at
    except HeadstartError as error:
        making.fail(error.what, error.remedy)
    except Exception as error:  # the page must come out of its waiting whatever happened
        making.fail(f"the page failed: {type(error).__name__}: {error}", "ask again")
    finally:
        if run is not None:
            run.cancel()
        making.abandon()
        turn.run = None
    if conversation.has(turn):
        yield making.shown()

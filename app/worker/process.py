"""The child process: owns the models, loads them when a request needs them, and answers.

One thread makes every call into llama.cpp. The parent stops work by setting a shared byte and ends the
child by closing the pipe.
"""

from __future__ import annotations

import ctypes
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from app.backend.llama import CancelFlag
from app.core.conversation import fit
from app.core.errors import Cancelled, HeadstartError, UsageError
from app.core.settings import LoadSettings, Mode, Request, Scoring
from app.core.stats import Stats
from app.engine.generate import Answer, Vocabulary
from app.engine.score import top_two
from app.worker.loaded import LoadedPair
from app.worker.messages import (
    Failed,
    Finished,
    Last,
    Loading,
    Measuring,
    Message,
    Prefilling,
    RoundDone,
    Scored,
    Started,
)

Send = Callable[[Message], None]
# A small model makes 200 rounds a second; a message each would wake the parent on a core that decodes.
_SEND_EVERY_S = 0.04


def serve(connection: Connection, cancel: ctypes.Array[ctypes.c_char]) -> None:
    """Answer requests from ``connection`` until it closes."""
    pair = LoadedPair(CancelFlag(cancel))
    while True:
        try:
            load, request = connection.recv()
            outbox = _Outbox(connection)
            outbox.send(_answer(pair, load, request, outbox.send))
        except (EOFError, BrokenPipeError, ConnectionError):
            return


class _Outbox:
    """Sends messages in lists: rounds that follow each other fast travel together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: list[Message] = []
        self._sent_at = 0.0

    def send(self, message: Message) -> None:
        self._messages.append(message)
        now = time.perf_counter()
        if not isinstance(message, RoundDone) or now - self._sent_at >= _SEND_EVERY_S:
            self._connection.send(self._messages)
            self._messages = []
            self._sent_at = now


def _answer(pair: LoadedPair, load: LoadSettings, request: Request | Scoring, send: Send) -> Last:
    """Load what is missing, make the answer, send its messages, and return the last one."""
    try:
        pair.change_to(load, lambda *loading: send(Loading(*loading)))
        if isinstance(request, Scoring):
            return Scored(*top_two(pair.target.context, request))
        return _generate(pair, request, send)
    except Cancelled:
        return Finished((), (), "", "cancelled", Stats(), None)
    except HeadstartError as error:
        return Failed(error.what, error.remedy, usage=isinstance(error, UsageError))
    except (BrokenPipeError, ConnectionError):
        raise
    except Exception as error:  # a fault of ours must not cost the person the loaded models
        traceback.print_exc()
        return Failed(f"an internal error ({type(error).__name__}: {error})", "the log has the details")


def _generate(pair: LoadedPair, request: Request, send: Send) -> Finished:
    model, context = pair.target.model, pair.target.context
    if request.raw:
        ids, left_out = pair.format.raw_ids(request.messages[-1].content), 0
    else:
        ids, left_out = fit(request.messages, pair.format.prompt_ids, context.n_ctx, request.max_tokens)
    vocabulary = Vocabulary(model.piece, model.is_end, pair.n_shared)
    draft = pair.draft.context if pair.draft else None
    known = None
    if request.speculation.mode is Mode.AUTO:
        known = pair.known(request.sampling, lambda name: send(Measuring(name)))
    elif request.speculation.mode is not Mode.PLAIN:  # what it gains is told by the target's costs
        pair.target.measured(lambda name: send(Measuring(name)))
    answer = Answer(context, draft, vocabulary, ids, request, time.perf_counter, known)
    opens_thinking = not request.raw and pair.format.opens_thinking(ids)
    send(Started(answer.prompt_ids, answer.cached_tokens, left_out, opens_thinking))
    for settled in answer.settled_rounds(lambda done, total: send(Prefilling(done, total))):
        length = len(answer.prompt_ids) + settled.stats.output_tokens
        pair.note_pass(settled.round.n_passed, length, settled.round.verify_s)
        send(
            RoundDone(
                settled.round.index,
                settled.tokens,
                settled.stats,
                settled.t,
                pair.plain_tokens_per_s,
                settled.choice,
            )
        )
    if known:
        pair.keep_costs()
    return Finished(
        answer.prompt_ids,
        tuple(answer.output_ids),
        answer.text,
        answer.finish_reason,
        answer.stats,
        pair.plain_tokens_per_s,
    )

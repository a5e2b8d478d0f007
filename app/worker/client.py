"""The parent's side of the child process: a queue of runs, and a new child when one has died."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from app.core.settings import LoadSettings, Request, Scoring
from app.core.stats import Stats
from app.worker.child import deaf_to_ctrl_c, prepare, reason_of_death
from app.worker.messages import Failed, Finished, Last, Loading, Message, Waiting

_spawn = multiprocessing.get_context("spawn")
_LOG_LINES = 200
PATIENCE_S = 15.0  # what a cancelled run may take to end before its child is ended
QUIET_S = 20.0  # a silence worth telling; one pass over a long prompt can take as long
_NOTHING = Finished((), (), "", "cancelled", Stats(), None)
_clients: weakref.WeakSet[WorkerClient] = weakref.WeakSet()


def loaded() -> list[tuple[int, LoadSettings]]:
    """The process id of each child that this process has, and what it was last asked to hold."""
    return [(pid, client.load) for client in [*_clients] if (pid := client.child_pid) and client.load]


class Run:
    """One answer on its way; its messages come in the order of worker.messages."""

    def __init__(self, client: WorkerClient, load: LoadSettings, request: Request | Scoring) -> None:
        self.load = load
        self.request = request
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.ahead = 0
        self.heard_at: float | None = None
        self.is_cancelled = self.is_given_up = False
        self._client = client

    @property
    def silence(self) -> str:
        """In words that the child has given no sign of life for long; nothing while it does."""
        silent_s = time.monotonic() - self.heard_at if self.heard_at is not None else 0.0
        if silent_s < QUIET_S:
            return ""
        return (
            f"no sign of life from the model process for {silent_s // 5 * 5:.0f} s: it is at a long pass, "
            f"or stuck; stopping ends it within {PATIENCE_S:.0f} s"
        )

    def batches(self, timeout: float) -> Iterator[list[Message]]:
        """What has arrived, waiting at most ``timeout`` seconds for the first message of a batch.

        Yields an empty list when nothing came, and ends after the batch that has Finished, Failed or Scored.
        """
        while True:
            batch: list[Message] = []
            try:
                batch.append(self.messages.get(timeout=timeout))
                while True:
                    batch.append(self.messages.get_nowait())
            except queue.Empty:
                pass
            yield batch
            if batch and isinstance(batch[-1], Last):
                return

    def cancel(self) -> None:
        """Stop this run, waiting or running; it still ends with Finished, or with Failed where the child does
        not answer and has to be ended. Does nothing once it has ended."""
        self._client.cancel(self)


class WorkerClient:
    """Starts the child when it is first needed, serves runs one at a time, and replaces a dead child.

    Thread-safe. ``close`` ends the child and must be called before the process ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[Run] = deque()
        self._active: Run | None = None
        self._closing = False
        self._child: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self.load: LoadSettings | None = None
        self._patience = threading.Timer(0, lambda: None)
        self._cancel: ctypes.Array[ctypes.c_char] = _spawn.RawArray(ctypes.c_char, 2)
        handle, self._log = tempfile.mkstemp(prefix="headstart-", suffix=".log")
        os.close(handle)
        _clients.add(self)
        self._dispatcher = threading.Thread(target=self._dispatch, daemon=True)
        self._dispatcher.start()

    @property
    def child_pid(self) -> int | None:
        """The child's process id while there is one."""
        child = self._child
        return child.pid if child is not None and child.is_alive() else None

    def submit(self, load: LoadSettings, request: Request | Scoring) -> Run:
        """Queue an answer or a scoring and return at once. A closed client cancels it."""
        run = Run(self, load, request)
        with self._lock:
            if self._closing:
                run.messages.put(_NOTHING)
                return run
            self._waiting.append(run)
            self._tell_places()
            self._lock.notify_all()
        return run

    def cancel(self, run: Run) -> None:
        """See Run.cancel."""
        with self._lock:
            if run is self._active:
                self._cancel[0] = b"\1"
                if not run.is_cancelled:
                    run.is_cancelled = True
                    self._patience = threading.Timer(PATIENCE_S, self._give_up, [run])
                    self._patience.daemon = True
                    self._patience.start()
            elif run in self._waiting:
                self._waiting.remove(run)
                run.messages.put(_NOTHING)
                self._tell_places()

    def unload(self) -> None:
        """Free the models' memory once the current run, if any, is over."""
        with self._lock:
            self._lock.wait_for(lambda: self._active is None)
            self._end_child()

    def log_tail(self) -> str:
        """The last lines of llama.cpp's log; nothing once the client is closed."""
        log = Path(self._log)
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        return "\n".join(lines[-_LOG_LINES:])

    def close(self) -> None:
        """End the child, and every run as cancelled, within 3 seconds."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            for run in self._waiting:
                run.messages.put(_NOTHING)
            self._waiting.clear()
            self._cancel[0] = b"\1"
            self._lock.notify_all()
        self._dispatcher.join(1.0)
        if self._dispatcher.is_alive() and self._child is not None:
            self._child.kill()
            self._dispatcher.join(1.0)
        self._end_child()
        Path(self._log).unlink(missing_ok=True)

    def _dispatch(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                self._active = run = self._waiting.popleft()
                self._cancel[0] = b"\0"
                self._tell_places()
            run.heard_at = time.monotonic()
            last = self._serve(run)
            with self._lock:
                self._active = None
                self._patience.cancel()
                self._lock.notify_all()
            run.messages.put(last)

    def _tell_places(self) -> None:
        for place, run in enumerate(self._waiting):
            ahead = place + (self._active is not None)
            if ahead != run.ahead:
                run.ahead = ahead
                run.messages.put(Waiting(ahead))

    def _serve(self, run: Run) -> Last:
        """Pass a run's messages on and return its last one."""
        message: Message | None = None
        try:
            with self._lock:
                if self._closing:
                    return _NOTHING
                connection = self._ready_connection()
            self.load = run.load
            connection.send((run.load, run.request))
            while True:
                batch = connection.recv()
                run.heard_at = time.monotonic()
                for message in batch:
                    if isinstance(message, Last):
                        return message
                    run.messages.put(message)
        except (EOFError, OSError) as error:
            return self._bury(
                run, error, f" while it loaded {message.name}" if isinstance(message, Loading) else ""
            )

    def _give_up(self, run: Run) -> None:
        """End a child that does not stop when it is told to."""
        with self._lock:
            if run is self._active and self._child is not None:
                run.is_given_up = True
                self._child.kill()

    def _ready_connection(self) -> Connection[Any, Any]:
        if self._child is None or not self._child.is_alive() or self._connection is None:
            self._end_child()
            ours, theirs = _spawn.Pipe()
            child = _spawn.Process(target=_child_main, args=(theirs, self._cancel, self._log), daemon=True)
            with deaf_to_ctrl_c():
                child.start()
            theirs.close()
            self._child, self._connection = child, ours
        return self._connection

    def _bury(self, run: Run, error: Exception, at_what: str) -> Finished | Failed:
        """The child is gone: say why, with its last words."""
        if self._closing:
            return _NOTHING
        child = self._child
        if child is not None:
            child.join(2.0)
        log = self.log_tail()
        if run.is_given_up:
            reason = "the model process did not stop when it was told to, and was ended"
        elif child is None or child.exitcode is None:
            reason = f"the model process cannot be started or reached ({error})"
        else:
            reason = reason_of_death(child.exitcode, log) + at_what
        self._end_child()
        return Failed(
            reason, "your text is kept; the next request starts it again", child_died=True, log_tail=log
        )

    def _end_child(self) -> None:
        child, connection = self._child, self._connection
        self._child = self._connection = None
        if connection is not None:
            connection.close()
        if child is None:
            return
        child.join(0.5)
        if child.is_alive():
            child.kill()
        child.join(1.0)


def _child_main(connection: Connection[Any, Any], cancel: ctypes.Array[ctypes.c_char], log: str) -> None:
    prepare(log)
    from app.worker.process import serve  # loads llama.cpp

    serve(connection, cancel)

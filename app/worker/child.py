"""How every child process begins, before it loads llama.cpp (whose import may already fail), and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

_WHY = {
    "SIGKILL": "it was killed, perhaps because memory ran out",
    "SIGABRT": "llama.cpp stopped on a failed assertion",
    "SIGILL": "this build of llama.cpp uses instructions that this processor lacks",
    "SIGSEGV": "llama.cpp crashed",
    "SIGBUS": "a model file was cut short or could not be read while in use",
}


@contextlib.contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """A child started meanwhile leaves Ctrl-C to its parent from its first moment on, where that can be."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare(log: str) -> None:
    """Write all output to the file ``log``, leave Ctrl-C to the parent, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _redirect_output(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def reason_of_death(exitcode: int, log: str) -> str:
    """Why a child ended without being asked to, in words; ``log`` is what it wrote."""
    if exitcode >= 0:
        last = "".join(f": {line}" for line in log.splitlines()[-1:])
        return f"the model process ended by itself (exit status {exitcode}){last}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    why = f": {_WHY[name]}" if name in _WHY else ""
    return f"the model process died{why} ({name})"


def _redirect_output(log: str) -> None:
    # llama.cpp and the C library write straight to the descriptors; a crash's last words count most.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()


def _end_with_parent() -> None:
    """Leave no process behind, even when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

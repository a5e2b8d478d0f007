"""The page in the browser; the only package that imports gradio."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.paths import PROJECT, user_data_dir

GRACE_S = 2.5  # for page and child to end before the process does


def main(port: int, open_browser: bool) -> int:
    """Serve the page on 127.0.0.1 until a signal or Quit ends it. Returns the exit status.

    While it serves, ``running.json`` in the user-data folder holds its pid, port and checkout.
    """
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["OTEL_SDK_DISABLED"] = "true"
    with _without_proxies():
        from app.ui.models_library import DiskLibrary
        from app.ui.page import build, serve
        from app.worker.client import WorkerClient

        client, library = WorkerClient(), DiskLibrary()
        page = build(client, on_quit=ended.set, library=library)
        try:
            address = serve(page, port)
        except OSError as error:
            client.close()
            raise HeadstartError(
                f"port {port} can't be used ({error})", "choose another with --port"
            ) from error
    threading.Thread(target=library.queue, daemon=True).start()  # goes on with what a former run began
    with _running_file(port):
        print(f"Headstart is at {address} (Ctrl-C ends it)", flush=True)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        while not ended.wait(0.5):  # a wait without an end hides Ctrl-C on Windows
            pass
    threading.Thread(target=_end_anyway, daemon=True).start()
    client.close()
    library.close()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it reports the streams that it cuts
    page.server.force_exit = True  # streams open to a browser would hold it otherwise
    page.close(verbose=False)
    sys.stdout.flush()
    return 0


def _end_anyway() -> None:
    time.sleep(GRACE_S)
    os._exit(0)


@contextlib.contextmanager
def _without_proxies() -> Iterator[None]:
    """Gradio asks its own server whether it answers; a proxy, even a broken one, must not come between.

    Afterwards proxies hold again, for downloads, but never for this machine itself.
    """
    kept = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        before = kept["no_proxy"] or kept["NO_PROXY"]
        local = ",".join(filter(None, [before, "127.0.0.1", "localhost"]))
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = local


@contextlib.contextmanager
def _running_file(port: int) -> Iterator[None]:
    file = user_data_dir() / "running.json"
    facts = {"pid": os.getpid(), "port": port, "project": str(PROJECT)}
    with contextlib.suppress(OSError):  # without it a second start can't find this one; nothing else is lost
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f"running.{os.getpid()}.json")
        beside.write_text(json.dumps(facts), "utf-8")
        beside.replace(file)
    try:
        yield
    finally:
        if _pid_in(file) == os.getpid():
            file.unlink(missing_ok=True)


def _pid_in(file: Path) -> object:
    try:
        return json.loads(file.read_text("utf-8"))["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Programs that this one starts and waits for: the one that talks with the hub, and pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.core.errors import HeadstartError
from app.core.paths import PROJECT
from app.library.tokens import saved_token

POLL_S = 0.2
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class HubUnreachable(HeadstartError):
    """The hub does not answer; what it would have said may be had elsewhere."""


def ask_hub(*arguments: str, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What ``app.library.hub`` answers to a verb and its arguments.

    ``tick`` is called several times a second, and ends it by raising.

    Raises:
        HubUnreachable: there is no network, or no hub at its other end.
        HeadstartError: what the hub refuses, with its reason.
    """
    environment = os.environ | QUIET
    if token := saved_token():
        environment |= {"HF_TOKEN": token, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0"}
    command = [sys.executable, "-m", "app.library.hub", *arguments]
    output, errors = run(command, environment, tick, cwd=PROJECT)
    try:
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        last = errors.strip().splitlines()[-1:] or ["no message"]
        raise HeadstartError(f"the hub's helper process broke off ({last[0]})", "repeat it") from None
    if answer["outcome"] == "unreachable":
        raise HubUnreachable(answer["what"], answer["remedy"])
    if answer["outcome"] == "failed":
        raise HeadstartError(answer["what"], answer["remedy"])
    return answer


def run(
    command: list[str], environment: dict[str, str], tick: Callable[[], None], cwd: Path | None = None
) -> tuple[str, str]:
    """What a program printed; ``tick`` is called while it runs, and ends it early by raising."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=environment,
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for this process alone, which then ends the other
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            while process.poll() is None:
                tick()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            process.kill()
            process.communicate()
        output.seek(0)
        errors.seek(0)
        return output.read().decode("utf-8", "replace"), errors.read().decode("utf-8", "replace")

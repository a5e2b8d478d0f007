"""The child killed, starved or stuck at any moment: what came so far stays, the next request works, nothing
is left running."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_worker import (
    QUESTION,
    STORY,
    asked,
    failed,
    finished,
    has,
    is_gone,
    loaded_roles,
    messages_of,
    of_kind,
    until,
    wait_for,
)

from app.compare import machine, runner
from app.compare.record import Column, Prompt
from app.core.errors import HeadstartError
from app.core.settings import ChatMessage, LoadSettings, Request
from app.library import making
from app.worker import client as client_module
from app.worker import tasks
from app.worker.client import Run, WorkerClient
from app.worker.messages import Failed, Loading, Message, RoundDone, Started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
LONG_PROMPT = "The keeper counts the ships again. " * 500


@pytest.fixture
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture
def load(tiny_target: Path) -> LoadSettings:
    return LoadSettings(tiny_target, n_ctx=8192, threads=1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.5)
    monkeypatch.setattr(client_module, "QUIET_S", 0.3)


def pid_of(client: WorkerClient) -> int:
    wait_for(lambda: client.child_pid)
    return client.child_pid or 0


def answers_again(client: WorkerClient, load: LoadSettings, pid: int) -> None:
    """The old child is gone and a new one answers."""
    assert is_gone(pid)
    assert finished(client.submit(load, asked(QUESTION, 2))).finish_reason == "length"
    assert client.child_pid not in (None, pid)


# Killed


def test_killed_while_it_starts(client: WorkerClient, load: LoadSettings) -> None:
    run = client.submit(load, asked(QUESTION, 2))
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    assert failed(run).child_died
    answers_again(client, load, pid)


@pytest.mark.parametrize(
    ("moment", "text", "tokens"),
    [(Loading, QUESTION, 2), (Started, LONG_PROMPT, 2), (RoundDone, STORY, 5000)],
    ids=["loading", "prefill", "answer"],
)
def test_killed_at_any_moment(
    moment: type, text: str, tokens: int, client: WorkerClient, load: LoadSettings, starter_model: Path
) -> None:
    slow = dataclasses.replace(load, target=starter_model)
    run = client.submit(slow, asked(text, tokens))
    before = until(run, has(moment))
    pid = pid_of(client)
    os.kill(pid, signal.SIGKILL)
    last = messages_of(run, before)[-1]
    assert isinstance(last, Failed)
    assert last.child_died
    assert "killed, perhaps because memory ran out" in last.what
    assert (starter_model.name in last.what) == (moment is Loading), "it may be the file's fault"
    assert len(of_kind(moment, before)) > 0
    answers_again(client, load, pid)


def test_killed_in_a_comparison_costs_its_row_alone(
    client: WorkerClient, load: LoadSettings, headstart_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Column(name, load, Request((), max_tokens=20)) for name in ("a", "b")]
    prompts = [Prompt("p", "own", STORY), Prompt("q", "own", QUESTION)]
    comparison = runner.new(columns, prompts, 1, machine.facts(columns))
    submit, stopped, killed = client.submit, list[int](), list[int]()

    def submit_then_kill(*asked: Any) -> Run:
        if stopped:
            client.load = None
        run = submit(*asked)
        while stopped:
            wait_for(lambda: client.load)  # given to this child: killed before, another serves it
            killed.append(stopped.pop())
            os.kill(killed[-1], signal.SIGKILL)
        return run

    monkeypatch.setattr(client, "submit", submit_then_kill)
    for event in runner.Runner(client, comparison).events():
        if isinstance(event, runner.RunStarted) and len(comparison.runs) == 1 and not killed:
            stopped.append(pid_of(client))
            os.kill(stopped[0], signal.SIGSTOP)  # else the run might be over before the kill comes
    assert [bool(row.error) for row in comparison.runs] == [False, True, False, False]
    assert "model process died" in (comparison.runs[1].error or "")
    assert is_gone(killed[0])


def test_killed_while_a_draft_is_made_leaves_no_file(starter_model: Path, tmp_path: Path) -> None:
    wanted = making.plan_draft(starter_model, "Q2_K", output=tmp_path / "draft.gguf")

    def kill(step: str, done: int, total: int) -> None:
        if step.startswith("writing") and done == 1:
            for child in psutil.Process().children():
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()

    with pytest.raises(HeadstartError, match="the model process died: it was killed"):
        making.make(wanted, kill)
    assert not list(tmp_path.iterdir())


# Starved


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on another process")
def test_too_little_memory_for_a_context_is_an_error_and_what_fits_works(
    client: WorkerClient, load: LoadSettings
) -> None:
    small = dataclasses.replace(load, n_ctx=512)
    finished(client.submit(small, asked(QUESTION, 2)))
    child = psutil.Process(pid_of(client))
    limit = child.memory_info().vms + 200_000_000
    child.rlimit(psutil.RLIMIT_AS, (limit, limit))
    failure = failed(client.submit(dataclasses.replace(load, n_ctx=4_000_000), asked(QUESTION, 2)))
    assert "4000000 tokens" in failure.what
    assert "smaller context" in failure.remedy
    assert finished(client.submit(small, asked(QUESTION, 2))).finish_reason == "length"


# Stuck


def stopped(run: Run, enough: Callable[[Sequence[Message]], bool], client: WorkerClient) -> list[Message]:
    """The run's messages up to a moment at which its child is frozen."""
    before = until(run, enough)
    os.kill(pid_of(client), signal.SIGSTOP)
    return before


def test_a_stuck_child_is_told_of_and_stopping_ends_it(
    impatient: None, client: WorkerClient, load: LoadSettings
) -> None:
    run = client.submit(load, asked(STORY, 5000))
    before = stopped(run, has(RoundDone), client)
    pid = pid_of(client)
    wait_for(lambda: run.silence)
    assert run.silence.startswith("no sign of life from the model process for ")
    assert "stopping ends it" in run.silence
    run.cancel()
    last = messages_of(run, before)[-1]
    assert isinstance(last, Failed)
    assert last.what == "the model process did not stop when it was told to, and was ended"
    answers_again(client, load, pid)


def test_a_child_stuck_before_a_long_prompt_is_ended_too(
    impatient: None, client: WorkerClient, load: LoadSettings
) -> None:
    """The prompt is larger than the pipe, so that even sending it waits for the child."""
    finished(client.submit(load, asked(QUESTION, 2)))
    pid = pid_of(client)
    os.kill(pid, signal.SIGSTOP)
    run = client.submit(load, asked("x" * 1_000_000))
    wait_for(lambda: run.silence)
    run.cancel()
    assert "did not stop" in failed(run).what
    answers_again(client, load, pid)


def test_who_waits_behind_a_stuck_child_is_served(
    impatient: None, client: WorkerClient, load: LoadSettings
) -> None:
    run = client.submit(load, asked(STORY, 5000))
    before = stopped(run, has(RoundDone), client)
    waiting = client.submit(load, asked(QUESTION, 2))
    wait_for(lambda: run.silence)
    assert waiting.silence == "", "it is not its turn"
    run.cancel()
    assert isinstance(messages_of(run, before)[-1], Failed)
    assert finished(waiting).finish_reason == "length"


def test_a_child_that_stops_in_time_is_left_alive(client: WorkerClient, load: LoadSettings) -> None:
    threads = threading.active_count()
    for _ in range(5):
        run = client.submit(load, asked(STORY, 5000))
        before = until(run, has(RoundDone))
        pid = pid_of(client)
        run.cancel()
        assert messages_of(run, before)[-1].finish_reason == "cancelled"  # type: ignore[union-attr]
    assert loaded_roles(messages_of(client.submit(load, asked(QUESTION, 2)))) == set()
    assert client.child_pid == pid
    wait_for(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize(
    ("moment", "text"), [(Started, LONG_PROMPT), (RoundDone, STORY)], ids=["prefill", "answer"]
)
def test_a_cancelled_run_leaves_the_processor_alone(
    moment: type, text: str, client: WorkerClient, load: LoadSettings, starter_model: Path
) -> None:
    run = client.submit(dataclasses.replace(load, target=starter_model), asked(text, 5000))
    before = until(run, has(moment))
    run.cancel()
    assert messages_of(run, before)[-1].finish_reason == "cancelled"  # type: ignore[union-attr]
    child = psutil.Process(pid_of(client))

    def work_of_half_a_second() -> float:
        earlier = child.cpu_times()
        time.sleep(0.5)
        later = child.cpu_times()
        return (later.user + later.system) - (earlier.user + earlier.system)

    wait_for(lambda: work_of_half_a_second() < 0.02)


def test_a_file_whose_reading_never_ends_is_named_and_the_rest_is_read(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer: opening it waits for ever."""
    stuck = tmp_path / "stuck.gguf"
    os.mkfifo(stuck)
    monkeypatch.setattr(tasks, "SILENT_S", 3.0)
    found = tasks.inspect_models([stuck, tiny_target])
    assert "hang" in str(found[stuck])
    assert not isinstance(found[tiny_target], str)


def test_a_request_after_a_pause_is_not_called_silent(client: WorkerClient, load: LoadSettings) -> None:
    run = client.submit(load, Request((ChatMessage("user", QUESTION),), max_tokens=2))
    finished(run)
    assert run.silence == ""

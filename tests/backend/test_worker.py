"""The child process and its client: order, cancelling, death, reloading, odd inputs."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.core.paths import PROJECT
from app.core.settings import (
    ChatMessage,
    LoadSettings,
    Mode,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from app.worker import client as client_module
from app.worker.client import Run, WorkerClient
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

DEADLINE_S = 120.0
QUESTION = "Name three colours of the rainbow."
STORY = "Tell a long story about a lighthouse keeper and her cat."
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def asked(
    prompt: str = QUESTION,
    max_tokens: int = 12,
    mode: Mode = Mode.PLAIN,
    raw: bool = False,
    n_draft: int = 4,
    **sampling: Any,
) -> Request:
    return Request(
        (ChatMessage("user", prompt),),
        raw=raw,
        max_tokens=max_tokens,
        sampling=SamplingSettings(**sampling),
        speculation=SpeculationSettings(mode, n_draft),
    )


def until(run: Run, enough: Callable[[Sequence[Message]], Any]) -> list[Message]:
    """The messages up to the batch with which ``enough`` holds or the run ends."""
    deadline = time.monotonic() + DEADLINE_S
    got: list[Message] = []
    for batch in run.batches(0.1):
        got += batch
        if enough(got):
            break
        assert time.monotonic() < deadline, f"no end in sight after {got[-3:]}"
    return got


def messages_of(run: Run, before: Sequence[Message] = ()) -> list[Message]:
    """Every message, those already read among them."""
    if before and isinstance(before[-1], Finished | Failed):
        return list(before)
    return [*before, *until(run, lambda got: False)]


def finished(run: Run) -> Finished:
    last = messages_of(run)[-1]
    assert isinstance(last, Finished), last
    return last


def failed(run: Run) -> Failed:
    last = messages_of(run)[-1]
    assert isinstance(last, Failed), last
    return last


def of_kind(kind: type, messages: Sequence[Message]) -> list[Any]:
    return [message for message in messages if isinstance(message, kind)]


def has(kind: type, count: int = 1) -> Callable[[Sequence[Message]], bool]:
    return lambda messages: len(of_kind(kind, messages)) >= count


def loaded_roles(messages: Sequence[Message]) -> set[str]:
    return {message.role for message in of_kind(Loading, messages)}


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def client() -> Iterator[WorkerClient]:
    """One for all tests that leave it usable, which every test but those of closing must."""
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture
def own_client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def starter(starter_model: Path) -> LoadSettings:
    return LoadSettings(starter_model, n_ctx=1024, threads=1)


@pytest.fixture(scope="module")
def with_draft(starter: LoadSettings) -> LoadSettings:
    return dataclasses.replace(starter, draft=starter.target)


@pytest.fixture(scope="module")
def fresh_ids(starter: LoadSettings) -> dict[str, tuple[int, ...]]:
    """What a session that has answered nothing before answers, by prompt."""
    ids = {}
    for prompt, max_tokens in ((QUESTION, 12), (STORY, 48)):
        client = WorkerClient()
        ids[prompt] = finished(client.submit(starter, asked(prompt, max_tokens))).output_ids
        client.close()
    return ids


@pytest.fixture
def copy(starter_model: Path, tmp_path: Path) -> Path:
    """The starter model where a path is hard to read."""
    folder = tmp_path / "modèles d'été 模型"
    folder.mkdir()
    return shutil.copyfile(starter_model, folder / "Smol 模型 ü.gguf")


def is_unharmed(client: WorkerClient, load: LoadSettings, fresh_ids: dict[str, tuple[int, ...]]) -> bool:
    answer = finished(client.submit(load, asked()))
    return answer.finish_reason == "length" and answer.output_ids == fresh_ids[QUESTION]


# Order


@pytest.mark.parametrize("mode", list(Mode))
def test_messages_come_in_order(mode: Mode, with_draft: LoadSettings, client: WorkerClient) -> None:
    client.unload()
    load = with_draft if mode is Mode.DRAFT else dataclasses.replace(with_draft, draft=None)
    messages = messages_of(client.submit(load, asked(STORY, 16, mode)))
    kinds = [type(message) for message in messages]
    assert kinds == sorted(kinds, key=[Loading, Measuring, Started, Prefilling, RoundDone, Finished].index)
    assert kinds.count(Started) == kinds.count(Finished) == 1
    assert kinds.count(Measuring) <= (mode is not Mode.PLAIN)
    loading = [(message.role, message.fraction) for message in of_kind(Loading, messages)]
    assert {role for role, _ in loading} == ({"target", "draft"} if mode is Mode.DRAFT else {"target"})
    assert loading == sorted(loading, key=lambda pair: (pair[0] == "draft", pair[1]))
    assert all(0 <= fraction <= 1 for _, fraction in loading)
    assert all(message.name == load.target.name for message in of_kind(Loading, messages))
    (started,) = of_kind(Started, messages)
    models = 2 if mode is Mode.DRAFT else 1
    prefill = [(message.done, message.total) for message in of_kind(Prefilling, messages)]
    assert prefill == sorted(prefill)
    assert prefill[-1] == ((len(started.prompt_ids) - 1) * models,) * 2
    done = of_kind(RoundDone, messages)
    assert [message.round for message in done] == list(range(len(done)))
    assert [message.t for message in done] == sorted(message.t for message in done)
    assert done[-1].plain_tokens_per_s > 0
    last = messages[-1]
    assert isinstance(last, Finished)
    assert last.prompt_ids == started.prompt_ids
    tokens = [token for message in done for token in message.tokens if token.kind.is_output]
    assert tuple(token.id for token in tokens) == last.output_ids
    assert "".join(token.text for token in tokens) == last.text
    assert (last.finish_reason, last.stats.output_tokens, len(last.output_ids)) == ("length", 16, 16)


def test_auto_measures_at_a_load_and_tells_why_it_drafts_or_not(
    copy: Path, client: WorkerClient, own_client: WorkerClient
) -> None:
    load = LoadSettings(copy, copy, n_ctx=1024, threads=1)
    first = messages_of(client.submit(load, asked(STORY, 24, Mode.AUTO)))
    assert of_kind(Measuring, first) == [Measuring(copy.name)] * 2, "once as the target, once as the draft"
    done = of_kind(RoundDone, first)
    for message in done:
        assert message.choice.source in ("none", "lookup", "model", "both")
        drafted = {token.source.value for token in message.tokens if token.source}
        assert drafted <= {"none": set(), "both": {"lookup", "model"}}.get(
            message.choice.source, {message.choice.source}
        )
    plain = messages_of(client.submit(load, asked(STORY, 24)))
    assert {message.choice for message in of_kind(RoundDone, plain)} == {None}
    assert plain[-1].output_ids == first[-1].output_ids  # type: ignore[union-attr]
    # What was measured is known to the next request; another program measures it once more.
    for later, measured in ((client, 0), (own_client, 2)):
        again = messages_of(later.submit(load, asked(STORY, 24, Mode.AUTO)))
        assert len(of_kind(Measuring, again)) == measured
        assert again[-1].output_ids == first[-1].output_ids  # type: ignore[union-attr]


def test_cancelled_while_measuring(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    load = dataclasses.replace(starter, n_batch=128)  # measured anew, loaded another way
    run = client.submit(load, asked(mode=Mode.AUTO))
    before = until(run, has(Measuring))
    run.cancel()
    messages = messages_of(run, before)
    assert messages[-1] == finished_nothing()
    assert of_kind(Started, messages) == []
    assert is_unharmed(client, load, fresh_ids)
    again = messages_of(client.submit(load, asked(mode=Mode.AUTO)))
    assert of_kind(Measuring, again) == [Measuring(load.target.name)]
    assert again[-1].output_ids == fresh_ids[QUESTION]  # type: ignore[union-attr]


def test_two_threads_ask_at_once_and_the_second_waits(starter: LoadSettings, client: WorkerClient) -> None:
    finished(client.submit(starter, asked()))
    together = threading.Barrier(2)
    results: dict[str, list[Message]] = {}

    def ask(prompt: str) -> None:
        together.wait()
        results[prompt] = messages_of(client.submit(starter, asked(prompt, 24)))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in (QUESTION, STORY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    first, second = sorted(results.values(), key=lambda messages: isinstance(messages[0], Waiting))
    assert of_kind(Waiting, first) == []
    assert of_kind(Waiting, second) == [Waiting(1)]
    assert second[0] == Waiting(1)
    for prompt, messages in results.items():
        last = messages[-1]
        assert isinstance(last, Finished)
        assert last.output_ids == finished(client.submit(starter, asked(prompt, 24))).output_ids


def test_a_place_in_the_queue_is_told_when_it_changes(starter: LoadSettings, client: WorkerClient) -> None:
    long = client.submit(starter, asked(STORY, 400))
    long_so_far = until(long, has(Started))
    second, third, fourth = (client.submit(starter, asked()) for _ in range(3))
    third.cancel()
    long.cancel()
    told = [of_kind(Waiting, messages_of(run)) for run in (second, third, fourth)]
    assert told == [[Waiting(1)], [Waiting(2)], [Waiting(3), Waiting(2), Waiting(1)]]
    assert messages_of(long, long_so_far)[-1].finish_reason == "cancelled"  # type: ignore[union-attr]


# Cancelling


def test_cancelled_while_waiting(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    first = client.submit(starter, asked(STORY, 48))
    waiting = client.submit(starter, asked())
    waiting.cancel()
    assert messages_of(waiting)[1:] == [dataclasses.replace(finished_nothing(), finish_reason="cancelled")], (
        "told its place, then that it is over"
    )
    waiting.cancel()
    answer = finished(first)
    assert (answer.finish_reason, answer.output_ids) == ("length", fresh_ids[STORY])
    assert is_unharmed(client, starter, fresh_ids)


def finished_nothing() -> Finished:
    return client_module._NOTHING


def test_cancelled_before_the_child_is_up(
    starter: LoadSettings, own_client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = own_client.submit(starter, asked())
    run.cancel()
    assert finished(run) == finished_nothing()
    assert is_unharmed(own_client, starter, fresh_ids)


def test_cancelled_while_loading(
    starter: LoadSettings,
    coder_draft: Path,
    client: WorkerClient,
    fresh_ids: dict[str, tuple[int, ...]],
) -> None:
    run = client.submit(LoadSettings(coder_draft, n_ctx=256, threads=1), asked())
    before = until(run, has(Loading))
    run.cancel()
    messages = messages_of(run, before)
    assert messages[-1] == finished_nothing()
    assert of_kind(Started, messages) == []
    assert is_unharmed(client, starter, fresh_ids)


def test_cancelled_in_a_long_prefill(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    load = dataclasses.replace(starter, n_ctx=4096)
    run = client.submit(load, asked("The keeper counts the ships again. " * 280))
    before = until(run, has(Started))
    run.cancel()
    messages = messages_of(run, before)
    assert 1900 < len(of_kind(Started, messages)[0].prompt_ids) < 3000
    last = messages[-1]
    assert isinstance(last, Finished)
    assert (last.finish_reason, last.output_ids, last.text) == ("cancelled", (), "")
    assert of_kind(RoundDone, messages) == []
    assert is_unharmed(client, load, fresh_ids)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_prefill_broken_off_is_taken_up_again(
    mode: Mode, with_draft: LoadSettings, client: WorkerClient, own_client: WorkerClient
) -> None:
    load = dataclasses.replace(with_draft, n_batch=16)
    request = asked(f"Count them: {', '.join(map(str, range(24)))}.", 8, mode)
    run = client.submit(load, request)
    before = until(run, has(Prefilling))
    run.cancel()
    messages_of(run, before)
    messages = messages_of(client.submit(load, request))
    assert of_kind(Started, messages)[0].cached_tokens >= 16
    assert messages[-1].output_ids == finished(own_client.submit(load, request)).output_ids  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", list(Mode))
def test_cancelled_mid_answer(
    mode: Mode, with_draft: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = client.submit(with_draft, asked(STORY, 900, mode))
    before = until(run, has(RoundDone, 3))
    run.cancel()
    messages = messages_of(run, before)
    last = messages[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason == "cancelled"
    assert 3 <= len(last.output_ids) < 900
    known = min(len(last.output_ids), 48)
    assert last.output_ids[:known] == fresh_ids[STORY][:known]
    shown = [token for m in of_kind(RoundDone, messages) for token in m.tokens if token.kind.is_output]
    assert tuple(token.id for token in shown) == last.output_ids
    assert last.stats.output_tokens == len(last.output_ids)
    assert is_unharmed(client, with_draft, fresh_ids)
    again = finished(client.submit(with_draft, asked(STORY, 48, mode)))
    assert again.output_ids == fresh_ids[STORY]


def test_cancelling_one_run_never_cancels_the_next(starter: LoadSettings, client: WorkerClient) -> None:
    finished(client.submit(starter, asked()))
    for _ in range(15):
        first = client.submit(starter, asked(max_tokens=1))
        second = client.submit(starter, asked(max_tokens=2))
        over = threading.Event()

        def cancel_all_the_time(run: Run = first, over: threading.Event = over) -> None:
            while not over.is_set():
                run.cancel()

        canceller = threading.Thread(target=cancel_all_the_time)
        canceller.start()
        reasons = finished(first).finish_reason, finished(second).finish_reason
        over.set()
        canceller.join()
        assert reasons in {("cancelled", "length"), ("length", "length")}


def test_cancelling_a_run_that_is_over_does_nothing(starter: LoadSettings, client: WorkerClient) -> None:
    for _ in range(5):
        run = client.submit(starter, asked(max_tokens=1))
        assert finished(run).finish_reason == "length"
        run.cancel()
        after = client.submit(starter, asked(max_tokens=2))
        run.cancel()
        assert finished(after).finish_reason == "length"


# Death


@posix_only
@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGSEGV"])
def test_the_child_dies_mid_answer(
    name: str, starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = client.submit(starter, asked(STORY, 900))
    before = until(run, has(RoundDone, 3))
    pid = client.child_pid
    assert pid is not None
    os.kill(pid, getattr(signal, name))
    messages = messages_of(run, before)
    last = messages[-1]
    assert isinstance(last, Failed)
    assert last.child_died
    assert name in last.what
    assert "the model process died" in last.what
    assert "llama" in last.log_tail
    if name != "SIGKILL":
        assert "Fatal Python error" in last.log_tail
    so_far = "".join(token.text for m in of_kind(RoundDone, messages) for token in m.tokens)
    assert so_far.strip()
    assert is_gone(pid)
    assert is_unharmed(client, starter, fresh_ids)
    assert client.child_pid not in (None, pid)


@posix_only
def test_the_child_dies_while_idle(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    finished(client.submit(starter, asked()))
    pid = client.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: client.child_pid is None)
    assert is_unharmed(client, starter, fresh_ids)


@posix_only
def test_the_child_dies_and_those_who_wait_are_served(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = client.submit(starter, asked(STORY, 900))
    waiting = client.submit(starter, asked())
    before = until(run, has(RoundDone))
    os.kill(client.child_pid or 0, signal.SIGKILL)
    assert isinstance(messages_of(run, before)[-1], Failed)
    assert finished(waiting).output_ids == fresh_ids[QUESTION]


@pytest.mark.skipif(
    sys.platform != "linux", reason="what a mapped file does that shrinks is the system's affair"
)
def test_the_file_shrinks_while_it_is_used(
    copy: Path, starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = client.submit(dataclasses.replace(starter, target=copy), asked(STORY, 900))
    before = until(run, has(RoundDone))
    os.truncate(copy, 1000)
    last = messages_of(run, before)[-1]
    assert isinstance(last, Failed)
    assert "a model file was cut short" in last.what
    assert is_unharmed(client, starter, fresh_ids)


@posix_only
def test_the_log_holds_the_last_lines_alone(starter: LoadSettings, client: WorkerClient) -> None:
    client.unload()
    finished(client.submit(starter, asked(max_tokens=1)))
    lines = client.log_tail().splitlines()
    assert 10 < len(lines) <= 200
    assert any("Smollm2" in line for line in lines), "what the model is"
    assert any("n_ctx" in line for line in lines), "what the context is"


PARENT = """
import sys, time
from pathlib import Path
from app.core.settings import ChatMessage, LoadSettings, Request
from app.worker.client import WorkerClient
from app.worker.messages import RoundDone

if __name__ == "__main__":
    client = WorkerClient()
    request = Request((ChatMessage("user", "Tell a long story."),), max_tokens=3000)
    run = client.submit(LoadSettings(Path(sys.argv[1]), threads=1), request)
    for batch in run.batches(0.1):
        if any(isinstance(message, RoundDone) for message in batch):
            print(client.child_pid, flush=True)
            time.sleep(1000)
"""


@posix_only
def test_the_child_ends_when_its_parent_is_killed(starter_model: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, script, starter_model], env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    wait_for(lambda: is_gone(pid))


def test_a_child_that_cannot_start_fails_the_run_alone(
    starter: LoadSettings,
    own_client: WorkerClient,
    fresh_ids: dict[str, tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **named: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(client_module._spawn, "Process", refuse)
        failure = failed(own_client.submit(starter, asked()))
    assert failure.child_died
    assert "Cannot allocate memory" in failure.what
    assert is_unharmed(own_client, starter, fresh_ids)


def test_a_llama_cpp_that_does_not_load_is_named_and_prints_nothing(
    starter: LoadSettings,
    own_client: WorkerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise RuntimeError('no libllama.so here')")
    monkeypatch.syspath_prepend(tmp_path)
    failure = failed(own_client.submit(starter, asked()))
    assert failure.child_died
    assert "no libllama.so here" in failure.what
    assert "Traceback" in failure.log_tail
    assert capfd.readouterr() == ("", "")


# Ending


def test_closing_ends_every_run_and_the_child(starter: LoadSettings, own_client: WorkerClient) -> None:
    run = own_client.submit(starter, asked(STORY, 900))
    waiting = own_client.submit(starter, asked())
    before = until(run, has(RoundDone))
    pid = own_client.child_pid
    assert pid is not None
    own_client.close()
    assert is_gone(pid)
    assert own_client.child_pid is None
    assert messages_of(run, before)[-1].finish_reason == "cancelled"  # type: ignore[union-attr]
    assert finished(waiting).finish_reason == "cancelled"
    own_client.close()
    assert finished(own_client.submit(starter, asked())) == finished_nothing()
    assert own_client.log_tail() == ""
    own_client.unload()


def test_closing_while_the_child_starts(starter: LoadSettings, own_client: WorkerClient) -> None:
    run = own_client.submit(starter, asked())
    own_client.close()
    assert finished(run).finish_reason == "cancelled"
    assert own_client.child_pid is None
    wait_for(lambda: not own_client._dispatcher.is_alive())


@posix_only
def test_closing_ends_a_child_that_does_not_listen(starter: LoadSettings, own_client: WorkerClient) -> None:
    run = own_client.submit(starter, asked(STORY, 900))
    before = until(run, has(RoundDone))
    pid = own_client.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    own_client.close()
    assert is_gone(pid)
    assert messages_of(run, before)[-1].finish_reason == "cancelled"  # type: ignore[union-attr]


def test_closing_a_client_that_was_never_used() -> None:
    client = WorkerClient()
    assert client.child_pid is None
    client.close()


def test_unloading_ends_the_child_and_the_next_run_loads_again(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    run = client.submit(starter, asked(STORY, 48))
    before = until(run, has(RoundDone))
    pid = client.child_pid
    assert pid is not None
    client.unload()
    assert messages_of(run, before)[-1].output_ids == fresh_ids[STORY], "the run was let end"  # type: ignore[union-attr]
    assert is_gone(pid)
    assert client.child_pid is None
    client.unload()
    messages = messages_of(client.submit(starter, asked()))
    assert loaded_roles(messages) == {"target"}
    assert messages[-1].output_ids == fresh_ids[QUESTION]  # type: ignore[union-attr]


# Reloading


def test_only_what_changed_is_loaded_again(
    starter: LoadSettings, with_draft: LoadSettings, client: WorkerClient
) -> None:
    client.unload()
    change = dataclasses.replace
    other = change(with_draft, n_ctx=512)
    steps = [
        (starter, {"target"}),
        (starter, set()),
        (with_draft, {"draft"}),
        (change(with_draft, draft_cache_type_k="q8_0"), {"draft"}),
        (with_draft, {"draft"}),
        (starter, set()),
        (with_draft, {"draft"}),
        (other, {"target", "draft"}),
        (other, set()),
        (change(other, cache_type_k="q8_0"), {"target"}),
        (change(other, n_batch=64), {"target", "draft"}),
    ]
    for place, (load, roles) in enumerate(steps):
        mode = Mode.DRAFT if load.draft else Mode.PLAIN
        messages = messages_of(client.submit(load, asked(mode=mode, max_tokens=2)))
        assert (place, loaded_roles(messages)) == (place, roles)
        assert isinstance(messages[-1], Finished)


def test_mode_draft_without_a_draft_is_wrong_usage(starter: LoadSettings, client: WorkerClient) -> None:
    failure = failed(client.submit(starter, asked(mode=Mode.DRAFT)))
    assert failure.usage
    assert "draft" in failure.what
    assert finished(client.submit(starter, asked(max_tokens=2))).finish_reason == "length"


def test_a_draft_of_another_family_is_refused_and_the_target_stays(
    starter: LoadSettings, with_draft: LoadSettings, coder_draft: Path, client: WorkerClient
) -> None:
    finished(client.submit(with_draft, asked(mode=Mode.DRAFT, max_tokens=2)))
    other = dataclasses.replace(with_draft, target=coder_draft, n_ctx=256)
    failure = failed(client.submit(other, asked(mode=Mode.DRAFT, max_tokens=2)))
    assert not failure.child_died
    assert f"{with_draft.target.name} cannot draft for {coder_draft.name}" in failure.what
    assert "lookup" in failure.remedy
    messages = messages_of(client.submit(dataclasses.replace(other, draft=None), asked(max_tokens=2)))
    assert loaded_roles(messages) == set()
    assert isinstance(messages[-1], Finished)
    assert isinstance(messages_of(client.submit(with_draft, asked(mode=Mode.DRAFT)))[-1], Finished)


def test_a_path_with_spaces_and_letters_of_all_kinds(
    copy: Path, starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    load = dataclasses.replace(starter, target=copy, draft=copy)
    messages = messages_of(client.submit(load, asked(mode=Mode.DRAFT)))
    assert {message.name for message in of_kind(Loading, messages)} == {copy.name}
    assert messages[-1].output_ids == fresh_ids[QUESTION]  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [0, 1000, 1_500_000, 60_000_000])
def test_a_draft_cut_short_is_named_and_plain_goes_on(
    kept: int, copy: Path, starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    finished(client.submit(starter, asked()))
    with copy.open("r+b") as file:
        file.truncate(kept)
    failure = failed(client.submit(dataclasses.replace(starter, draft=copy), asked(mode=Mode.DRAFT)))
    assert copy.name in failure.what
    assert not failure.child_died
    messages = messages_of(client.submit(starter, asked()))
    assert loaded_roles(messages) == set()
    assert messages[-1].output_ids == fresh_ids[QUESTION]  # type: ignore[union-attr]


def test_a_file_replaced_on_disk_is_loaded_anew(
    copy: Path, starter: LoadSettings, client: WorkerClient
) -> None:
    load = dataclasses.replace(starter, draft=copy)
    finished(client.submit(load, asked(mode=Mode.DRAFT, max_tokens=2)))
    newer = copy.with_suffix(".part")
    shutil.copyfile(copy, newer)
    newer.replace(copy)
    assert loaded_roles(messages_of(client.submit(load, asked(mode=Mode.DRAFT, max_tokens=2)))) == {"draft"}
    with copy.open("r+b") as file:
        file.truncate(50_000_000)
    failure = failed(client.submit(load, asked(mode=Mode.DRAFT, max_tokens=2)))
    assert copy.name in failure.what
    copy.unlink()
    failure = failed(client.submit(load, asked(mode=Mode.DRAFT, max_tokens=2)))
    assert str(copy) in failure.what
    assert isinstance(messages_of(client.submit(starter, asked(max_tokens=2)))[-1], Finished)


def test_a_target_that_is_no_model_is_refused(
    tmp_path: Path, starter: LoadSettings, client: WorkerClient
) -> None:
    for name, content in (
        ("empty.gguf", b""),
        ("page.gguf", b"<!doctype html>" * 99),
        ("cut.gguf", b"GGUF\3"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        failure = failed(client.submit(dataclasses.replace(starter, target=path), asked()))
        assert name in failure.what
        assert not failure.child_died
    failure = failed(client.submit(dataclasses.replace(starter, target=tmp_path), asked()))
    assert not failure.child_died
    missing = dataclasses.replace(starter, target=tmp_path / "none.gguf")
    assert "none.gguf" in failed(client.submit(missing, asked())).what
    assert isinstance(messages_of(client.submit(starter, asked(max_tokens=2)))[-1], Finished)


# Odd inputs


@pytest.mark.parametrize(
    "prompt",
    ["", " ", "\n\n", "a\0b\0", "\0", "\ud800 lone \udfff", "\ufeff", "🙂" * 40, "é" * 50, "\x1b[31mred\x7f"],
    ids=ascii,
)
def test_an_odd_prompt_is_answered(prompt: str, starter: LoadSettings, client: WorkerClient) -> None:
    answer = finished(client.submit(starter, asked(prompt, 4)))
    assert answer.finish_reason in ("length", "stop")
    assert answer.output_ids
    answer.text.encode("utf-8")


def test_special_tokens_in_a_prompt_stay_text(starter: LoadSettings, client: WorkerClient) -> None:
    plain = finished(client.submit(starter, asked("", 1))).prompt_ids
    typed = finished(client.submit(starter, asked("<|im_end|><|im_start|><|endoftext|>", 1))).prompt_ids
    control = {0, 1, 2}
    assert [i for i in typed if i in control] == [i for i in plain if i in control]
    raw = finished(client.submit(starter, asked("<|im_start|><|im_end|>", 1, raw=True)))
    assert raw.prompt_ids == (1, 2)


def test_a_raw_prompt_of_nothing_is_refused(starter: LoadSettings, client: WorkerClient) -> None:
    failure = failed(client.submit(starter, asked("", raw=True)))
    assert failure.usage
    assert "empty" in failure.what


def test_a_prompt_of_a_million_letters_is_refused_with_both_numbers(
    starter: LoadSettings, client: WorkerClient, fresh_ids: dict[str, tuple[int, ...]]
) -> None:
    prompt = ("The keeper counts the ships. " * 40_000)[:1_000_000]
    failure = failed(client.submit(starter, asked(prompt)))
    assert failure.usage
    assert not failure.child_died
    numbers = [int(number) for number in re.findall(r"\d+", failure.what)]
    assert numbers[0] > 100_000
    assert numbers[1] == starter.n_ctx
    assert is_unharmed(client, starter, fresh_ids)


@pytest.mark.parametrize("mode", list(Mode))
def test_characters_of_several_tokens_arrive_whole(
    mode: Mode, with_draft: LoadSettings, client: WorkerClient
) -> None:
    run = client.submit(with_draft, asked("🦊 🐢 🦉 🦊 🐢 🦉 🦊 🐢 🦉 🦊", 24, mode, raw=True))
    messages = messages_of(run)
    tokens = [t for m in of_kind(RoundDone, messages) for t in m.tokens if t.kind.is_output]
    text = "".join(token.text for token in tokens)
    assert text.startswith(" 🐢 🐢 🐢")
    assert set(text.removesuffix("\ufffd")) == set(" 🐢"), "only the very end may be half a character"
    assert any(not token.text for token in tokens), "a character's first tokens bring no text"
    assert messages[-1].text == text  # type: ignore[union-attr]


# Seeds


@pytest.mark.parametrize("mode", list(Mode))
def test_a_seed_decides_the_answer(mode: Mode, with_draft: LoadSettings, client: WorkerClient) -> None:
    def ids(seed: int) -> tuple[int, ...]:
        request = asked(STORY, 20, mode, temperature=1.0, seed=seed)
        return finished(client.submit(with_draft, request)).output_ids

    first = ids(42)
    assert ids(43) != first
    assert ids(42) == first
    cut = client.submit(with_draft, asked(STORY, 900, mode, temperature=1.0, seed=7))
    before = until(cut, has(RoundDone))
    cut.cancel()
    messages_of(cut, before)
    assert ids(42) == first

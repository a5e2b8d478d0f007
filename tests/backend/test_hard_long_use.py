"""Long use: neither the child nor its parent grows with the answers it gives and the models it loads."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import WriteTiny
from test_worker import asked, finished, is_gone, wait_for
from tiny_gguf import TinyModel, byte_level

from app.core.settings import LoadSettings, Mode
from app.worker.client import WorkerClient

GROWTH = 1.05
POOLS = 4_000_000  # bytes that the allocator's pools still take in a child of 40 MB; 300 loads add no more


@dataclasses.dataclass(frozen=True)
class Size:
    memory: int
    handles: int
    threads: int


def size_of(process: psutil.Process) -> Size:
    handles = process.num_handles() if psutil.WINDOWS else process.num_fds()
    return Size(process.memory_full_info().uss, handles, process.num_threads())


def grows_no_more(process: psutil.Process, work: Callable[[], None], times: int) -> None:
    """A quarter of the work fills every cache and pool; the rest takes nothing more."""
    for _ in range(times // 4):
        work()
    early = size_of(process)
    for _ in range(times - times // 4):
        work()
    late = size_of(process)
    assert late.memory <= max(early.memory * GROWTH, early.memory + POOLS), (early, late)
    assert (late.handles, late.threads) == (early.handles, early.threads)


@pytest.fixture
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture
def load(tiny_target: Path, tiny_draft: Path) -> LoadSettings:
    return LoadSettings(tiny_target, tiny_draft, n_ctx=512, threads=1)


def child_of(client: WorkerClient, load: LoadSettings) -> psutil.Process:
    finished(client.submit(load, asked("Hi", 1)))
    return psutil.Process(client.child_pid)


def test_five_hundred_answers_in_one_child(client: WorkerClient, load: LoadSettings) -> None:
    child = child_of(client, load)
    modes = list(Mode)
    number = 0

    def answer() -> None:
        nonlocal number
        number += 1
        mode = modes[number % len(modes)]
        finished(client.submit(load, asked(f"Question {number}: " + "and so on " * (number % 20), 4, mode)))

    grows_no_more(child, answer, 500)
    assert client.child_pid == child.pid
    assert len(client.log_tail()) < 100_000


def test_fifty_loads_in_one_child(client: WorkerClient, load: LoadSettings, tiny: WriteTiny) -> None:
    child = child_of(client, load)
    targets = [load.target, tiny(TinyModel(seed=5, n_layer=4))]
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        other = dataclasses.replace(load, target=targets[number % 2])
        finished(client.submit(other, asked("Hi", 2, Mode.DRAFT)))

    grows_no_more(child, change, 50)


def test_unloading_gives_everything_back(client: WorkerClient, load: LoadSettings) -> None:
    me = psutil.Process()
    finished(client.submit(load, asked("Hi", 1)))
    client.unload()
    handles, threads = size_of(me).handles, threading.active_count()
    for _ in range(4):
        child = child_of(client, load)
        client.unload()
        assert is_gone(child.pid)
    wait_for(lambda: threading.active_count() <= threads)
    assert size_of(me).handles == handles


def test_no_table_of_logits_grows_with_the_context(client: WorkerClient, tiny: WriteTiny) -> None:
    """152,000 tokens of vocabulary times 32,768 places would be 20 GB."""
    words = byte_level()
    target = tiny(TinyModel(n_embd=32, vocabulary=words.padded(151_936 - len(words.tokens))))
    used = []
    for n_ctx in (4096, 32768):
        load = LoadSettings(target, n_ctx=n_ctx, threads=1)
        answer = finished(client.submit(load, asked("x" * 3000, 8, Mode.LOOKUP)))
        assert len(answer.output_ids) == 8
        used.append(size_of(psutil.Process(client.child_pid)).memory)
    assert used[1] - used[0] < 100_000_000, used

"""The list of downloads: two at a time, each by itself, and what a killed program left goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.core.errors import HeadstartError, UsageError
from app.core.paths import PROJECT
from app.library import cache, downloads, tokens
from app.library.downloads import DownloadQueue, DownloadState
from app.library.wanted import models_of
from tests.hub_server import HubServer

DEADLINE_S = 90
BLOCK = 1 << 16  # what a download writes at once
SIZE = 20 * BLOCK
NAMES = ("one", "two", "three", "four")
CONTENT = {name: b"GGUF" + random.Random(name).randbytes(SIZE - 4) for name in NAMES}


@pytest.fixture
def hub(hub: HubServer) -> HubServer:
    """A hub with four repositories of one file each."""
    for name in NAMES:
        hub.add(f"Owner/{name}-GGUF", {f"{name}.gguf": CONTENT[name]})
    return hub


@pytest.fixture
def queue(folder: Path, hub: HubServer) -> Iterator[DownloadQueue]:
    """A queue that is closed after the test."""
    queue = DownloadQueue()
    yield queue
    hub.go_on.set()
    queue.close()


def wait_for(condition: Callable[[], bool], what: str = "it") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def state(queue: DownloadQueue, id: str) -> DownloadState:
    (found,) = [state for state in queue.states() if state.id == id]
    return found


def wait_until(queue: DownloadQueue, ids: list[str], *states: str) -> None:
    def reached() -> bool:
        return all(state(queue, id).state in states for id in ids)

    wait_for(reached, f"{states} of {queue.states()}")


def place(folder: Path, name: str) -> Path:
    return folder / "Owner" / f"{name}-GGUF" / f"{name}.gguf"


def part(folder: Path, name: str) -> Path:
    return place(folder, name).with_suffix(".gguf.part")


def has(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def test_a_download_says_how_far_it_is_and_ends_whole(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    hub.bytes_per_s = 4 * SIZE
    id = queue.add("Owner/one-GGUF:one.gguf")
    seen: list[DownloadState] = []

    def done() -> bool:
        seen.append(state(queue, id))
        return seen[-1].state == "done"

    wait_for(done)
    assert place(folder, "one").read_bytes() == CONTENT["one"]
    last = seen[-1]
    assert (last.path, last.done, last.total, last.error) == (place(folder, "one"), SIZE, SIZE, None)
    assert last.title == "Owner/one-GGUF: one"
    moving = [s for s in seen if s.rate and 0 < s.done < SIZE]
    assert moving
    assert all(s.remaining_s is not None and s.total == SIZE for s in moving)
    assert [s.done for s in moving] == sorted(s.done for s in moving)
    assert {s.step for s in moving} <= {
        "fetching from Owner/one-GGUF",
        "checking the SHA-256 of one.gguf.part",
    }
    assert cache.recall(place(folder, "one"), "sha256") == hub.repositories["Owner/one-GGUF"].sha256(
        "one.gguf"
    )


def test_two_run_at_a_time_and_one_is_cancelled_without_touching_the_other(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    hub.stall_at = stalled = 5 * BLOCK
    one, two, three = (queue.add(f"Owner/{name}-GGUF") for name in ("one", "two", "three"))
    wait_for(lambda: has(part(folder, "one"), stalled) and has(part(folder, "two"), stalled))
    assert [s.state for s in queue.states()] == ["running", "running", "waiting"]
    queue.cancel(one)
    wait_until(queue, [one], "cancelled")
    wait_for(lambda: has(part(folder, "three"), stalled))
    assert (state(queue, two).state, state(queue, three).state) == ("running", "running")
    assert has(part(folder, "one"), stalled)
    assert state(queue, one).done == stalled
    hub.go_on.set()
    wait_until(queue, [two, three], "done")
    assert place(folder, "two").read_bytes() == CONTENT["two"]
    assert not place(folder, "one").exists()

    queue.retry(one)
    wait_until(queue, [one], "done")
    assert place(folder, "one").read_bytes() == CONTENT["one"]
    assert hub.downloads()[-1] == f"bytes={stalled}-"


def test_one_that_waits_is_cancelled_at_once_and_what_is_forgotten_leaves_nothing(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    hub.stall_at = stalled = 5 * BLOCK
    one, two, three = (queue.add(f"Owner/{name}-GGUF") for name in ("one", "two", "three"))
    wait_for(lambda: has(part(folder, "one"), stalled))
    queue.cancel(three)
    assert state(queue, three).state == "cancelled"
    queue.forget(one)  # it runs: nothing happens
    assert state(queue, one).state == "running"
    queue.cancel(one)
    wait_until(queue, [one], "cancelled")
    queue.forget(one)
    queue.forget(three)
    queue.cancel("unknown")
    queue.retry("unknown")
    queue.forget("unknown")
    assert [s.id for s in queue.states()] == [two]
    assert not part(folder, "one").exists()
    hub.go_on.set()
    wait_until(queue, [two], "done")
    queue.forget(two)
    assert queue.states() == []
    assert place(folder, "two").read_bytes() == CONTENT["two"]


def test_what_is_on_the_list_is_not_put_there_twice(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    hub.stall_at = BLOCK
    id = queue.add("Owner/one-GGUF:one.gguf")
    assert queue.add("https://huggingface.co/Owner/one-GGUF/blob/main/one.gguf") == id
    wait_for(lambda: has(part(folder, "one"), BLOCK))
    assert queue.add("Owner/one-GGUF:one.gguf") == id
    hub.go_on.set()
    wait_until(queue, [id], "done")
    assert queue.add("Owner/one-GGUF:one.gguf") == id  # looks once more
    wait_until(queue, [id], "done")
    assert len(queue.states()) == len(hub.downloads()) == 1


def test_a_presets_models_are_downloads_of_their_own(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    ids = queue.add_models(models_of("smollm2-1.7b"))
    wait_until(queue, ids, "failed")
    assert [s.title for s in queue.states()] == [
        "bartowski/SmolLM2-1.7B-Instruct-GGUF: SmolLM2-1.7B-Instruct-Q4_K_M",
        "unsloth/SmolLM2-135M-Instruct-GGUF: SmolLM2-135M-Instruct-Q8_0",
    ]
    assert "no public repository bartowski/SmolLM2" in (queue.states()[0].error or "")
    assert queue.add("smollm2-1.7b") == ids[0]
    with pytest.raises(UsageError):
        queue.add("https://example.com/x.gguf")
    with pytest.raises(HeadstartError, match="no preset or model"):
        queue.add("no-such-preset")


def test_a_failure_names_its_cause_and_is_tried_again(
    folder: Path, hub: HubServer, queue: DownloadQueue
) -> None:
    repository = hub.repositories["Owner/one-GGUF"]
    repository.files["one.gguf"], right = b"?" * SIZE, CONTENT["one"]
    repository.hashes["one.gguf"] = "1" * 64
    missing = queue.add("Owner/two-GGUF:Two.gguf")
    wrong = queue.add("Owner/one-GGUF")
    wait_until(queue, [missing, wrong], "failed")
    assert state(queue, missing).error == (
        "Owner/two-GGUF has no file Two.gguf; letter case counts: it is two.gguf"
    )
    assert "wrong SHA-256, so it was removed; repeat it: it starts over" in (state(queue, wrong).error or "")
    assert not place(folder, "one").exists()
    assert not part(folder, "one").exists()
    repository.files["one.gguf"] = right
    del repository.hashes["one.gguf"]
    queue.forget(wrong)
    again = queue.add("Owner/one-GGUF")
    wait_until(queue, [again], "done")
    assert place(folder, "one").read_bytes() == right


def test_a_cut_connection_goes_on_where_it_broke(folder: Path, hub: HubServer, queue: DownloadQueue) -> None:
    hub.cut_at = SIZE * 6 // 10
    id = queue.add("Owner/one-GGUF")
    wait_until(queue, [id], "done")
    assert place(folder, "one").read_bytes() == CONTENT["one"]
    assert hub.downloads() == [None, f"bytes={SIZE * 6 // 10 // BLOCK * BLOCK}-"]


def test_what_the_others_will_take_of_the_disk_counts_too(
    folder: Path, hub: HubServer, queue: DownloadQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000_000 + SIZE * 3 // 2))
    hub.stall_at = 0
    one = queue.add("Owner/one-GGUF")
    wait_for(lambda: len(hub.downloads()) == 1)
    two = queue.add("Owner/two-GGUF")
    wait_until(queue, [two], "failed")
    assert "two needs 103 MB of disk in " in (state(queue, two).error or "")
    assert "and 102 MB are free; free 1 MB first" in (state(queue, two).error or "")
    hub.go_on.set()
    wait_until(queue, [one], "done")
    queue.retry(two)
    wait_until(queue, [two], "done")


def test_a_split_model_is_one_download(folder: Path, hub: HubServer, queue: DownloadQueue) -> None:
    files = {f"big-Q8_0-0000{n}-of-00003.gguf": CONTENT[name] for n, name in enumerate(NAMES[:3], 1)}
    hub.add("Owner/big-GGUF", files)
    hub.stall_at = BLOCK
    id = queue.add("Owner/big-GGUF:Q8_0")
    folder = folder / "Owner" / "big-GGUF"
    wait_for(lambda: has(folder / "big-Q8_0-00001-of-00003.gguf.part", BLOCK))
    shown = state(queue, id)
    assert (shown.title, shown.total) == ("Owner/big-GGUF: big-Q8_0", 3 * SIZE)
    hub.go_on.set()
    wait_until(queue, [id], "done")
    assert state(queue, id).path == folder / "big-Q8_0-00001-of-00003.gguf"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_closed_queue_leaves_no_process_and_the_next_one_goes_on(folder: Path, hub: HubServer) -> None:
    hub.stall_at = stalled = 7 * BLOCK
    before = psutil.Process().children()
    queue = DownloadQueue()
    one = queue.add("Owner/one-GGUF")
    failed = queue.add("Owner/none-GGUF")
    wait_for(lambda: has(part(folder, "one"), stalled))
    wait_until(queue, [failed], "failed")
    children = [child for child in psutil.Process().children() if child not in before]
    assert children
    queue.close()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    hub.repositories["Owner/one-GGUF"].commit = "b" * 40  # something was pushed meanwhile
    hub.go_on.set()
    later = DownloadQueue()
    try:
        assert [(s.id, s.state) for s in later.states()][1] == (failed, "failed")
        assert "no public repository Owner/none-GGUF" in (state(later, failed).error or "")
        wait_until(later, [one], "done", "failed")
        # The commit that it began with is gone from this hub, and that is what is said.
        assert "has no commit or branch aaaa" in (state(later, one).error or "")
        hub.repositories["Owner/one-GGUF"].commit = "a" * 40
        later.retry(one)
        wait_until(later, [one], "done")
        assert place(folder, "one").read_bytes() == CONTENT["one"]
        assert hub.downloads()[-1] == f"bytes={stalled}-"
    finally:
        later.close()
    last = DownloadQueue()
    assert [s.state for s in last.states()] == ["failed"]  # what is done is on the shelf
    last.close()


def test_a_second_program_leaves_the_list_to_the_first(
    folder: Path, hub: HubServer, queue: DownloadQueue, tmp_path: Path
) -> None:
    hub.stall_at = BLOCK
    queue.add("Owner/one-GGUF")
    wait_for(lambda: has(part(folder, "one"), BLOCK))
    second = DownloadQueue()
    assert second.states() == []
    id = second.add("Owner/one-GGUF")
    wait_until(second, [id], "failed")
    assert "one.gguf is being fetched already" in (state(second, id).error or "")
    second.close()
    listed = json.loads((tmp_path / "home" / downloads.FILE).read_text("utf-8"))
    assert [entry["state"] for entry in listed] == ["running"]


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '[{"id": "x"}]', '[{"id": "x", "state": "waiting", "files": []}]']
)
def test_a_list_that_cannot_be_read_is_an_empty_one(folder: Path, tmp_path: Path, content: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / downloads.FILE).write_text(content, "utf-8")
    queue = DownloadQueue()
    assert queue.states() == []
    queue.close()


def test_the_token_is_in_no_list_and_no_error(
    folder: Path, hub: HubServer, queue: DownloadQueue, tmp_path: Path
) -> None:
    hub.tokens = {"hf_another"}
    tokens.save_token("hf_verysecret")
    ids = [queue.add("Owner/one-GGUF"), queue.add("Owner/two-GGUF:two.gguf")]
    wait_until(queue, ids, "failed")
    assert "rejects your access token" in (queue.states()[0].error or "")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"verysecret" in path.read_bytes()] == ["hub-token"]
    assert "verysecret" not in repr(queue.states())


PROGRAM = """
import sys, time
from pathlib import Path
from app.library import catalogue, fetch
from app.library.downloads import DownloadQueue
for module in (catalogue, fetch):
    module.models_dir = lambda: Path(sys.argv[1])
queue = DownloadQueue()
for wanted in sys.argv[2:]:
    queue.add(wanted)
while any(state.state in ("waiting", "running") for state in queue.states()):
    time.sleep(0.05)
print([state.state for state in queue.states()])
queue.close()
"""


def test_a_program_that_is_killed_in_mid_download_goes_on_when_it_is_started_again(
    folder: Path, hub: HubServer
) -> None:
    hub.stall_at = stalled = 9 * BLOCK
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    wanted = [f"Owner/{name}-GGUF" for name in ("one", "two", "three")]
    program = subprocess.Popen([*command, *wanted], cwd=PROJECT)
    wait_for(lambda: has(part(folder, "one"), stalled) and has(part(folder, "two"), stalled))
    children = psutil.Process(program.pid).children()
    assert len(children) == 2
    program.kill()
    program.wait(DEADLINE_S)
    for child in children:
        wait_for(lambda child=child: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)  # type: ignore[misc]
    hub.go_on.set()
    again = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ
    )
    assert (again.stdout, again.stderr) == ("['done', 'done', 'done']\n", "")
    for name in ("one", "two", "three"):
        assert place(folder, name).read_bytes() == CONTENT[name]
    assert hub.downloads().count(f"bytes={stalled}-") == 2

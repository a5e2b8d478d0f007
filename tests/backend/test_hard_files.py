"""Broken and hostile model files, through the inspection and through loading: each has its reason or its
facts soon, none costs more than its own request."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from test_worker import asked, finished, messages_of

from app.core.settings import LoadSettings
from app.worker import tasks
from app.worker.client import WorkerClient
from app.worker.messages import Failed, Finished

HANG_S = 10.0
N_RANDOM = 48
EXTREMES = (0, 2**31 - 1)


@pytest.fixture(scope="module")
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def content(tiny_target: Path) -> bytes:
    return tiny_target.read_bytes()


def each_ends_well(
    files: dict[Path, bytes], client: WorkerClient, tiny_target: Path, may_work: Callable[[Path], bool]
) -> list[str]:
    """Inspect and load every file, in time; a good one answers afterwards. The failures of loading."""
    for path, data in files.items():
        path.write_bytes(data)
    heard = time.monotonic()
    waits: dict[Path, float] = {}

    def note(path: Path, result: object) -> None:
        nonlocal heard
        waits[path] = time.monotonic() - heard
        heard = time.monotonic()

    found = tasks.inspect_models(list(files), note)
    assert found.keys() == files.keys()
    reasons = []
    for path in files:
        began = time.monotonic()
        last = messages_of(client.submit(LoadSettings(path, n_ctx=64, threads=1), asked("Hi", 1)))[-1]
        waits[path] += time.monotonic() - began
        assert isinstance(last, Finished | Failed)
        if isinstance(last, Failed):
            assert path.name in last.what, last
            reasons.append(f"{path.name}: {last.what}")
        else:
            assert may_work(path), path.name
    slow = {path.name: wait for path, wait in waits.items() if wait > HANG_S}
    assert not slow
    good = LoadSettings(tiny_target, n_ctx=64, threads=1)
    assert finished(client.submit(good, asked("Hi", 1))).finish_reason == "length"
    return reasons


def test_cut_at_twenty_places(
    client: WorkerClient, content: bytes, tiny_target: Path, tmp_path: Path
) -> None:
    cuts = [0, 1, 3, 4, 7, 8, 23, 24, *(len(content) * part // 12 for part in range(1, 12)), len(content) - 1]
    files = {tmp_path / f"cut-{cut}.gguf": content[:cut] for cut in cuts}
    assert len(files) == 20
    reasons = each_ends_well(files, client, tiny_target, lambda path: False)
    assert not [reason for reason in reasons if "model process died" in reason]


def test_what_only_looks_like_a_model(
    client: WorkerClient, content: bytes, tiny_target: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    head = content[:4]
    files = {
        "empty": b"",
        "magic alone": head,
        "another magic": b"GGML" + content[4:],
        "magic backwards": head[::-1] + content[4:],
        "version 0": head + bytes(4) + content[8:],
        "version 2 billion": head + b"\xff\xff\xff\x7f" + content[8:],
        "random": rng.randbytes(100_000),
        "random after the magic": head + rng.randbytes(100_000),
        "zeros": bytes(100_000),
        "a page": b"<!doctype html>" * 1000,
        "huge number of tensors": content[:8] + b"\xff" * 7 + b"\x7f" + content[16:],
        "huge number of keys": content[:16] + b"\xff" * 7 + b"\x7f" + content[24:],
        "huge length of the first key": content[:24] + b"\xff" * 7 + b"\x7f" + content[32:],
        "negative number of tensors": content[:8] + b"\xff" * 8 + content[16:],
    }
    written = {tmp_path / f"{name}.gguf": data for name, data in files.items()}
    reasons = each_ends_well(written, client, tiny_target, lambda path: False)
    assert not [reason for reason in reasons if "model process died" in reason]


def test_numbers_of_the_header_at_their_extremes(
    client: WorkerClient, content: bytes, tiny_target: Path, tmp_path: Path
) -> None:
    """Dimensions, counts of heads and layers, special ids, scalings: as hostile as they can be."""
    files = {}
    for name, field in gguf.GGUFReader(tiny_target).fields.items():
        if len(field.types) != 1 or field.types[0] not in (
            gguf.GGUFValueType.UINT32,
            gguf.GGUFValueType.FLOAT32,
        ):
            continue
        place = field.offset + sum(part.nbytes for part in field.parts[:-1])
        for value in EXTREMES:
            raw = np.uint32(value).tobytes()
            files[tmp_path / f"{name}={value}.gguf"] = content[:place] + raw + content[place + 4 :]
    assert len(files) > 20
    assert each_ends_well(files, client, tiny_target, lambda path: True)


def test_random_bytes_anywhere_in_the_header(
    client: WorkerClient, content: bytes, tiny_target: Path, tmp_path: Path
) -> None:
    rng = random.Random(1)
    size = gguf.GGUFReader(tiny_target).data_offset
    files = {}
    for number in range(N_RANDOM):
        data = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(8, min(size, 600) if rng.random() < 0.5 else size)
            data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        files[tmp_path / f"fuzz-{number}.gguf"] = bytes(data)
    assert each_ends_well(files, client, tiny_target, lambda path: True)

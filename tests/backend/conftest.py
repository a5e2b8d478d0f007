"""Tiny models for every backend test, and sessions over them; see tiny_gguf and session."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session import Session
from tiny_gguf import TinyModel

from app.library import catalogue, fetch, folders
from tests.hub_server import HubServer

WriteTiny = Callable[[TinyModel], Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> WriteTiny:
    """``tiny(TinyModel(seed=1))``: the path of such a file, written when first asked for."""
    folder = tmp_path_factory.mktemp("modèles à moi 語")  # spaces and non-ASCII letters on every path
    written: dict[TinyModel, Path] = {}

    def write(model: TinyModel) -> Path:
        if model not in written:
            name = f"{model.architecture} {len(written)}.gguf"
            written[model] = model.write(folder / name)
        return written[model]

    return write


@pytest.fixture(scope="session")
def tiny_target(tiny: WriteTiny) -> Path:
    """A llama of 268 tokens with ChatML and F32 weights."""
    return tiny(TinyModel())


@pytest.fixture(scope="session")
def tiny_draft(tiny: WriteTiny) -> Path:
    """A draft for tiny_target that is right about every other time."""
    return tiny(TinyModel(likeness=0.995))


OpenSession = Callable[..., Session]


@pytest.fixture
def open_session() -> Iterator[OpenSession]:
    """``open_session(target, draft, n_ctx=…)``: a Session, closed after the test."""
    opened: list[Session] = []

    def open_(*arguments: object, **settings: object) -> Session:
        opened.append(Session(*arguments, **settings))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for session in opened:
        session.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder, not made yet; nothing of the person's own set-up shows through."""
    folder = tmp_path / "Modelle für alle"
    for module in (catalogue, fetch, folders):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    for name in [name for name in os.environ if name.startswith(("HF_", "PIP_", "HUGGING_FACE"))]:
        monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with nothing in it yet, which HF_ENDPOINT names."""
    with HubServer() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def no_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    return address

"""Tiny models for every backend test, and sessions over them; see tiny_gguf and session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session import Session
from tiny_gguf import TinyModel

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

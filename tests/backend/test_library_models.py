"""The library on real files, with the helper processes that read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.paths import PROJECT
from app.library import catalogue, commands, folders, pairs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_model: Path) -> Path:
    """A models folder with the starter model and a file cut short."""
    folder = tmp_path / "modèles à moi"
    folder.mkdir()
    for module in (catalogue, commands, folders):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    shutil.copyfile(starter_model, folder / "starter.gguf")
    with starter_model.open("rb") as source:
        (folder / "short.gguf").write_bytes(source.read(100_000))
    return folder


def test_real_facts_and_a_file_cut_short(folder: Path) -> None:
    short, starter = catalogue.list_models()
    assert (short.name, short.kind) == ("short", "broken")
    assert short.problem
    assert starter.is_usable
    assert starter.facts is not None
    assert (starter.facts.architecture, starter.facts.n_vocab, starter.facts.n_ctx_train) == (
        "llama",
        49152,
        8192,
    )
    assert starter.facts.quantization == "Q4_1"
    assert catalogue.list_models() == [short, starter]


def test_the_starter_fits_itself_and_not_the_coder(folder: Path, coder_target: Path) -> None:
    starter = catalogue.resolve("starter")
    (candidate,) = pairs.rank_drafts(starter)
    assert (candidate.file.path, candidate.fits, candidate.note) == (starter, True, "the target itself")
    (candidate,) = pairs.rank_drafts(coder_target)
    assert not candidate.fits
    assert "151936" in candidate.reasons[0]
    assert "49152" in candidate.reasons[0]
    assert candidate.note == "another architecture, 11x smaller"


def test_the_library_is_light_to_import() -> None:
    heavy = ("huggingface_hub", "llama_cpp", "numpy", "httpx2", "filelock")
    code = f"import sys, app.library.commands; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

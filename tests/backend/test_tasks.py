"""One-shot jobs in processes of their own: results, errors, crashes, cancelling."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from conftest import WriteTiny
from tiny_gguf import TinyModel

from app.core.errors import HeadstartError
from app.core.models import ModelFacts, PairCheck
from app.core.paths import PROJECT
from app.core.pins import pinned
from app.worker import tasks

SMOL = ModelFacts(
    kind="model",
    architecture="llama",
    name="Smollm2 135M 8k Lc100K Mix1 Ep2",
    parameters=134_515_008,
    quantization="Q4_1",
    n_ctx_train=8192,
    n_vocab=49152,
    vocab_type="BPE",
    n_layer=30,
    has_chat_template=True,
    licence="apache-2.0",
)


@pytest.fixture
def broken_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise RuntimeError('no libllama.so here')")
    monkeypatch.syspath_prepend(tmp_path)


def no_child_is_left() -> bool:
    return not [child for child in multiprocessing.active_children() if child.name.startswith("SpawnProcess")]


def test_each_file_is_described_or_refused(
    starter_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "modèles d'été" / "模型 ü.gguf"
    whole.parent.mkdir()
    whole.symlink_to(starter_model)
    page, cut, missing = (tmp_path / name for name in ("page.gguf", "cut.gguf", "missing.gguf"))
    page.write_text("<!doctype html>")
    cut.write_bytes(starter_model.read_bytes()[:100_000])
    paths = [page, starter_model, cut, whole, missing]
    told: list[tuple[Path, ModelFacts | str]] = []
    results = tasks.inspect_models(paths, lambda path, result: told.append((path, result)))
    assert results[starter_model] == results[whole] == SMOL
    for path in (page, cut, missing):
        reason = results[path]
        assert isinstance(reason, str)
        assert path.name in reason
    assert told == [(path, results[path]) for path in paths]
    assert capfd.readouterr() == ("", "")
    assert tasks.inspect_models([]) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="a FIFO")
def test_a_file_on_which_the_reader_dies_is_named_and_the_rest_is_read(
    starter_model: Path, tmp_path: Path
) -> None:
    endless = tmp_path / "endless.gguf"
    os.mkfifo(endless)  # whoever opens it waits for a writer that never comes
    page = tmp_path / "page.gguf"
    page.write_text("<!doctype html>")

    def kill_the_reader(path: Path, result: ModelFacts | str) -> None:
        if path == starter_model:
            for child in multiprocessing.active_children():
                child.kill()

    results = tasks.inspect_models([starter_model, endless, page], kill_the_reader)
    assert results[starter_model] == SMOL
    assert results[endless] == "the file makes llama.cpp's reader crash or hang"
    assert "page.gguf" in str(results[page])


def test_a_llama_cpp_that_does_not_load_is_no_fault_of_the_files(
    broken_llama_cpp: None, starter_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for call in (
        lambda: tasks.inspect_models([starter_model]),
        lambda: tasks.check_drafts(starter_model, [starter_model]),
        tasks.llama_cpp_facts,
    ):
        with pytest.raises(HeadstartError, match=r"no libllama\.so here") as failure:
            call()
        assert "doctor" in failure.value.remedy
    assert capfd.readouterr() == ("", "")


def test_drafts_are_checked_against_a_target(
    starter_model: Path, coder_target: Path, coder_draft: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.gguf"
    checks = tasks.check_drafts(coder_target, [coder_draft, starter_model, missing, coder_target])
    assert list(checks) == [coder_draft, starter_model, missing, coder_target]
    assert checks[coder_draft] == checks[coder_target] == PairCheck(True)
    assert not checks[starter_model].fits
    assert "49152" in " ".join(checks[starter_model].reasons)
    assert not checks[missing].fits
    assert "missing.gguf" in checks[missing].reasons[0]
    assert tasks.check_pair(starter_model, starter_model) == PairCheck(True)


def test_a_target_that_cannot_be_read_is_an_error(starter_model: Path, tmp_path: Path) -> None:
    with pytest.raises(HeadstartError, match=r"missing\.gguf"):
        tasks.check_pair(tmp_path / "missing.gguf", starter_model)


def test_the_build_in_use_is_the_pinned_one_and_sees_this_processor() -> None:
    facts = tasks.llama_cpp_facts()
    assert f"llama-cpp-python=={facts.version}" in pinned((PROJECT / "pyproject.toml").read_text("utf-8"))
    processors = [device for device in facts.devices if device.kind == "cpu"]
    assert processors
    assert processors[0].memory_total >= processors[0].memory_free > 0
    assert "CPU" in facts.features


def test_a_pair_with_an_encoder_names_the_file_at_fault(tiny: WriteTiny, starter_model: Path) -> None:
    encoder = tiny(TinyModel(architecture="bert"))
    reason = "cannot be used: it is an encoder and does not write text"
    assert tasks.check_pair(encoder, starter_model) == PairCheck(False, (f"the target {reason}",))
    assert tasks.check_pair(starter_model, encoder) == PairCheck(False, (f"the draft {reason}",))

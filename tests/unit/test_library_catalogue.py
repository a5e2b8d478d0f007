"""Which files in the models folder are models, what they are called, and which name means which."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import HeadstartError
from app.core.models import ModelFacts, PairCheck
from app.core.settings import SpeculationSettings
from app.library import cache, catalogue, folders
from app.library.presets import HubSource, Preset, PresetModel
from app.worker import tasks

GGUF = b"GGUF" + bytes(60)


def facts(kind: str = "model") -> ModelFacts:
    return ModelFacts(kind, "llama", "A model", 1000, "F16", 2048, 300, "BPE", 2, True, "mit")


class Helper:
    """Stands for the helper process: knows some files, and remembers what it was asked."""

    def __init__(self) -> None:
        self.known: dict[str, ModelFacts | str] = {}
        self.inspected: list[str] = []
        self.misfits: dict[str, str] = {}
        self.checked: list[str] = []

    def inspect_models(
        self, paths: Sequence[Path], on_result: Callable[[Path, ModelFacts | str], None]
    ) -> dict[Path, ModelFacts | str]:
        results: dict[Path, ModelFacts | str] = {}
        for path in paths:
            self.inspected.append(path.name)
            results[path] = self.known.get(path.name, facts())
            on_result(path, results[path])
        return results

    def check_drafts(self, target: Path, drafts: Sequence[Path]) -> dict[Path, PairCheck]:
        self.checked += [draft.name for draft in drafts]
        return {
            draft: PairCheck(False, (self.misfits[draft.name],))
            if draft.name in self.misfits
            else PairCheck(True)
            for draft in drafts
        }


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Helper:
    helper = Helper()
    monkeypatch.setattr(tasks, "inspect_models", helper.inspect_models)
    monkeypatch.setattr(tasks, "check_drafts", helper.check_drafts)
    return helper


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: Helper) -> Path:
    """An empty models folder, and a user-data folder that is not made yet."""
    folder = tmp_path / "mis modelos ñ"
    folder.mkdir()
    for module in (catalogue, folders):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return folder


def add(folder: Path, name: str, content: bytes = GGUF) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def listed() -> dict[str, str]:
    return {file.name: file.kind for file in catalogue.list_models()}


def test_no_folder_and_an_empty_folder_have_no_models(folder: Path) -> None:
    assert catalogue.list_models() == []
    folder.rmdir()
    assert catalogue.list_models() == []


def test_files_are_listed_as_what_they_are(folder: Path, helper: Helper) -> None:
    add(folder, "README.md", b"# models")
    add(folder, "good.gguf")
    add(folder, "UPPER.GGUF")
    add(folder, "deep/er/inside.gguf")
    add(folder, "empty.gguf", b"")
    add(folder, "page.gguf", b"\n<!DOCTYPE html><title>404</title>")
    add(folder, "zeros.gguf", bytes(1000))
    add(folder, "other.gguf", b"PK\x03\x04")
    add(folder, "half.gguf.part", GGUF)
    add(folder, "adapter.gguf")
    add(folder, "bert.gguf")
    add(folder, "crash.gguf")
    helper.known = {
        "adapter.gguf": facts("adapter"),
        "bert.gguf": facts("encoder"),
        "crash.gguf": "it crashes the reader",
    }
    assert listed() == {
        "adapter": "adapter",
        "bert": "encoder",
        "crash": "broken",
        "empty": "broken",
        "good": "model",
        "half.gguf.part": "unfinished",
        "inside": "model",
        "other": "broken",
        "page": "broken",
        "UPPER": "model",
        "zeros": "broken",
    }
    problems = {file.name: file.problem for file in catalogue.list_models() if file.problem}
    assert problems["crash"] == "it crashes the reader"
    assert problems["empty"] == "the file is empty"
    assert "web page" in str(problems["page"])
    assert "zeros" in str(problems["zeros"])
    assert "`models get half`" in str(problems["half.gguf.part"])
    assert [file.name for file in catalogue.list_models() if file.is_usable] == ["good", "inside", "UPPER"]


def test_a_split_model_is_one_with_the_size_of_all(folder: Path) -> None:
    first = add(folder, "big-00001-of-00002.gguf")
    add(folder, "big-00002-of-00002.gguf", GGUF + b"more")
    (file,) = catalogue.list_models()
    assert (file.name, file.kind, file.path) == ("big", "model", first)
    assert file.size_bytes == 64 + 68
    assert catalogue.resolve("big") == first


def test_a_split_model_with_a_part_missing_is_incomplete(folder: Path) -> None:
    add(folder, "big-00002-of-00003.gguf")
    add(folder, "big-00003-of-00003.gguf")
    (file,) = catalogue.list_models()
    assert (file.name, file.kind, file.facts) == ("big", "incomplete", None)
    assert file.problem == "1 of its 3 files are missing, the first is big-00001-of-00003.gguf"
    with pytest.raises(HeadstartError, match=r"'big' can't be loaded: 1 of its 3 files are missing"):
        catalogue.resolve("big")


def test_a_number_beyond_the_split_is_just_a_name(folder: Path) -> None:
    add(folder, "odd-00004-of-00003.gguf")
    assert listed() == {"odd-00004-of-00003": "model"}


def test_names_that_clash_get_their_folder_or_their_suffix(folder: Path) -> None:
    add(folder, "one.gguf")
    add(folder, "a/same.gguf")
    add(folder, "b/SAME.gguf")
    add(folder, "c/two.gguf", GGUF + b"2")
    add(folder, "c/two-00001-of-00001.gguf")
    assert list(listed()) == ["a/same", "b/SAME", "c/two-00001-of-00001.gguf", "c/two.gguf", "one"]
    assert catalogue.resolve("A/Same") == folder / "a" / "same.gguf"
    assert catalogue.resolve("c/two.gguf") == folder / "c" / "two.gguf"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_that_lead_out_or_nowhere_are_left_alone(folder: Path, tmp_path: Path) -> None:
    outside = add(tmp_path, "outside/secret.gguf")
    (folder / "out.gguf").symlink_to(outside)
    (folder / "out").symlink_to(outside.parent)
    (folder / "dangling.gguf").symlink_to(folder / "gone.gguf")
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    (folder / "folder.gguf").mkdir()
    add(folder, "here.gguf")
    assert listed() == {"here": "model"}


def test_facts_are_read_once_and_again_when_the_file_changes(folder: Path, helper: Helper) -> None:
    path = add(folder, "a.gguf")
    add(folder, "b.gguf")
    steps: list[tuple[int, int]] = []
    catalogue.list_models(lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]
    assert listed() == {"a": "model", "b": "model"}
    assert sorted(helper.inspected) == ["a.gguf", "b.gguf"]
    path.write_bytes(GGUF + b"longer")
    helper.known["a.gguf"] = facts("recurrent")
    assert listed()["a"] == "recurrent"
    assert helper.inspected[2:] == ["a.gguf"]
    os.utime(path, ns=(1, 1))
    listed()
    assert helper.inspected[3:] == ["a.gguf"]


def test_a_failure_to_read_is_remembered_for_a_while(
    folder: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add(folder, "a.gguf")
    helper.known["a.gguf"] = "it crashes the reader"
    assert listed() == listed() == {"a": "broken"}
    assert helper.inspected == ["a.gguf"]
    helper.known["a.gguf"] = facts("model")
    path.write_bytes(GGUF + b"another file")
    assert listed() == {"a": "model"}
    path.write_bytes(GGUF)
    helper.known["a.gguf"] = "no memory is left"
    assert listed() == {"a": "broken"}
    helper.known["a.gguf"] = facts("model")
    monkeypatch.setattr(catalogue, "FAILURE_LASTS_S", 0)
    assert listed() == {"a": "model"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 1}', "null", "\x00"])
def test_a_broken_cache_is_ignored_and_written_anew(folder: Path, helper: Helper, content: str) -> None:
    path = add(folder, "a.gguf")
    file = cache.user_data_dir() / "facts.json"
    file.parent.mkdir()
    file.write_text(content.replace("x", str(path)), "utf-8")
    assert listed() == {"a": "model"}
    assert listed() == {"a": "model"}
    assert helper.inspected == ["a.gguf"]
    assert [name.name for name in file.parent.iterdir()] == ["facts.json"]


def test_facts_of_another_version_are_read_anew(folder: Path, helper: Helper) -> None:
    path = add(folder, "a.gguf")
    listed()
    file = cache.user_data_dir() / "facts.json"
    entries = json.loads(file.read_text("utf-8"))
    for key, value in entries[str(path)].items():
        if isinstance(value, dict):
            entries[str(path)][key] = {"kind": "model", "colour": "blue"}
    file.write_text(json.dumps(entries), "utf-8")
    assert listed() == {"a": "model"}
    assert helper.inspected == ["a.gguf", "a.gguf"]


def test_a_cache_that_cannot_be_written_is_no_failure(folder: Path, helper: Helper) -> None:
    add(folder, "a.gguf")
    cache.user_data_dir().write_text("a file where the folder should be", "utf-8")
    assert listed() == {"a": "model"}


def test_files_that_are_gone_are_forgotten(folder: Path) -> None:
    gone, stays = add(folder, "gone.gguf"), add(folder, "stays.gguf")
    cache.remember(gone, "colour", "red")
    gone.unlink()
    cache.remember(stays, "colour", "blue")
    assert cache.recall(stays, "colour") == "blue"
    assert list(json.loads((cache.user_data_dir() / "facts.json").read_text("utf-8"))) == [str(stays)]


def test_a_model_is_found_by_path_and_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = add(folder, "Modell eins.Q4_1.gguf")
    elsewhere = add(tmp_path, "my files/ü model.gguf")
    for text in (
        "Modell eins.Q4_1",
        "modell EINS.q4_1",
        "Modell eins.Q4_1.gguf",
        f"{folder.name}/{inside.name}",
    ):
        assert catalogue.resolve(text) == inside
    assert catalogue.resolve("my files/ü model.gguf") == elsewhere
    assert catalogue.resolve(str(elsewhere)) == elsewhere
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert catalogue.resolve("~/my files/ü model.gguf") == elsewhere


def test_a_folder_of_the_same_name_does_not_hide_a_model(folder: Path, tmp_path: Path) -> None:
    path = add(folder, "llama.gguf")
    (tmp_path / "llama").mkdir()
    assert catalogue.resolve("llama") == path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tiny-model-q4", "there is no file and no model 'tiny-model-q4'; did you mean tiny-model-q8"),
        ("TINY", "did you mean tiny-model-q8"),
        ("nothing like it", "there is no file and no model 'nothing like it'; `models list` shows the names"),
        ("SmolLM2-135M-Instruct.Q4_1", "is not here yet; `models get SmolLM2-135M-Instruct.Q4_1` fetches it"),
        ("", "there is no file and no model ''"),
        ("a\0b", "there is no file and no model"),
        ("x" * 5000, "there is no file and no model"),
        ("~nobody-of-that-name/x", "there is no file and no model"),
        (".", "'.' is a folder"),
        ("page.gguf", "'page.gguf' can't be loaded: it is a web page"),
        ("empty.bin", "'empty.bin' can't be loaded: the file is empty"),
        ("text.txt", "'text.txt' can't be loaded: it is not a GGUF file"),
        ("tiny.gguf.part", "'tiny.gguf.part' can't be loaded: an unfinished download"),
    ],
)
def test_what_is_no_model_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, text: str, error: str
) -> None:
    add(folder, "tiny-model-q8.gguf")
    add(tmp_path, "page.gguf", b"<html>")
    add(tmp_path, "empty.bin", b"")
    add(tmp_path, "text.txt", b"hello")
    add(tmp_path, "tiny.gguf.part")
    with pytest.raises(HeadstartError) as raised:
        catalogue.resolve(text)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "geteuid"), reason="no such rights there")
def test_a_file_that_may_not_be_read_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add(folder, "locked.gguf")
    open_ = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return open_(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    (file,) = catalogue.scan()
    assert (file.path, file.problem) == (path, "it can't be read (Permission denied)")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text there")
def test_a_name_that_is_no_text_is_broken_and_can_be_shown(folder: Path) -> None:
    add(folder, "fine.gguf")
    path = add(folder, os.fsdecode(b"latin-\xe9.gguf"))
    file = next(file for file in catalogue.scan() if file.path == path)
    assert (file.name, file.kind) == ("latin-?", "broken")
    assert file.problem
    assert "rename it" in file.problem
    assert catalogue.as_text(str(path)) == f"{folder}/latin-?.gguf"


def test_what_a_preset_lacks_is_told_by_name_and_size(folder: Path) -> None:
    target, draft = (
        PresetModel(name, len(GGUF), "0" * 64, "MIT", HubSource("a/b", "0" * 40, f"{name}.gguf"))
        for name in ("target", "draft")
    )
    preset = Preset("pair", "A pair", "For tests.", target, draft, 2048, SpeculationSettings())
    assert catalogue.missing(preset) == [target, draft]
    add(folder, "target.gguf")
    add(folder, "draft.gguf", GGUF + b"another file")
    assert catalogue.missing(preset) == [draft]

"""The ``models`` commands: what they print, their exit status, and what they leave on the disk."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from app.core.errors import HeadstartError, UsageError
from app.core.models import ModelFacts, PairCheck
from app.library import catalogue, commands, fetch, folders, removing
from app.library.fetch import Progress
from app.library.presets import PresetModel
from app.worker import tasks

FACTS = ModelFacts("model", "llama", "A model", 135_000_000, "Q4_1", 8192, 49152, "BPE", 30, True, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with one good file and one bad, and a helper process that reads only the good."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "tiny.Q4_1.gguf").write_bytes(b"GGUF" + bytes(96))
    (folder / "page.gguf").write_bytes(b"<html>")
    for module in (catalogue, commands, folders, removing):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def inspect_models(
        paths: Sequence[Path], on_result: Callable[[Path, ModelFacts | str], None] | None = None
    ) -> dict[Path, ModelFacts | str]:
        for path in paths:
            if on_result:
                on_result(path, FACTS)
        return dict.fromkeys(paths, FACTS)

    monkeypatch.setattr(tasks, "inspect_models", inspect_models)
    return folder


@pytest.fixture
def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that were asked for; none is really fetched."""
    names: list[str] = []

    def get(
        model: PresetModel,
        on_progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
        reserved: int,
    ) -> Path:
        names.append(model.name)
        on_progress(Progress("fetching", 0, model.size))
        on_progress(Progress("fetching", model.size // 2, model.size, rate=model.size / 100))
        on_progress(Progress("fetching", model.size, model.size, rate=1e6))
        return folder / model.file_name

    monkeypatch.setattr(fetch, "get", get)
    return names


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    commands.add_parser(parser.add_subparsers())
    return commands.run(parser.parse_args(["models", *arguments]))


def test_list_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "page",
            "path": str(folder / "page.gguf"),
            "size_bytes": 6,
            "architecture": None,
            "parameters": None,
            "quantization": None,
            "context": None,
            "vocabulary": None,
            "kind": "broken",
            "source": "models",
            "sha256": None,
        },
        {
            "name": "tiny.Q4_1",
            "path": str(folder / "tiny.Q4_1.gguf"),
            "size_bytes": 100,
            "architecture": "llama",
            "parameters": 135_000_000,
            "quantization": "Q4_1",
            "context": 8192,
            "vocabulary": 49152,
            "kind": "model",
            "source": "models",
            "sha256": None,
        },
    ]


def test_list_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    out = capsys.readouterr().out
    assert "tiny.Q4_1  Q4_1  135 M" in out
    assert "broken: it is a web page" in out
    assert "coder (1.61 GB): Writes code" in out
    shutil.rmtree(folder)
    assert run("list") == 0
    assert f"no model files in {folder} yet" in capsys.readouterr().out
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.skipif(os.name == "nt", reason="no such file names there")
def test_a_file_name_cannot_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "red \x1b[31m\nname.gguf").write_bytes(b"GGUF" + bytes(96))
    assert run("list") == 0
    assert "red \ufffd[31m name" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("coder", ["qwen2.5-coder-1.5b-instruct-q4_k_m", "qwen2.5-coder-0.5b-instruct-q4_k_m"]),
        ("coder-lookup", ["qwen2.5-coder-1.5b-instruct-q4_k_m"]),
        ("starter", ["SmolLM2-135M-Instruct.Q4_1"]),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m", ["qwen2.5-coder-0.5b-instruct-q4_k_m"]),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", ["SmolLM2-135M-Instruct.Q4_1"]),
    ],
)
def test_get_a_preset_or_a_model(
    folder: Path, fetched: list[str], capsys: pytest.CaptureFixture[str], name: str, models: list[str]
) -> None:
    assert run("get", name) == 0
    assert fetched == models
    captured = capsys.readouterr()
    assert captured.out.split("\n")[:-1] == [str(folder / f"{model}.gguf") for model in models]
    assert "fetching: 50% of " in captured.err
    assert "50 s left\n" in captured.err


@pytest.mark.parametrize(("ram_gb", "count"), [(16, 2), (4.5, 1)])
def test_get_without_a_name_takes_the_best_for_this_machine(
    fetched: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ram_gb: float,
    count: int,
) -> None:
    memory = psutil.virtual_memory()._replace(total=int(ram_gb * 1e9))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert run("get") == 0
    assert len(fetched) == count
    assert "suits this machine best: Qwen2.5-Coder 1.5B" in capsys.readouterr().err


def test_get_without_a_name_on_a_machine_too_small(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(total=256_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(
        HeadstartError, match=r"fit 256 MB of memory; name one to try it: coder, coder-lookup, starter$"
    ):
        run("get")
    assert fetched == []


def test_get_what_nobody_offers(fetched: list[str]) -> None:
    with pytest.raises(
        HeadstartError, match=r"no preset or model 'codr' to fetch; did you mean coder or coder-lookup or "
    ):
        run("get", "codr")
    assert fetched == []


def test_get_looks_for_room_for_all_files_before_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    monkeypatch.setattr(fetch, "get", lambda *arguments: reserved.append(arguments[3]) or folder)
    assert run("get", "coder") == 0
    assert reserved == [491_400_064, 0]


def test_interrupting_get_says_that_it_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "get", get)
    assert run("get", "starter") == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"


class Terminal(io.StringIO):
    """A person at a keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "goes"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("", False)])
def test_remove_asks(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    goes: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert run("remove", "tiny.Q4_1") == (0 if goes else 1)
    captured = capsys.readouterr()
    assert "remove tiny.Q4_1.gguf (0 MB)? [y/N]" in captured.err
    assert captured.out == ("removed tiny.Q4_1.gguf, 0 MB are free again\n" if goes else "")
    assert (folder / "tiny.Q4_1.gguf").exists() != goes


def test_remove_without_a_terminal_needs_yes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match=r"whether to remove page\.gguf; add --yes"):
        run("remove", "page")
    assert (folder / "page.gguf").exists()
    assert run("remove", "page", "--yes") == 0
    assert not (folder / "page.gguf").exists()


def test_scan_adds_a_folder_lists_it_and_forgets_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more models"
    more.mkdir()
    assert run("scan", "more models") == 0
    assert capsys.readouterr().out == f"no model files in {more} yet\n"
    (more / "added.gguf").write_bytes(b"GGUF" + bytes(96))
    assert run("scan", str(more)) == 0
    captured = capsys.readouterr()
    assert "added  Q4_1  135 M       0 MB  8192     added" in captured.out
    assert "tiny" not in captured.out
    assert "reading new files: 100%" in captured.err
    assert run("scan") == 0
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "folder",
        str(folder),
        str(more),
    ]
    assert run("list", "--json") == 0
    sources = {file["name"]: file["source"] for file in json.loads(capsys.readouterr().out)}
    assert sources == {"added": "added", "page": "models", "tiny.Q4_1": "models"}
    assert run("scan", str(more), "--forget") == 0
    assert folders.added_folders() == []
    assert (more / "added.gguf").exists()
    with pytest.raises(UsageError, match="--forget needs a folder"):
        run("scan", "--forget")
    with pytest.raises(HeadstartError, match=r"can't look for models in .*nothing: "):
        run("scan", "nothing")


@pytest.mark.parametrize("reasons", [(), ("the vocabulary sizes differ", "token 0 differs")])
def test_check(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reasons: tuple[str, ...],
) -> None:
    asked: list[Path] = []

    def check_pair(target: Path, draft: Path) -> PairCheck:
        asked.extend((target, draft))
        return PairCheck(not reasons, reasons)

    monkeypatch.setattr(tasks, "check_pair", check_pair)
    status = 1 if reasons else 0
    assert run("check", "tiny.Q4_1", "models/tiny.Q4_1.gguf", "--json") == status
    assert json.loads(capsys.readouterr().out) == {"fits": not reasons, "reasons": list(reasons)}
    assert asked == [folder / "tiny.Q4_1.gguf"] * 2
    assert run("check", "tiny.Q4_1", "tiny.Q4_1") == status
    out = capsys.readouterr().out
    assert ("does not fit" in out) == bool(reasons)
    assert all(reason in out for reason in reasons)
    (folder / "larger.gguf").write_bytes(b"GGUF" + bytes(3_000_000))
    assert run("check", "tiny.Q4_1", "larger", "--json") == 1
    larger = json.loads(capsys.readouterr().out)
    assert larger == {
        "fits": False,
        "reasons": [*reasons, "it is larger than the target, 3 MB against 0 MB"],
    }

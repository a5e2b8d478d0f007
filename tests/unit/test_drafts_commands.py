"""``models make-draft`` and ``models requantize``: what they print, their exit status, what they leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.__main__ import main
from app.core.copies import CopyPlan, ModelCopy
from app.core.errors import HeadstartError
from app.core.models import ModelFacts
from app.drafts import search
from app.drafts.bench import Measured
from app.drafts.trials import News, Result, Trial
from app.library import catalogue, making
from app.worker import tasks

FACTS = ModelFacts("model", "llama", "A model", 135_000_000, "Q4_1", 8192, 49152, "BPE", 30, True, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with a target, and a quantiser that writes its type."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "tiny.Q8_0.gguf").write_bytes(b"GGUF" + bytes(96))
    monkeypatch.setattr(making, "models_dir", lambda: folder)
    monkeypatch.setattr(catalogue, "resolve", lambda text: folder / f"{text}.gguf")
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tasks, "inspect_models", lambda paths: dict.fromkeys(paths, FACTS))
    monkeypatch.setattr(tasks, "plan_copy", lambda source, copy: CopyPlan(2, 60_000_000, 55, 100))
    monkeypatch.setattr(tasks, "write_copy", writing(b"whole "))
    return folder


def writing(result: bytes | BaseException) -> Callable[..., None]:
    """A stand-in for the quantiser: writes something, tells of it, then ends as it should or does not."""

    def write_copy(
        source: Path, destination: Path, copy: ModelCopy, on_tensor: Callable[[int], None], _: object
    ) -> None:
        on_tensor(1)
        destination.write_bytes(b"half")
        on_tensor(2)
        if isinstance(result, BaseException):
            raise result
        destination.write_bytes(result + str(copy.file_type).encode())

    return write_copy


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("options", "file", "said"),
    [
        ([], "tiny-draft-q4_k_m.gguf", "Q4_K_M"),
        (["--type", "q2_k"], "tiny-draft-q2_k.gguf", "Q2_K"),
        (["--skip-layers", "2"], "tiny-draft-q4_k_m-cut2.gguf", "Q4_K_M without layers 14-15"),
        (["--skip-layers", "9-11,3", "--name", "é mine"], "é mine.gguf", "without layers 3,9-11"),
    ],
)
def test_a_draft_is_written_beside_and_renamed(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], file: str, said: str
) -> None:
    assert main(["models", "make-draft", "tiny.Q8_0", *options]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder / file}\n"
    assert (folder / file).read_bytes().startswith(b"whole ")
    assert f"{said}, about 60 MB, 0.55 times the target's cost a token" in captured.err
    assert f"writing {file}: 50%" in captured.err
    assert names(folder) == sorted([file, "tiny.Q8_0.gguf"])
    assert main(["models", "make-draft", "tiny.Q8_0", *options]) == 1
    assert "exists already; remove it, or choose another name" in capsys.readouterr().err


@pytest.mark.parametrize("output", [None, "my folder/é.gguf"])
def test_requantize(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--output", output] if output else []
    assert main(["models", "requantize", "tiny.Q8_0", "--type", "f16", *options]) == 0
    path = tmp_path / output if output else folder / "tiny-f16.gguf"
    assert path.read_bytes() == b"whole F16"
    captured = capsys.readouterr()
    assert captured.out == f"{path}\n"
    assert "cost" not in captured.err


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (HeadstartError("the quantiser failed"), 1, "error: the quantiser failed\n"),
        (OSError(28, "full"), 1, "full; choose another place\n"),
        (KeyboardInterrupt(), 130, "stopped; nothing was written\n"),
    ],
)
def test_an_end_before_the_end_leaves_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(tasks, "write_copy", writing(failure))
    assert main(["models", "make-draft", "tiny.Q8_0"]) == status
    assert capsys.readouterr().err.endswith(said)
    assert names(folder) == ["tiny.Q8_0.gguf"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make-draft", "tiny.Q8_0", "--type", "IQ2_XS"], "IQ2_XS can't be made"),
        (["make-draft", "tiny.Q8_0", "--type", "Q9"], "type 'Q9' is unknown"),
        (["make-draft", "tiny.Q8_0", "--skip-layers", "0-3"], "not the first or the last"),
        (["make-draft", "tiny.Q8_0", "--name", "a/b"], "'a/b' is no name for a file"),
        (["make-draft", "tiny.Q8_0", "--output", "out"], "must end in .gguf"),
        (["make-draft", "tiny.Q8_0", "--minutes", "3"], "add --search"),
        (["make-draft", "tiny.Q8_0", "--search", "--type", "Q4_0"], "leave out --type"),
        (["make-draft", "tiny.Q8_0", "--search", "--minutes", "0"], "must lie above 0"),
        (["requantize", "tiny.Q8_0", "--type", "F17"], "type 'F17' is unknown"),
        (["requantize", "tiny.Q8_0"], "--type"),
    ],
)
def test_wrong_usage_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["models", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert said in error
    assert names(folder) == ["tiny.Q8_0.gguf"]


class TestSearch:
    def searching(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, result: Result | BaseException
    ) -> list[tuple[object, ...]]:
        asked: list[tuple[object, ...]] = []

        def search_(
            target: Path, minutes: float, name: object, output: object, on_news: Callable[[News], None]
        ) -> Result:
            asked.append((target, minutes, name, output))
            on_news(News("measuring Q4_K_M", 1, 4, ()))
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(search, "search", search_)
        return asked

    def test_prints_its_table_and_its_verdict(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measured = Measured((1.1, 1.2, 1.3), 0.9, 0.4, 0.2)
        trials = (Trial("Q4_K_M", 986_000_000, 0.32, 0.95, measured, "kept"),)
        asked = self.searching(folder, monkeypatch, Result(trials, folder / "d.gguf", "Q4_K_M pays best"))
        assert main(["models", "make-draft", "tiny.Q8_0", "--search", "--minutes", "2.5", "--name", "d"]) == 0
        captured = capsys.readouterr()
        heading, row, verdict, path = captured.out.splitlines()
        assert heading.split()[:2] == ["draft", "size"]
        assert row.split()[:3] == ["Q4_K_M", "986", "MB"]
        assert (verdict, path) == ("Q4_K_M pays best.", str(folder / "d.gguf"))
        assert "measuring Q4_K_M: 25%" in captured.err
        assert asked == [(folder / "tiny.Q8_0.gguf", 2.5, "d", None)]

    def test_that_finds_nothing_has_done_its_work(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked = self.searching(folder, monkeypatch, Result((Trial("Q2_K"),), None, "Nothing pays here"))
        assert main(["models", "make-draft", "tiny.Q8_0", "--search"]) == 0
        assert capsys.readouterr().out.endswith("\nNothing pays here.\n")
        assert asked[0][1] == search.USUAL_MINUTES

    def test_that_is_stopped(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.searching(folder, monkeypatch, KeyboardInterrupt())
        assert main(["models", "make-draft", "tiny.Q8_0", "--search"]) == 130
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.endswith("stopped; nothing was kept\n")

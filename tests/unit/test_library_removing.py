"""What may be removed, and what is left then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.core.errors import HeadstartError
from app.library import catalogue, fetch, folders, removing

GGUF = b"GGUF" + bytes(60)
LINKS = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder."""
    folder = tmp_path / "mis modelos"
    folder.mkdir()
    for module in (catalogue, folders, removing):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return folder


def add(path: Path, content: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "text", ["é one", "É ONE.gguf", "mis modelos/é one.gguf", "mis modelos/../mis modelos/é one.gguf"]
)
def test_a_model_is_removed_by_name_or_path(folder: Path, text: str) -> None:
    add(folder / "é one.gguf")
    add(folder / "other.gguf")
    assert removing.remove(text) == len(GGUF)
    assert left(folder) == ["other.gguf"]


@pytest.mark.parametrize("text", ["big", "mis modelos/ab/repo/big-00002-of-00003.gguf"])
def test_a_split_model_goes_with_all_its_parts_and_what_has_arrived(folder: Path, text: str) -> None:
    for number, size in ((1, 0), (2, 5)):
        add(folder / f"ab/repo/big-0000{number}-of-00003.gguf", GGUF + bytes(size))
    add(folder / "ab/repo/big-00003-of-00003.gguf.part", b"12345678")
    add(folder / "ab/other/big.gguf.part")
    assert removing.remove(text) == 2 * len(GGUF) + 5 + 8
    assert left(folder) == ["ab", "ab/other", "ab/other/big.gguf.part"]


def test_an_unfinished_download_goes_alone(folder: Path) -> None:
    add(folder / "one.gguf")
    part = add(folder / "two.gguf.part", b"half")
    assert removing.removable("two.gguf.part") == [part]
    assert removing.remove("two.gguf.part") == 4
    assert left(folder) == ["one.gguf"]


def test_empty_folders_go_too_but_never_models(folder: Path) -> None:
    add(folder / "ab/repo/deep/one.gguf")
    removing.remove("one")
    assert left(folder) == []
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("README.md", "no model file in"),
        ("mis modelos/README.md", "no model file in"),
        ("outside.gguf", "no model file in"),
        ("mis modelos/../outside.gguf", "no model file in"),
        ("mis modelos", "no model file in"),
        (".", "no model file in"),
        ("", "there is no file and no model"),
        ("*", "there is no file and no model"),
        ("a\0b", "there is no file and no model"),
        ("onf", "there is no file and no model 'onf'; did you mean one"),
        ("theirs", "remove it with the program that it belongs to"),
        ("extra/theirs.gguf", "remove it with the program that it belongs to"),
    ],
)
def test_all_else_is_refused(folder: Path, tmp_path: Path, text: str, error: str) -> None:
    add(folder / "one.gguf")
    add(folder / "README.md")
    add(tmp_path / "README.md")
    add(tmp_path / "outside.gguf")
    add(tmp_path / "extra/theirs.gguf")
    folders.add_folder(tmp_path / "extra")
    before = left(tmp_path)
    with pytest.raises(HeadstartError) as raised:
        removing.remove(text)
    assert error in str(raised.value)
    assert left(tmp_path) == before


@LINKS
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mis modelos/file.gguf", "is a link"),
        ("mis modelos/inner.gguf", "is a link"),
        ("mis modelos/dir/x.gguf", "no model file in"),
        ("x", "no file and no model 'x'"),
    ],
)
def test_links_and_what_they_lead_to_are_refused(folder: Path, tmp_path: Path, text: str, error: str) -> None:
    target = add(tmp_path / "out/x.gguf")
    one = add(folder / "one.gguf")
    (folder / "file.gguf").symlink_to(target)
    (folder / "inner.gguf").symlink_to(one)
    (folder / "dir").symlink_to(target.parent)
    before = left(tmp_path)
    with pytest.raises(HeadstartError, match=error):
        removing.remove(text)
    assert left(tmp_path) == before


@LINKS
def test_a_link_among_the_parts_is_refused(folder: Path, tmp_path: Path) -> None:
    add(folder / "big-00001-of-00002.gguf")
    (folder / "big-00002-of-00002.gguf").symlink_to(add(tmp_path / "out.gguf"))
    with pytest.raises(HeadstartError, match=r"big-00002-of-00002\.gguf is a link"):
        removing.remove("big")
    assert len(left(folder)) == 2


@LINKS
def test_models_may_itself_be_a_link(folder: Path, tmp_path: Path) -> None:
    disk = tmp_path / "large disk"
    folder.rmdir()
    add(disk / "one.gguf")
    folder.symlink_to(disk)
    assert removing.remove("one") == len(GGUF)
    assert left(disk) == []


@pytest.mark.parametrize("name", ["one.gguf", "one.gguf.part"])
def test_what_is_being_fetched_is_refused(folder: Path, name: str) -> None:
    add(folder / name)
    with fetch.only_one(folder / "one.gguf"), pytest.raises(HeadstartError, match="is being fetched already"):
        removing.remove(name.removesuffix(".gguf"))
    assert left(folder) == [name]
    removing.remove(name.removesuffix(".gguf"))
    assert left(folder) == []


def test_a_disk_that_refuses_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add(folder / "one.gguf")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(HeadstartError, match=r"can't remove .*one\.gguf: Permission denied; unload"):
        removing.remove("one")
    assert path.exists()

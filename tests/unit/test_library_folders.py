"""Where model files are looked for: models/, folders a person added, and where other programs keep theirs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.core.errors import HeadstartError
from app.core.models import ModelFacts
from app.library import catalogue, folders
from app.worker import tasks

PROGRAMS = folders.PROGRAMS  # before the session's fixture hides a person's own
GGUF = b"GGUF" + bytes(60)
SHA = "ab" * 32
LINKS = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's empty home folder; every file is read as a model."""
    home = tmp_path / "Zoë's home"
    (home / "models").mkdir(parents=True)
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_", "XDG_", "OLLAMA_", "JAN_")):
            monkeypatch.delenv(name)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("APPDATA", str(home / "AppData" / "Roaming"))
    monkeypatch.setenv("LOCALAPPDATA", str(home / "AppData" / "Local"))
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "headstart"))
    monkeypatch.setattr(folders, "PROGRAMS", PROGRAMS)
    monkeypatch.setattr(tasks, "inspect_models", inspect_models)
    for module in (catalogue, folders):
        monkeypatch.setattr(module, "models_dir", lambda: home / "models")
    return home


def inspect_models(paths: Sequence[Path], on_result: Callable[[Path, ModelFacts], None]) -> None:
    for path in paths:
        kind = "projector" if "mmproj" in path.name else "model"
        on_result(path, ModelFacts(kind, "llama", None, 1, "F16", 8, 8, "BPE", 1, True, None))


def add(path: Path, content: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def listed(source: str) -> dict[str, Path]:
    return {file.name: file.path for file in catalogue.list_models() if file.source == source}


def snapshot(hub: Path, repository: str, commit: str, file: str, sha256: str, content: bytes = GGUF) -> Path:
    """A file of the Hugging Face cache: a link to a blob that has its hash's name."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    add(folder / "refs" / "main", commit.encode())
    blob = add(folder / "blobs" / sha256, content)
    path = folder / "snapshots" / commit / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.symlink_to(os.path.relpath(blob, path.parent))
    return path


def manifest(root: Path, name: str, sha256: str | None, folder: str = "manifests") -> Path:
    """A model of Ollama's; ``name`` is HOST/NAMESPACE/MODEL/TAG."""
    layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'1' * 64}"}]
    if sha256:
        layers.append({"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{sha256}"})
    return add(root / folder / name, json.dumps({"schemaVersion": 2, "layers": layers}).encode())


def test_nothing_but_models_is_there_at_first(home: Path) -> None:
    assert [(place.path, place.source) for place in folders.places()] == [(home / "models", "models")]
    assert catalogue.list_models() == []


@LINKS
def test_the_hugging_face_cache(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    old, new = "0" * 40, "f" * 40
    older = snapshot(hub, "ab/Model-GGUF", old, "Model-Q8_0.gguf", "cd" * 32, GGUF + b"older")
    snapshot(hub, "ab/Model-GGUF", old, "Model-Q4_0.gguf", SHA)
    current = snapshot(hub, "ab/Model-GGUF", new, "Model-Q4_0.gguf", SHA)
    newest = snapshot(hub, "ab/Model-GGUF", new, "Model-Q8_0.gguf", "ef" * 32)
    first = snapshot(hub, "cd/Big", new, "Q4/big-00001-of-00002.gguf", "01" * 32)
    snapshot(hub, "cd/Big", new, "Q4/big-00002-of-00002.gguf", "02" * 32)
    snapshot(hub, "cd/Big", new, "config.json", "03" * 32, b"{}")
    assert listed("huggingface") == {
        "Model-Q4_0": current,
        "Model-Q8_0": newest,
        "ab/Model-GGUF@00000000/Model-Q8_0": older,
        "big": first,
    }
    files = {file.name: file for file in catalogue.list_models()}
    assert files["Model-Q4_0"].sha256 == SHA
    assert files["big"].size_bytes == 2 * len(GGUF)
    assert catalogue.resolve("big") == first
    assert catalogue.resolve("ab/Model-GGUF@00000000/Model-Q8_0") == older


@LINKS
def test_a_broken_hugging_face_cache_still_shows_its_whole_files(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    good = snapshot(hub, "ab/Good", "0" * 40, "good.gguf", SHA)
    (good.parent / "gone.gguf").symlink_to("../../blobs/not-there")
    (good.parent / "loop.gguf").symlink_to("loop.gguf")
    add(hub / "models--ab--Good" / "blobs" / f"{'9' * 64}.incomplete")
    add(hub / "models--ab--File" / "snapshots", b"a file where a folder should be")
    add(hub / "models--no--refs" / "snapshots" / ("1" * 40) / "copied.gguf")
    add(hub / "datasets--ab--Data" / "snapshots" / ("1" * 40) / "data.gguf")
    assert sorted(listed("huggingface")) == ["copied", "good"]
    assert {file.name: file.sha256 for file in catalogue.list_models()} == {"copied": None, "good": SHA}


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_hugging_face_cache_goes_where_its_variables_say(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    inner = {"HF_HOME": ("hub",), "XDG_CACHE_HOME": ("huggingface", "hub")}.get(variable, ())
    monkeypatch.setenv(variable, "~/elsewhere")
    if variable == "XDG_CACHE_HOME":
        monkeypatch.setenv(variable, str(home / "elsewhere"))
    add(home.joinpath("elsewhere", *inner, "models--a--b", "snapshots", "0" * 40, "m.gguf"))
    assert list(listed("huggingface")) == ["m"]


def test_lm_studio(home: Path) -> None:
    inside = home / ".lmstudio" / "models" / "lmstudio-community" / "Model-GGUF"
    add(inside / "Model-Q4_K_M.gguf")
    add(inside / "mmproj-Model-f16.gguf")
    add(home / ".cache" / "lm-studio" / "models" / "other" / "Model-GGUF" / "Old.gguf")
    files = {file.name: file.kind for file in catalogue.list_models()}
    assert files == {"Model-Q4_K_M": "model", "mmproj-Model-f16": "projector", "Old": "model"}
    assert set(listed("lmstudio")) == set(files)


def test_lm_studio_goes_where_its_settings_say(home: Path) -> None:
    away = home / "big disk" / "LM Studio"
    add(home / ".lmstudio-home-pointer", str(away).encode())
    add(away / "settings.json", json.dumps({"downloadsFolder": str(home / "GGUFs")}).encode())
    moved = add(home / "GGUFs" / "owner" / "repo" / "moved.gguf")
    stayed = add(away / "models" / "owner" / "repo" / "stayed.gguf")
    assert listed("lmstudio") == {"moved": moved, "stayed": stayed}
    add(away / "settings.json", b"{broken")
    assert listed("lmstudio") == {"stayed": stayed}


@pytest.mark.parametrize("variable", [None, "OLLAMA_MODELS"])
def test_ollama(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    root = home / ".ollama" / "models"
    if variable:
        root = home / "ollama models"
        monkeypatch.setenv(variable, str(root))
    blob = add(root / "blobs" / f"sha256-{SHA}")
    other = add(root / "blobs" / f"sha256-{'cd' * 32}", GGUF + b"2")
    third = add(root / "blobs" / f"sha256-{'ef' * 32}", GGUF + b"3")
    manifest(root, "registry.ollama.ai/library/llama3.2/3b", SHA)
    manifest(root, "registry.ollama.ai/library/llama3.2/latest", SHA)
    manifest(root, "registry.ollama.ai/someone/mine/v1", "cd" * 32)
    manifest(root, "hf.co/ab/Model-GGUF/Q4_0", "ef" * 32)
    manifest(root, "registry.ollama.ai/library/cloud/latest", None)
    manifest(root, "registry.ollama.ai/library/gone/latest", "77" * 32)
    add(root / "manifests/registry.ollama.ai/library/broken/latest", b"{")
    add(root / "manifests/registry.ollama.ai/library/nested/latest", b"[" * 100_000)
    out = {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../secret"}]}
    add(root / "manifests/registry.ollama.ai/library/out/latest", json.dumps(out).encode())
    assert listed("ollama") == {
        "llama3.2:3b": blob,
        "someone/mine:v1": other,
        "hf.co/ab/Model-GGUF:Q4_0": third,
    }
    assert catalogue.resolve("LLAMA3.2:3b") == blob
    assert catalogue.name_of(blob) == "llama3.2:3b"
    assert {file.sha256 for file in catalogue.list_models()} == {SHA, "cd" * 32, "ef" * 32}


def test_ollama_s_newer_manifests_may_list_one_for_each_runner(home: Path) -> None:
    root = home / ".ollama" / "models"
    blob = add(root / "blobs" / f"sha256-{SHA}")
    inner = manifest(root, "sha256-" + "9" * 64, SHA, "blobs")
    weights = {"mediaType": "application/vnd.ollama.image.tensor", "digest": f"sha256:{'2' * 64}"}
    lists = {"manifests": [{"runner": "mlx", "layers": [weights]}, {"digest": inner.name.replace("-", ":")}]}
    add(root / "manifests-v2/registry.ollama.ai/library/new/1b", json.dumps(lists).encode())
    endless = {"manifests": [{"digest": "sha256:" + "8" * 64}]}
    add(root / "blobs" / f"sha256-{'8' * 64}", json.dumps(endless).encode())
    add(root / "manifests-v2/registry.ollama.ai/library/endless/1b", json.dumps(endless).encode())
    assert listed("ollama") == {"new:1b": blob}


DATA = {
    "linux": (".local/share",) * 2,
    "darwin": ("Library/Application Support",) * 2,
    "win32": ("AppData/Roaming", "AppData/Local"),
}


@pytest.mark.parametrize("platform", DATA)
def test_jan(home: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    jan = home / DATA[platform][0] / "Jan"
    new = add(jan / "data/llamacpp/models/janhq/Jan-v1-4B-Q4_K_M/model.gguf")
    add(jan / "data/llamacpp/models/janhq/Jan-v1-4B-Q4_K_M/mmproj.gguf")
    old = add(home / "jan/models/llama3.2-1b/Llama-3.2-1B.gguf")
    found = listed("jan")
    assert found.pop("mmproj").name == "mmproj.gguf"
    assert found == {"Jan-v1-4B-Q4_K_M": new, "Llama-3.2-1B": old}
    moved = add(home / "disk/llamacpp/models/me/Mine/model.gguf")
    add(jan / "settings.json", json.dumps({"data_folder": str(home / "disk")}).encode())
    assert listed("jan")["Mine"] == moved


@pytest.mark.parametrize("platform", DATA)
def test_gpt4all(home: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    usual = add(home / DATA[platform][1] / "nomic.ai" / "GPT4All" / "Model.Q4_0.gguf")
    python = add(home / ".cache" / "gpt4all" / "orca.gguf")
    assert listed("gpt4all") == {"Model.Q4_0": usual, "orca": python}
    moved = add(home / "my models" / "moved.gguf")
    settings = home / (DATA[platform][0] if platform == "win32" else ".config") / "nomic.ai" / "GPT4All.ini"
    add(settings, f"[General]\nchatTheme=Dark\nmodelPath={home / 'my models'}/\n".encode())
    assert listed("gpt4all") == {"Model.Q4_0": usual, "orca": python, "moved": moved}


def test_added_folders_last_and_can_be_forgotten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = home / "extra"
    path = add(extra / "deep" / "one.gguf")
    add(extra / "deep" / ".hidden" / "two.gguf")
    monkeypatch.chdir(home)
    assert folders.add_folder(Path("extra")) == extra
    folders.add_folder(Path("~/models/../extra"))
    assert folders.added_folders() == [extra]
    assert listed("added") == {"one": path}
    extra.rename(home / "away")
    assert folders.added_folders() == [extra]
    assert listed("added") == {}
    folders.forget_folder(extra)
    assert folders.added_folders() == []
    with pytest.raises(HeadstartError, match="was not added; `models scan FOLDER` adds one"):
        folders.forget_folder(extra)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"a": 1}', b"[1, null]"])
def test_a_broken_list_of_folders_is_an_empty_one(home: Path, tmp_path: Path, content: bytes) -> None:
    add(tmp_path / "headstart" / folders.ADDED, content)
    assert folders.added_folders() == []
    folders.add_folder(home)
    assert folders.added_folders() == [home]


def test_what_is_no_folder_is_not_added(home: Path) -> None:
    file = add(home / "file")
    for path in (home / "nothing", file, Path("a\0b"), Path("~nobody-of-that-name/x"), Path("x" * 5000)):
        with pytest.raises(HeadstartError):
            folders.add_folder(path)
    assert folders.added_folders() == []


def test_a_list_that_cannot_be_written_says_so(home: Path, tmp_path: Path) -> None:
    (tmp_path / "headstart").write_text("a file where the folder should be", "utf-8")
    with pytest.raises(HeadstartError, match="can't write"):
        folders.add_folder(home)


@LINKS
def test_a_file_belongs_to_the_first_place_that_leads_to_it(home: Path) -> None:
    ours = add(home / "models" / "ours.gguf")
    theirs = add(home / ".lmstudio" / "models" / "a" / "b" / "theirs.gguf")
    extra = home / "extra"
    extra.mkdir()
    (extra / "link.gguf").symlink_to(ours)
    (extra / "link2.gguf").symlink_to(theirs)
    for folder in (extra, home, home / "models", home / ".lmstudio" / "models"):
        folders.add_folder(folder)
    assert [(file.path, file.source) for file in catalogue.list_models()] == [
        (ours, "models"),
        (theirs, "lmstudio"),
    ]


@LINKS
def test_loops_and_locked_folders_are_passed_over(home: Path) -> None:
    extra = home / "extra"
    path = add(extra / "deep" / "one.gguf")
    (extra / "deep" / "up").symlink_to(extra)
    (extra / "round").symlink_to(extra / "round")
    locked = extra / "locked"
    add(locked / "two.gguf")
    locked.chmod(0)
    folders.add_folder(extra)
    try:
        found = listed("added")
        may_look = os.access(locked, os.X_OK)  # as root may
    finally:
        locked.chmod(0o700)
    assert found.pop("one") == path
    assert bool(found) == may_look


def test_the_same_name_in_several_places_stays_apart(home: Path) -> None:
    ours = add(home / "models" / "same.gguf")
    theirs = add(home / ".lmstudio" / "models" / "ab" / "repo" / "same.gguf")
    also = add(home / ".lmstudio" / "models" / "cd" / "repo" / "same.gguf")
    flat = add(home / ".cache" / "gpt4all" / "Same.gguf")
    extra, twin = (add(home / name / "x" / "same.gguf") for name in ("one", "two"))
    for name in ("one", "two"):
        folders.add_folder(home / name)
    names = {file.path: file.name for file in catalogue.list_models()}
    assert names == {
        ours: "same",
        theirs: "ab/repo/same",
        also: "cd/repo/same",
        flat: "GPT4All/Same",
        extra: "x/same",
        twin: "two/x/same",
    }
    for path, name in names.items():
        assert catalogue.resolve(name) == path


def test_thousands_of_files_are_listed_without_reading_the_cache_for_each(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1500):
        add(home / "models" / f"{number % 40}" / f"model-{number}.gguf")
    monkeypatch.setattr(tasks, "inspect_models", lambda paths, on_result: None)
    monkeypatch.setattr(catalogue, "_facts", lambda whole, on_read: dict.fromkeys(whole, "unread"))
    reads: list[str] = []
    monkeypatch.setattr(folders.store, "read", lambda name: reads.append(name))
    assert len(catalogue.list_models()) == 1500
    assert len(reads) <= 2

"""Which drafts are offered for a target, in which order and with which words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.core.errors import HeadstartError
from app.core.models import ModelFacts, PairCheck
from app.library import cache, catalogue, folders, pairs
from app.library.catalogue import ModelFile
from app.worker import tasks


def facts(name: str | None, architecture: str = "qwen2", parameters: int = 1, **more: object) -> ModelFacts:
    known = ModelFacts("model", architecture, name, parameters, "F16", 2048, 300, "BPE", 2, True, None)
    return dataclasses.replace(known, **more)  # type: ignore[arg-type]


class Disk:
    """A models folder whose files are as large as is said, and what the helper process says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts: dict[str, ModelFacts] = {}
        self.misfits: dict[str, str] = {}
        self.checked: list[str] = []

    def add(self, name: str, size: int, about: ModelFacts) -> Path:
        path = self.folder / f"{name}.gguf"
        path.write_bytes(b"GGUF" + bytes(size - 4))
        self.facts[path.name] = about
        return path

    def inspect_models(
        self, paths: Sequence[Path], on_result: Callable[[Path, ModelFacts | str], None]
    ) -> None:
        for path in paths:
            on_result(path, self.facts[path.name])

    def check_drafts(self, target: Path, drafts: Sequence[Path]) -> dict[Path, PairCheck]:
        self.checked += [draft.stem for draft in drafts]
        reasons = {draft: self.misfits.get(draft.stem) for draft in drafts}
        return {
            draft: PairCheck(not reason, (reason,) if reason else ()) for draft, reason in reasons.items()
        }


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    folder = tmp_path / "models"
    folder.mkdir()
    disk = Disk(folder)
    for module in (catalogue, folders):
        monkeypatch.setattr(module, "models_dir", lambda: folder)
    monkeypatch.setattr(tasks, "inspect_models", disk.inspect_models)
    monkeypatch.setattr(tasks, "check_drafts", disk.check_drafts)
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    return disk


def ranked(target: Path) -> list[tuple[str, bool, str]]:
    return [(each.file.name, each.fits, each.note) for each in pairs.rank_drafts(target)]


def test_the_family_and_the_size_decide(disk: Disk) -> None:
    target = disk.add("big", 12_000, facts("Qwen2.5 Coder 7B Instruct"))
    disk.add("tenth", 1_000, facts("Qwen2.5 Coder 0.5B Instruct"))
    disk.add("tenth-base", 1_001, facts("Qwen2.5 Coder 0.5B"))
    disk.add("quarter", 3_000, facts("Qwen2.5 Coder 1.5B Instruct"))
    disk.add("tiny", 100, facts("Qwen2.5 Coder 0.05B Instruct"))
    disk.add("cousin", 1_002, facts("Qwen2.5 0.5B Instruct"))
    disk.add("stranger", 1_003, facts("Other 0.5B Instruct", "llama"))
    disk.add("close", 8_000, facts("Qwen2.5 Coder 3B Instruct"))
    disk.add("larger", 12_001, facts("Qwen2.5 Coder 14B Instruct"))
    disk.add("misfit", 999, facts("SmolLM2 135M Instruct", "llama"))
    disk.misfits["misfit"] = "the vocabulary sizes differ"
    assert ranked(target) == [
        ("tenth", True, "same family, 12x smaller"),
        ("quarter", True, "same family, 4.0x smaller"),
        ("tiny", True, "same family, 120x smaller"),
        ("tenth-base", True, "same family, 12x smaller, a base model"),
        ("cousin", True, "same architecture, 12x smaller"),
        ("stranger", True, "another architecture, 12x smaller"),
        ("close", True, "same family, hardly smaller"),
        ("big", True, "the target itself"),
        ("misfit", False, "another architecture, 12x smaller"),
        ("larger", False, "same family, not smaller"),
    ]
    reasons = {each.file.name: each.reasons for each in pairs.rank_drafts(target)}
    assert reasons["misfit"] == ("the vocabulary sizes differ",)
    assert reasons["larger"] == ("it is larger than the target, 0 MB against 0 MB",)


def test_a_draft_made_from_the_target_comes_first(disk: Disk) -> None:
    target = disk.add("target", 12_000, facts("Qwen2.5 Coder 7B Instruct"))
    disk.add("sibling", 1_000, facts("Qwen2.5 Coder 0.5B Instruct"))
    disk.add("made", 8_000, facts("anything", made_from="ab" * 32))
    assert ranked(target)[0][0] == "sibling"
    cache.remember(target, "sha256", "ab" * 32)
    assert ranked(target)[0] == ("made", True, "made from this target, same architecture, hardly smaller")


def test_an_instruct_target_wants_an_instruct_draft_and_a_base_one_a_base(disk: Disk) -> None:
    disk.add("draft-it", 1_000, facts("Model 0.5B it"))
    disk.add("draft-pt", 1_000, facts("Model 0.5B pt"))
    base = disk.add("target-base", 10_000, facts("Model 7B Base"))
    tuned = disk.add("target-chat", 10_000, facts("Model 7B Chat"))
    assert ranked(base)[:2] == [
        ("draft-pt", True, "same family, 10x smaller"),
        ("draft-it", True, "same family, 10x smaller, an instruct model"),
    ]
    assert ranked(tuned)[:2] == [
        ("draft-it", True, "same family, 10x smaller"),
        ("draft-pt", True, "same family, 10x smaller, a base model"),
    ]


def test_a_family_in_no_table_is_told_by_its_name(disk: Disk) -> None:
    target = disk.add("a", 10_000, facts("Granite 9.1 8B Instruct", "granite"))
    disk.add("b", 1_000, facts("granite-9.1-1b-a400m-instruct", "granitemoe"))
    disk.add("c", 1_000, facts("Granite 9.0 1B Instruct", "granite"))
    assert [note for _, _, note in ranked(target)] == [
        "same family, 10x smaller",
        "same architecture, 10x smaller",
        "the target itself",
    ]


def test_checks_are_remembered_until_a_file_changes(disk: Disk) -> None:
    target = disk.add("target", 1_000, facts("T"))
    disk.add("draft", 100, facts("T"))
    for _ in range(2):
        assert [name for name, _, _ in ranked(target)] == ["draft", "target"]
    assert sorted(disk.checked) == ["draft", "target"]
    disk.add("draft", 101, facts("T"))
    ranked(target)
    assert disk.checked[2:] == ["draft"]


def test_a_target_in_another_folder_is_read_too(disk: Disk, tmp_path: Path) -> None:
    disk.add("draft", 100, facts("T"))
    elsewhere = tmp_path / "target.gguf"
    elsewhere.write_bytes(b"GGUF" + bytes(996))
    disk.facts["target.gguf"] = facts("T")
    assert ranked(elsewhere) == [("draft", True, "same family, 10x smaller")]


def model(name: str, parameters: int) -> ModelFile:
    path = Path(f"{name}.gguf")
    return ModelFile(path.stem, path, 1000, "model", facts(name, parameters=parameters))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen2.5 Coder 32B Instruct", "Qwen2.5-Coder"),
        ("qwen2.5-coder-32b-instruct-q4_k_m", "Qwen2.5-Coder"),
        ("qwen2.5:32b", "Qwen2.5"),
        ("Qwen2.5 72B Instruct", "Qwen2.5"),
        ("Qwen3-32B-Q4_K_M", "Qwen3"),
        ("Qwen3.5 27B", None),
        ("Meta Llama 3.1 70B Instruct", "Llama 3"),
        ("llama3.3:70b", "Llama 3"),
        ("Llama 2 70B", None),
        ("gemma-3-27b-it", "Gemma 3"),
        ("gemma-3n-E4B-it", None),
        ("Smollm2 1.7B 8k Mix7 Ep2 v2", "SmolLM2"),
        ("SmolLM3 3B", None),
    ],
)
def test_siblings_are_of_the_family_and_at_most_half_as_large(name: str, family: str | None) -> None:
    families = {each.name: each for each in pairs.load_families()}
    known = families[family].siblings if family else ()
    assert set(pairs.siblings(model(name, 70_000_000_000))) == set(known)
    for sibling in known:
        assert sibling not in pairs.siblings(model(name, sibling.parameters * 2 - 1))
        assert sibling in pairs.siblings(model(name, sibling.parameters * 2))


def test_the_best_sibling_comes_first() -> None:
    small, large = model("Llama 3.1 8B", 8_000_000_000), model("Llama 3.1 70B", 70_000_000_000)
    assert [each.parameters for each in pairs.siblings(small)] == [1_236_000_000, 3_213_000_000]
    assert [each.parameters for each in pairs.siblings(large)] == [3_213_000_000, 1_236_000_000]


def test_an_unknown_family_has_no_siblings() -> None:
    assert pairs.siblings(model("Something 7B", 7_000_000_000)) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("A: {names: a, siblings: {}, colour: red}", "line 1: unknown key 'colour'"),
        ("A: {names: '(', siblings: {}}", r"line 1: names '\(' is no pattern"),
        (
            "A: {names: a, siblings: {x/y: {file: b.bin, parameters: 1, seen_at: 'https://c'}}}",
            "file must be",
        ),
        ("A: {names: a, siblings: {x/y: {file: b.gguf, parameters: 1, seen_at: c}}}", "seen_at must be an"),
        ("A: {names: a, siblings: {x: {file: b.gguf, parameters: 1, seen_at: 'https://c'}}}", "OWNER/NAME"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "families.yaml").write_text(text, "utf-8")
    with pytest.raises(HeadstartError, match=error):
        pairs.load_families(tmp_path)

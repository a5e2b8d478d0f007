"""Presets are read strictly, and one that is broken hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.models import Device
from app.core.settings import Mode
from app.library.presets import best_preset, load_models, load_presets

MODELS = f"""\
big:
  size: 30
  sha256: {"a" * 64}
  licence: MIT
  hub: {{repository: someone/big, revision: {"b" * 40}, file: sub/big.gguf}}
  wheels:
    distribution: big-part{{n}}
    version: 1.0.0
    member: big{{n}}/part{{nn}}.bin
    parts: 3
    part_size: 12
small:
  size: 5
  sha256: {"c" * 64}
  licence: MIT
  hub: {{repository: someone/small, revision: {"d" * 40}, file: small.gguf}}
"""
PAIR = """\
name: pair
title: A pair
summary: For tests.
target: big
draft: small
mode: draft
n_draft: 4
context: 2048
"""
UNTRIED = """\
a-giant:
  title: A giant
  target:
    repository: x/giant
    file: giant.gguf
    about_gb: 40
    licence: MIT
    seen_at: https://h/t
  draft:
    repository: x/dwarf
    file: dwarf.gguf
    about_gb: 2
    licence: MIT
    seen_at: https://h/d
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of presets with two models and one pair, its path not plain ASCII."""
    folder = tmp_path / "Voreinstellungen für mich"
    folder.mkdir()
    (folder / "models.yaml").write_text(MODELS, "utf-8")
    (folder / "pair.yaml").write_text(PAIR, "utf-8")
    return folder


def test_a_preset_has_what_its_file_says(folder: Path) -> None:
    text = (
        PAIR + "p_min: 0.5\nngram_min: 3\nngram_max: 5\nsampling:\n  temperature: 1\n  top_k: 0\n  seed: 7\n"
    )
    (folder / "pair.yaml").write_text(text, "utf-8")
    (pair,), errors = load_presets(folder)
    assert errors == []
    assert (pair.name, pair.title, pair.summary, pair.context) == ("pair", "A pair", "For tests.", 2048)
    assert [model.name for model in pair.models] == ["big", "small"]
    assert pair.size == 35
    assert pair.target.file_name == "big.gguf"
    assert pair.target.wheels is not None
    assert pair.target.wheels.parts == 3
    assert pair.draft is not None
    assert pair.draft.wheels is None
    speculation = pair.speculation
    assert (speculation.mode, speculation.n_draft, speculation.p_min) == (Mode.DRAFT, 4, 0.5)
    assert (speculation.ngram_min, speculation.ngram_max) == (3, 5)
    assert (pair.sampling.temperature, pair.sampling.top_k, pair.sampling.seed) == (1, 0, 7)
    assert pair.sampling.top_p == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("n_draft: 4", "n_drafts: 4"), "pair.yaml, line 7: unknown key 'n_drafts'"),
        (("context: 2048\n", ""), "pair.yaml, line 1: key 'context' is missing"),
        (("n_draft: 4", "n_draft: four"), "pair.yaml, line 7: n_draft must be a whole number, not 'four'"),
        (("n_draft: 4", "n_draft: 4.0"), "pair.yaml, line 7: n_draft must be a whole number, not 4.0"),
        (("n_draft: 4", "n_draft: yes"), "pair.yaml, line 7: n_draft must be a whole number, not True"),
        (("n_draft: 4", "n_draft: 32"), "n_draft 32 must lie between 0 and 31"),
        (("n_draft: 4", "n_draft: [4]"), "pair.yaml, line 7: expected a single value"),
        (("title: A pair", "title: 2"), "pair.yaml, line 2: title must be text, not 2"),
        (("title: A pair", "title: ''"), "pair.yaml, line 2: title must be text"),
        (("title: A pair", "title:"), "pair.yaml, line 2: title must be text, not None"),
        (("target: big", "target: huge"), "pair.yaml, line 4: target 'huge' is not in models.yaml"),
        (("mode: draft", "mode: fast"), "pair.yaml, line 6: mode 'fast' is unknown"),
        (("draft: small\n", ""), "pair.yaml, line 5: mode draft needs a draft"),
        (("context: 2048", "context: 2"), "pair.yaml, line 8: context must be at least 8, not 2"),
        (("context: 2048", "context: 2048\nsampling: hot"), "pair.yaml, line 9: expected 'key: value' lines"),
        (("context: 2048", "context: 1\nsampling: {heat: 1}"), "pair.yaml, line 9: unknown key 'heat'"),
        (
            ("context: 2048", "context: 8\nsampling: {top_p: 0}"),
            "pair.yaml, line 9: top_p 0 must lie above 0",
        ),
        (("context: 2048", "context: 8\nsampling: {min_p: .nan}"), "pair.yaml, line 9: min_p nan must lie"),
        (
            ("context: 2048", "context: 8\nname: again"),
            "pair.yaml, line 9: key 'name' stands here a second time",
        ),
        (("title: A pair", "title: A: pair"), "pair.yaml, line 2: mapping values are not allowed here"),
        (("name: pair", "name: pair\n---\nname: pair"), "pair.yaml, line 2"),
        (("name: pair", "name: ../pair"), "pair.yaml, line 1: name must be letters"),
    ],
)
def test_an_error_names_file_line_and_key(folder: Path, change: tuple[str, str], error: str) -> None:
    assert change[0] in PAIR
    (folder / "broken.yaml").write_text(PAIR.replace("name: pair", "name: other"), "utf-8")
    (folder / "pair.yaml").write_text(PAIR.replace(*change), "utf-8")
    presets, errors = load_presets(folder)
    assert [preset.name for preset in presets] == ["other"]
    assert len(errors) == 1
    assert error in str(errors[0])
    assert str(errors[0]).startswith(str(folder))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("size: 30", "size: 30 GB"), "line 2: size must be a whole number, not '30 GB'"),
        (("size: 30", "size: 0"), "line 2: size must be at least 1, not 0"),
        (("size: 30", "size: 37"), "line 7: 3 parts of 12 bytes don't make 37 bytes"),
        (("a" * 64, "A" * 64), "line 3: sha256 must be 64 hexadecimal digits"),
        (("a" * 64, "1" * 64), "line 3: sha256 must be 64 hexadecimal digits in lower case, not 111"),
        (("someone/big", "big"), "line 5: repository must be OWNER/NAME, not 'big'"),
        (("b" * 40, "main"), "line 5: revision must be a commit"),
        (("sub/big.gguf", "../big.gguf"), "line 5: file must be the path of a .gguf file"),
        (("sub/big.gguf", "/etc/big.gguf"), "line 5: file must be the path of a .gguf file"),
        (("sub/big.gguf", "big.bin"), "line 5: file must be the path of a .gguf file"),
        (
            ("distribution: big", "distribution: --index-url"),
            "line 7: distribution must be a distribution's name",
        ),
        (
            ("version: 1.0.0", "version: 1.0"),
            "line 8: version must be a version, not 1.0; put text in quotes",
        ),
        (("    parts: 3\n", ""), "line 7: key 'parts' is missing"),
    ],
)
def test_a_broken_model_takes_only_its_own_presets_along(
    folder: Path, change: tuple[str, str], error: str
) -> None:
    assert change[0] in MODELS
    (folder / "models.yaml").write_text(MODELS.replace(*change), "utf-8")
    text = PAIR.replace("name: pair", "name: alone").replace("target: big", "target: small")
    (folder / "alone.yaml").write_text(text, "utf-8")
    presets, errors = load_presets(folder)
    assert [preset.name for preset in presets] == ["alone"]
    assert list(load_models(folder)[0]) == ["small"]
    assert f"models.yaml, {error}" in str(errors[0])
    assert "target 'big' is not in models.yaml" in str(errors[1])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf# nothing but a comment\r\n", "is empty"),
        (b"- a\n- list\n", "line 1: expected 'key: value' lines here"),
        (b"name: \xff\xfe\n", "not a text file in UTF-8"),
        (b"\x00\x00", "not a text file in UTF-8"),
        (b"<html>\n", "line 1: expected 'key: value' lines here"),
        (b"a: &a [*a]\n", "line 1: unknown key 'a'"),
    ],
)
def test_a_file_that_is_no_preset(folder: Path, content: bytes, error: str) -> None:
    (folder / "odd.yaml").write_bytes(content)
    presets, errors = load_presets(folder)
    assert [preset.name for preset in presets] == ["pair"]
    assert [error in str(found) and "odd.yaml" in str(found) for found in errors] == [True]


def test_windows_line_ends_and_a_byte_order_mark_are_no_error(folder: Path) -> None:
    (folder / "pair.yaml").write_bytes(b"\xef\xbb\xbf" + PAIR.replace("\n", "\r\n").encode())
    (pair,), errors = load_presets(folder)
    assert (pair.summary, errors) == ("For tests.", [])


def test_two_presets_of_one_name(folder: Path) -> None:
    (folder / "z.yaml").write_text(PAIR.replace("A pair", "Another"), "utf-8")
    presets, (error,) = load_presets(folder)
    assert [preset.title for preset in presets] == ["A pair"]
    assert "z.yaml: the name 'pair' is taken by another file" in str(error)


def test_without_models_there_are_no_presets_but_reasons(folder: Path) -> None:
    (folder / "models.yaml").unlink()
    presets, errors = load_presets(folder)
    assert presets == []
    assert "models.yaml" in str(errors[0])


def test_the_presets_that_ship() -> None:
    presets, errors = load_presets()
    assert errors == []
    by_name = {preset.name: preset for preset in presets}
    assert [preset.name for preset in presets if preset.is_tried] == ["coder", "coder-lookup", "starter"]
    assert by_name["coder"].size == 1117320768 + 491400064
    assert by_name["coder"].speculation.mode is Mode.AUTO
    assert by_name["coder-lookup"].speculation.mode is Mode.LOOKUP
    assert by_name["coder-lookup"].draft is None
    assert by_name["starter"].target.size == 98362432


def test_the_pairs_that_nobody_tried_here_say_so_and_where_they_were_seen() -> None:
    untried = [preset for preset in load_presets()[0] if not preset.is_tried]
    assert len(untried) >= 12
    for preset in untried:
        assert preset.summary == "A well-known pair, not tried here."
        assert preset.speculation.mode is Mode.AUTO
        assert preset.draft is not None
        assert preset.target.size > 3 * preset.draft.size
        for model in preset.models:
            assert (model.is_exact, model.sha256, model.hub.revision) == (False, None, "main")
            assert model.place == f"{model.hub.repository}/{model.hub.file}"
            assert model.seen_at.startswith(("https://huggingface.co/", "https://github.com/"))
    places = [model.place for preset in untried for model in preset.models]
    assert all(len({m for p in untried for m in p.models if m.place == place}) == 1 for place in places)


def test_an_untried_pair_is_never_the_best(folder: Path) -> None:
    (folder / "untried.yaml").write_text(UNTRIED, "utf-8")
    presets, errors = load_presets(folder)
    assert errors == []
    assert [(preset.name, preset.is_tried, preset.size) for preset in presets] == [
        ("pair", True, 35),
        ("a-giant", False, 42_000_000_000),
    ]
    best = best_preset(presets, 10**15)
    assert best is not None
    assert best.name == "pair"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("about_gb: 40", "about_gb: many"), "line 6: about_gb must be a number, not 'many'"),
        (("about_gb: 40", "about_gb: 0"), "line 6: about_gb must be a size in GB, not 0"),
        (("about_gb: 40", "size: 40"), "line 6: unknown key 'size'"),
        (("seen_at: https://h/t", "seen_at: a friend"), "line 8: seen_at must be an address"),
        (("file: giant.gguf", "file: ../giant.gguf"), "line 5: file must be the path of a .gguf file"),
        (("repository: x/giant", "repository: giant"), "line 4: repository must be OWNER/NAME"),
        (("title: A giant", "titel: A giant"), "line 2: unknown key 'titel'"),
        (("a-giant:", "../giant:"), "line 2: name must be letters"),
        (("a-giant:", "pair:"), "untried.yaml: the name 'pair' is taken by another file"),
        ((UNTRIED, "- a list\n"), "line 1: expected 'key: value' lines here"),
    ],
)
def test_a_broken_untried_pair_is_named(folder: Path, change: tuple[str, str], error: str) -> None:
    assert change[0] in UNTRIED
    (folder / "untried.yaml").write_text(UNTRIED.replace(*change), "utf-8")
    presets, (found,) = load_presets(folder)
    assert [preset.name for preset in presets] == ["pair"]
    assert error in str(found)
    assert "untried.yaml" in str(found)


def test_the_best_preset_is_the_largest_that_memory_holds() -> None:
    presets, _ = load_presets()

    def best(ram_gb: float, *devices: Device) -> str | None:
        preset = best_preset(presets, int(ram_gb * 1e9), devices)
        return preset and preset.name

    assert best(16) == "coder"
    assert best(4.5) == "coder-lookup"
    assert best(2) == "starter"
    assert best(0.5) is None
    assert best(2, Device("CUDA0", "a card", "gpu", 0, 8_000_000_000)) == "coder"
    assert best(2, Device("CPU", "the processor", "cpu", 0, 8_000_000_000)) == "starter"

"""Columns from the words of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from app import generate
from app.compare.columns import parse_columns, with_plain
from app.compare.record import Column
from app.core.errors import HeadstartError, UsageError
from app.core.settings import Mode
from tests.unit.comparisons import K4, LOOKUP, PLAIN, column

SAMPLED = column("s", Mode.LOOKUP, sampling=generate.SamplingSettings(temperature=0.8))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.gguf" for name in ("target", "draft", "a, b")}
    for path in paths.values():
        path.write_bytes(b"GGUF" + bytes(60))
    paths["broken"] = tmp_path / "broken.gguf"
    paths["broken"].write_bytes(b"no model")
    return paths


@pytest.fixture
def parse(files: dict[str, Path]) -> Any:
    def parse(*texts: str, flags: tuple[str, ...] = (), **more: Any) -> tuple[Column, ...]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--target")
        generate.add_run_arguments(parser)
        args = parser.parse_args(["--target", str(files["target"]), *flags])
        return parse_columns(args, texts, **more)

    return parse


def test_a_columns_own_settings_win_over_the_common_ones(parse: Any, files: dict[str, Path]) -> None:
    plain, k8 = parse(
        "plain=plain",
        f"k 8=draft:draft={files['draft']},n_draft=8,p_min=0.25,temperature=0.5,n_ctx=512,gpu_layers=0",
        flags=("--n-draft", "6", "--seed", "9", "--max-tokens", "20", "--stop", "END"),
    )
    assert (plain.name, plain.mode, plain.load.draft) == ("plain", Mode.PLAIN, None)
    assert (plain.request.speculation.n_draft, plain.request.sampling.seed) == (6, 9)
    assert (plain.request.max_tokens, plain.request.stop, plain.load.n_ctx) == (20, ("END",), 4096)
    assert (k8.name, k8.mode, k8.load.draft) == ("k 8", Mode.DRAFT, files["draft"])
    assert (k8.request.speculation.n_draft, k8.request.speculation.p_min) == (8, 0.25)
    assert (k8.request.sampling.temperature, k8.request.sampling.seed) == (0.5, 9)
    assert (k8.load.n_ctx, k8.load.gpu_layers, k8.load.target) == (512, 0, files["target"])


def test_modes_are_columns_with_the_common_settings(parse: Any, files: dict[str, Path]) -> None:
    columns = parse(modes="plain, draft,lookup", flags=("--draft", str(files["draft"]), "--n-draft", "3"))
    assert [(one.name, one.mode.value) for one in columns] == [
        (name, name) for name in ("plain", "draft", "lookup")
    ]
    assert [one.load.draft for one in columns] == [None, files["draft"], None]
    assert {one.request.speculation.n_draft for one in columns} == {3}


def test_auto_takes_a_draft_where_it_is_given_one(parse: Any, files: dict[str, Path]) -> None:
    alone, pair = parse("auto=auto", f"both=auto:draft={files['draft']}")
    assert [(one.mode, one.load.draft) for one in (alone, pair)] == [
        (Mode.AUTO, None),
        (Mode.AUTO, files["draft"]),
    ]
    columns = parse(modes="plain,draft,lookup,auto", flags=("--draft", str(files["draft"])))
    assert [(one.name, one.load.draft) for one in columns] == [
        ("plain", None), ("draft", files["draft"]), ("lookup", None), ("auto", files["draft"]),
    ]  # fmt: skip


def test_a_value_may_have_commas(parse: Any, files: dict[str, Path]) -> None:
    (only,) = parse(f"d=draft:n_draft=2,draft={files['a, b']}")
    assert only.load.draft == files["a, b"]
    assert only.request.speculation.n_draft == 2


def test_a_sweep_varies_every_column_but_plain(parse: Any) -> None:
    columns = parse("p=plain", "a=lookup:n_draft=3", "b=lookup:ngram_min=3", sweep="n_draft=1, 2,8,2")
    assert [one.name for one in columns] == [
        "p", "a n_draft=1", "a n_draft=2", "a n_draft=8", "b n_draft=1", "b n_draft=2", "b n_draft=8",
    ]  # fmt: skip
    assert [one.request.speculation.n_draft for one in columns] == [4, 1, 2, 8, 1, 2, 8]
    assert [one.request.speculation.ngram_min for one in columns] == [4, 4, 4, 4, 3, 3, 3]


@pytest.mark.parametrize("sweep", ["n_draft=1,2", "p-min=0,0.5", "ngram_max=5,6"])
def test_auto_is_not_swept_over_what_it_sets_itself(parse: Any, sweep: str) -> None:
    columns = parse("a=auto", "b=lookup", sweep=sweep)
    key, values = sweep.replace("-", "_").split("=")
    assert [one.name for one in columns] == ["a", *(f"b {key}={value}" for value in values.split(","))]
    with pytest.raises(UsageError, match="a sweep needs a column to vary"):
        parse("a=auto", sweep=sweep)


def test_auto_is_swept_over_what_matters_to_it(parse: Any) -> None:
    columns = parse("a=auto", sweep="temperature=0,0.8")
    assert [one.request.sampling.temperature for one in columns] == [0, 0.8]


@pytest.mark.parametrize(
    ("texts", "more", "said"),
    [
        ((), {}, "nothing to compare"),
        (("plain",), {}, "NAME=MODE"),
        (("=plain",), {}, "NAME=MODE"),
        (("x=fast",), {}, "column 'x': there is no mode 'fast'"),
        (("x=",), {}, "column 'x': there is no mode ''"),
        (("x=plain:n_draft",), {}, "column 'x': 'n_draft' is not of the form key=value"),
        (("x=plain:speed=2",), {}, "column 'x': there is no setting 'speed'"),
        (("x=plain:target=T",), {}, "column 'x': there is no setting 'target'"),
        (("x=lookup:n_draft=2,n_draft=3",), {}, "column 'x': n_draft is given twice"),
        (("x=lookup:n_draft=two",), {}, "column 'x': argument --n-draft: invalid int value: 'two'"),
        (("x=lookup:n_draft=99",), {}, "column 'x': n_draft 99 must lie between 0 and 31"),
        (("x=lookup:temperature=-1",), {}, "column 'x': temperature -1.0 must lie"),
        (("x=draft",), {}, "column 'x': mode draft needs a draft model"),
        (("x=plain", "x=lookup"), {}, "two columns are called 'x'"),
        (("lookup=plain",), {"modes": "lookup"}, "two columns are called 'lookup'"),
        (tuple(f"c{n}=plain" for n in range(7)), {}, "7 columns are too many"),
        (("x=lookup",), {"sweep": "n_draft"}, "the sweep 'n_draft' is not of the form"),
        (("x=lookup",), {"sweep": "speed=1,2"}, "there is no setting 'speed'"),
        (("x=plain",), {"sweep": "n_draft=1,2"}, "a sweep needs a column to vary"),
        (("x=lookup",), {"sweep": "n_draft=" + ",".join(map(str, range(25)))}, "makes 25 columns"),
    ],
)
def test_what_is_wrong_is_named(texts: tuple[str, ...], more: dict[str, str], said: str, parse: Any) -> None:
    with pytest.raises(UsageError) as error:
        parse(*texts, **more)
    assert said in str(error.value)


def test_a_draft_that_is_not_there_is_an_error_and_a_broken_one_is_left_to_its_runs(
    parse: Any, files: dict[str, Path]
) -> None:
    with pytest.raises(HeadstartError, match="no model 'nowhere'"):
        parse("x=draft:draft=nowhere")
    for mode in ("draft", "auto"):
        (only,) = parse(f"x={mode}:draft={files['broken']}")
        assert (only.load.target, only.load.draft) == (files["target"], files["broken"])


def test_a_broken_target_is_an_error(parse: Any, files: dict[str, Path]) -> None:
    files["target"].write_bytes(b"no model")
    with pytest.raises(HeadstartError, match="not a GGUF"):
        parse(f"x=draft:draft={files['broken']}")


def test_plain_is_added_where_it_is_missing() -> None:
    assert with_plain([LOOKUP, PLAIN]) == (LOOKUP, PLAIN)
    added, *rest = with_plain([SAMPLED, K4])
    assert rest == [SAMPLED, K4]
    assert (added.name, added.mode, added.load.draft) == ("plain", Mode.PLAIN, None)
    assert added.request.sampling.temperature == 0
    assert with_plain([SAMPLED])[0].request.sampling.temperature == 0.8
    assert with_plain([column("plain", Mode.LOOKUP)])[0].name == "plain 2"


@pytest.mark.parametrize("one", [PLAIN, K4, LOOKUP, SAMPLED], ids=lambda one: one.name)
def test_a_column_survives_json(one: Column) -> None:
    assert Column.from_json(one.as_json()) == one
    assert one.as_json()["settings"]["mode"] == one.mode.value

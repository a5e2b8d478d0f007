"""The built-in prompts and prompt files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from app.compare.record import Prompt
from app.compare.workloads import KINDS, read_prompts, workload
from app.core.errors import UsageError


def test_there_are_three_prompts_of_each_kind() -> None:
    prompts = workload("all")
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(KINDS, 3)
    assert len({prompt.id for prompt in prompts}) == len({prompt.prompt for prompt in prompts}) == 24
    for kind in ("edit", "summarise", "answer", "translate", "extract"):  # each with a text of some length
        assert all(100 < len(prompt.prompt.split()) < 420 for prompt in workload(kind))


def test_a_kind_and_the_mixture() -> None:
    assert [prompt.category for prompt in workload("edit")] == ["edit"] * 3
    assert [prompt.category for prompt in workload("mixed")] == list(KINDS)
    assert all(prompt == workload(prompt.category)[0] for prompt in workload("mixed"))
    with pytest.raises(UsageError, match=r"no workload 'chess'; choose one of code, edit"):
        workload("chess")


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "ä prompts.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_prompts_with_bom_crlf_turns_and_blank_lines(tmp_path: Path) -> None:
    text = (
        '\ufeff{"id": "a", "category": "code", "prompt": "é\u2028x"}\r\n'
        "\r\n"
        '{"id": 7, "turns": ["first", "second"], "reference": null}\r\n'
        '{"prompt": " no id "}'
    )
    assert read_prompts(written(tmp_path, text)) == (
        Prompt("a", "code", "é\u2028x"),
        Prompt("7", "other", "first"),
        Prompt("line 4", "other", " no id "),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        ('"text"', "line 2: not an object"),
        ('{"id": "b"}', "line 2: no prompt"),
        ('{"prompt": "  "}', "line 2: no prompt"),
        ('{"prompt": 5}', "line 2: no prompt"),
        ('{"prompt": "x", "turns": ["y"]}', "line 2: both a prompt and turns"),
        ('{"turns": []}', "line 2: turns is not a list"),
        ('{"turns": "x"}', "line 2: turns is not a list"),
        ('{"turns": [null]}', "line 2: no prompt"),
        ('{"id": ["x"], "prompt": "x"}', "line 2: the id must be"),
        ('{"id": true, "prompt": "x"}', "line 2: the id must be"),
        ('{"category": "", "prompt": "x"}', "line 2: the category must be"),
        ('{"id": "a", "prompt": "x"}', "line 2: the id 'a' is taken"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read_prompts(written(tmp_path, '{"id": "a", "prompt": "fine"}\n' + line))
    assert said in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for content, said in ((b"\n \n", "has no prompts"), (b"\xff\xfe{", "not UTF-8")):
        with pytest.raises(UsageError, match=said):
            read_prompts(written(tmp_path, content))
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "missing")

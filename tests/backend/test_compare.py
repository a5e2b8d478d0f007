"""compare on the command line and its runner, on SmolLM2."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.compare import history, machine, report, runner
from app.compare.audit import allowed_gap
from app.compare.record import Column, Prompt
from app.compare.runner import Ended, RunEnded, Runner
from app.core.paths import PROJECT
from app.core.settings import LoadSettings, Mode, Request, SamplingSettings, Scoring, SpeculationSettings
from app.worker.client import WorkerClient
from app.worker.messages import Failed, Finished, Message, Scored

DEADLINE_S = 180.0
COPY = "Repeat this sentence five times: the cat sat on the mat, and the dog sat on the log."
LINES = [
    {"id": "copy", "category": "edit", "prompt": COPY},
    {"id": "list", "category": "story", "turns": ["Name five colours.", "And five more."]},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts ä.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)), "utf-8")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "compare", *map(str, arguments)]
    return subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, encoding="utf-8", timeout=DEADLINE_S
    )


def compared(*arguments: object) -> dict[str, Any]:
    done = compare(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def small(target: Path) -> list[object]:
    return ["--target", target, "--n-ctx", 512, "--max-tokens", 16]


def test_the_json_recomputes_and_smollm2_is_identical(starter_model: Path, prompts: Path, home: Path) -> None:
    result = compared(
        *small(starter_model), "--prompts", prompts, "--repeats", 2, "--column", "plain=plain",
        "--column", f"k2=draft:draft={starter_model},n_draft=2", "--column", "lk=lookup:n_draft=6",
    )  # fmt: skip
    assert [column["name"] for column in result["columns"]] == ["plain", "k2", "lk"]
    assert [(run["repeat"], run["prompt_id"], run["column"]) for run in result["runs"]] == [
        (repeat, prompt, column)
        for repeat in (0, 1)
        for prompt in ("copy", "list")
        for column in ("plain", "k2", "lk")
    ]
    outputs = {run["prompt_id"]: run["output_ids"] for run in result["runs"] if run["column"] == "plain"}
    for run in result["runs"]:
        assert run["error"] is None
        assert run["output_ids"] == outputs[run["prompt_id"]]
        assert run["audit"]["verdict"] == "identical"
        assert run["stats"]["cached_tokens"] == 0
        assert run["stats"]["output_tokens"] == len(run["output_ids"])
    speeds = {
        (run["column"], run["prompt_id"], run["repeat"]): run["stats"]["tokens_per_s"]
        for run in result["runs"]
    }
    for part in result["summary"]:
        mine = [
            run for run in result["runs"]
            if run["column"] == part["column"] and part["category"] in (None, run["category"])
        ]  # fmt: skip
        ratios = [
            run["stats"]["tokens_per_s"] / speeds["plain", run["prompt_id"], run["repeat"]] for run in mine
        ]
        drafted, accepted = (sum(run["stats"][key] for run in mine) for key in ("drafted", "accepted"))
        assert part["speedup"] == {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        }
        assert part["acceptance_rate"] == (accepted / drafted if drafted else None)
        assert part["audit"] == {"identical": len(mine), "near_tie": 0, "different": 0}
    own_draft = next(part for part in result["summary"] if part["column"] == "k2")
    assert own_draft["acceptance_rate"] == 1.0
    machine = result["machine"]
    assert machine["threads"] >= 1
    assert machine["llama_cpp"]["version"]
    assert [model["quantization"] for model in machine["models"]] == ["Q4_1"]
    shown = compare("--show", "latest", "--markdown", "-", "--csv", home / "runs.csv")
    assert shown.stdout.startswith(f"## Comparison {result['id']}")
    assert len((home / "runs.csv").read_text("utf-8").splitlines()) == 13
    assert result["id"] in compare("--history").stdout


def test_one_prompt_with_plain_added(starter_model: Path, home: Path) -> None:
    done = compare(*small(starter_model), "--prompt", COPY, "--modes", "lookup", "--repeats", 1)
    assert done.returncode == 0, done.stderr
    assert "added the column 'plain'" in done.stderr
    assert "2/2 lookup, prompt:" in done.stderr
    assert "Lookup, K=4:" in done.stdout


def test_rows_say_what_failed_and_the_others_stand(starter_model: Path, tmp_path: Path, home: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    long = tmp_path / "long.jsonl"
    lines = [LINES[0], {"id": "long", "category": "long", "prompt": "word " * 600}]
    long.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    result = compared(
        *small(starter_model), "--prompts", long, "--repeats", 1, "--column", "plain=plain",
        "--column", f"bad=draft:draft={broken}", "--column", "lk=lookup",
    )  # fmt: skip
    errors = {(run["column"], run["prompt_id"]): run["error"] for run in result["runs"]}
    assert "llama.cpp cannot load" in errors["bad", "copy"]
    assert "broken.gguf" in errors["bad", "copy"]
    assert errors["plain", "copy"] is errors["lk", "copy"] is None
    for column in ("plain", "lk"):
        assert "the context holds 512" in errors[column, "long"]
    failed = [run for run in result["runs"] if run["error"]]
    assert {(run["stats"], run["finish_reason"], run["audit"]) for run in failed} == {(None, None, None)}
    lookup = next(part for part in result["summary"] if part["column"] == "lk")
    assert lookup["audit"] == {"identical": 1, "near_tie": 0, "different": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no target"),
        (("--target", "T"), "give prompts in one way"),
        (("--target", "T", "--prompt", "x", "--workload", "code"), "give prompts in one way"),
        (("--target", "T", "--prompt", " "), "the prompt is empty"),
        (("--target", "T", "--prompt", "x"), "nothing to compare"),
        (("--target", "T", "--prompt", "x", "--repeats", "0", "--modes", "plain"), "repeats 0"),
        (("--target", "T", "--workload", "chess", "--modes", "plain"), "no workload 'chess'"),
        (
            ("--target", "T", "--prompt", "x", "--column", "a=plain:n_draft=x"),
            "column 'a': argument --n-draft",
        ),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], said: str, home: Path) -> None:
    done = compare(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_stopped_in_the_middle_and_continued(starter_model: Path, home: Path) -> None:
    command = [sys.executable, "-m", "app", "compare", *map(str, small(starter_model))]
    command += [
        "--workload",
        "story",
        "--modes",
        "plain,lookup",
        "--repeats",
        "2",
        "--json",
        str(home / "a.json"),
    ]
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("3/12 "):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, errors
    assert "go on with: compare --continue" in errors
    before = history.load("latest")
    assert 3 <= len(before.runs) < 12
    assert len(json.loads((home / "a.json").read_text("utf-8"))["runs"]) == len(before.runs)
    result = compared("--continue", before.id)
    assert len(result["runs"]) == 12
    assert result["runs"][: len(before.runs)] == json.loads(json.dumps(report.as_json(before)))["runs"]
    assert compared("--continue", "latest")["runs"] == result["runs"]  # nothing is left to do


@pytest.fixture(scope="module")
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


def last(client: WorkerClient, load: LoadSettings, request: Request | Scoring) -> Message:
    deadline = time.monotonic() + DEADLINE_S
    for batch in client.submit(load, request).batches(0.2):
        assert time.monotonic() < deadline
        if batch and isinstance(batch[-1], Finished | Failed | Scored):
            return batch[-1]
    raise AssertionError


def test_equal_settings_twice_and_the_child_killed_between(
    client: WorkerClient, starter_model: Path, home: Path
) -> None:
    load = LoadSettings(starter_model, n_ctx=512)
    columns = [Column(name, load, Request((), max_tokens=16)) for name in ("a", "b")]
    facts = machine.facts(columns)
    over = runner.new(columns, [Prompt("p", "own", COPY)], 3, facts)
    killed = False
    events = []
    for event in Runner(client, over).events():
        events.append(event)
        if isinstance(event, RunEnded) and len(over.runs) == 2 and not killed and client.child_pid:
            os.kill(client.child_pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            killed = True
    assert events[-1] == Ended(cancelled=False)
    assert len(over.runs) == 6
    fine = [row for row in over.runs if not row.error]
    assert len(fine) >= 5  # the run that met the dead child may have failed; the next had a new one
    assert len({row.output_ids for row in fine}) == 1
    assert history.load(over.id) == over


def test_scoring_agrees_with_plain_decoding(client: WorkerClient, starter_model: Path) -> None:
    load = LoadSettings(starter_model, n_ctx=512)
    for sampling in (SamplingSettings(), SamplingSettings(repeat_penalty=1.3)):
        request = Request(
            (runner.ChatMessage("user", COPY),), max_tokens=8, sampling=sampling,
            speculation=SpeculationSettings(Mode.PLAIN), fresh=True,
        )  # fmt: skip
        answer = last(client, load, request)
        assert isinstance(answer, Finished)
        for place in (0, 3, 7):
            scored = last(client, load, Scoring(answer.prompt_ids, answer.output_ids[:place], sampling))
            assert isinstance(scored, Scored)
            assert scored.ids[0] == answer.output_ids[place]
            assert scored.logits[0] >= scored.logits[1]


def test_a_scoring_too_long_is_refused(client: WorkerClient, starter_model: Path) -> None:
    scoring = Scoring((1,) * 65, (), SamplingSettings())
    refused = last(client, LoadSettings(starter_model, n_ctx=64), scoring)
    assert isinstance(refused, Failed)
    assert "65 tokens" in refused.what


def test_the_coder_pair_differs_at_most_by_near_ties(
    coder_target: Path, coder_draft: Path, home: Path, prompts: Path
) -> None:
    result = compared(
        "--target", coder_target, "--n-ctx", 512, "--max-tokens", 32, "--prompts", prompts, "--repeats", 1,
        "--column", "plain=plain", "--column", f"k4=draft:draft={coder_draft}",
        "--column", "own=draft:draft=SmolLM2-135M-Instruct.Q4_1",
    )  # fmt: skip
    for run in result["runs"]:
        if run["column"] == "own":
            assert "cannot draft for" in run["error"]
            continue
        assert run["audit"]["verdict"] in ("identical", "near_tie")
        if run["audit"]["gap"] is not None:
            assert run["audit"]["gap"] <= allowed_gap("Q4_K_M")
    words = [verdict["text"] for verdict in result["verdicts"]]
    assert any(text.startswith("Draft 0.5B, K=4: ") for text in words)

"""``generate`` as the contract that scripts and measurements use."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import psutil
import pytest

from app import __main__ as command_line
from app import generate
from app.core.paths import PROJECT
from app.core.stats import Stats
from app.core.tokens import TokenEvent, TokenKind
from app.worker import client as client_module
from app.worker.client import WorkerClient
from app.worker.messages import RoundDone

DEADLINE_S = 120.0
QUESTION = "Name three colours of the rainbow."
# A raw prompt that goes on with words it already has: lookup hits, and misses.
COPY = "The red cat sat on the mat. The red dog sat on the log. The red cow sat on the"
OBJECT = ["schema", "mode", "target", "draft", "settings", "prompt_ids", "output_ids", "text",
          "finish_reason", "tokens", "stats"]  # fmt: skip
TOKEN = ["id", "text", "kind", "round", "position", "source", "target_prob", "draft_prob"]
STATS = {
    "time_to_first_token_s": float, "prefill_s": float, "prompt_tokens": int, "cached_tokens": int,
    "decode_s": float, "total_s": float, "output_tokens": int, "tokens_per_s": float,
    "target_passes": int, "rounds_with_draft": int, "drafted": int, "accepted": int,
    "acceptance_rate": float, "mean_acceptance_length": float, "tokens_per_pass": float,
    "drafted_per_position": list, "accepted_per_position": list,
    "draft_s": float, "verify_s": float, "other_s": float,
}  # fmt: skip
FLAGS = {
    "target", "draft", "mode", "system", "raw", "max_tokens", "n_draft", "p_min", "ngram_min", "ngram_max",
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "repeat_last_n", "seed", "stop", "n_ctx", "threads", "n_batch", "gpu_layers", "draft_gpu_layers",
    "cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v",
}  # fmt: skip
OUTPUT = {"accepted", "recovered", "bonus", "target"}
IN_ROUND = ["accepted", "rejected", "discarded", "recovered", "bonus", "target"]

Generate = Callable[..., dict[str, Any]]
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and terminals")


def command(target: Path, *arguments: object) -> list[str]:
    """The arguments of a short answer by one thread, which leaves the other cores alone."""
    settings = ("--threads", 1, "--n-ctx", 1024, "--max-tokens", 16)
    return [str(a) for a in ("generate", "--target", target, *settings, *arguments)]


def process(target: Path, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "app", *command(target, *arguments)],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        **streams,
    )


def main(*arguments: object) -> int:
    """Run a command here; what it changes of this process is put back."""
    before = signal.getsignal(signal.SIGINT)
    try:
        return command_line.main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.fixture
def ask(
    client: WorkerClient,
    starter_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Generate:
    """``generate --json`` on the starter model, with one child for all tests."""
    monkeypatch.setattr(client, "close", lambda: None)
    monkeypatch.setattr(generate, "WorkerClient", lambda: client)

    def ask(
        *arguments: object, target: Path = starter_model, prompt: str | None = QUESTION
    ) -> dict[str, Any]:
        prompts = [] if prompt is None else ["--prompt", prompt]
        assert main(*command(target, "--json", *prompts, *arguments)) == 0, capsys.readouterr().err
        out, err = capsys.readouterr()
        assert err == ""
        assert out.count("\n") == 1
        found: dict[str, Any] = json.loads(out)
        return found

    return ask


@pytest.fixture(scope="module")
def worse_draft(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter model without the work of its last layers: right often, and wrong often."""
    path = tmp_path_factory.mktemp("draft") / "worse draft.gguf"
    shutil.copyfile(starter_model, path)
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if re.fullmatch(r"blk\.2[5-9]\.(ffn_down|attn_output)\.weight", tensor.name):
            tensor.data[:] = 0
    reader.data.flush()  # type: ignore[attr-defined]
    return path


# The object


def check_object(result: dict[str, Any]) -> None:
    """Everything that the contract says of any result, counted again from its tokens."""
    assert list(result) == OBJECT
    assert result["schema"] == 1
    assert set(result["settings"]) == FLAGS
    assert result["settings"]["mode"] == result["mode"]
    for model in filter(None, (result["target"], result["draft"])):
        assert list(model) == ["name", "path", "size_bytes"]
        assert Path(model["path"]).stat().st_size == model["size_bytes"]
        assert model["name"] == Path(model["path"]).stem
    tokens, stats = result["tokens"], result["stats"]
    output = [token for token in tokens if token["kind"] in OUTPUT]
    assert [token["id"] for token in output] == result["output_ids"]
    assert "".join(token["text"] for token in output) == result["text"]
    assert all(isinstance(i, int) for i in result["prompt_ids"] + result["output_ids"])
    assert result["finish_reason"] in ("stop", "length", "context", "cancelled")

    rounds: dict[int, list[dict[str, Any]]] = {}
    for token in tokens:
        check_token(token, result["mode"])
        rounds.setdefault(token["round"], []).append(token)
    assert list(rounds) == list(range(len(rounds)))
    for place, members in rounds.items():
        kinds = [token["kind"] for token in members]
        assert kinds == sorted(kinds, key=IN_ROUND.index)
        draft = [token for token in members if token["position"] is not None]
        assert [token["position"] for token in draft] == list(range(len(draft)))
        own = members[len(draft) :]
        if place < len(rounds) - 1 or result["finish_reason"] != "stop":
            assert len(own) == 1
        if own:
            untested = [kind for kind in kinds if kind in ("rejected", "discarded")]
            expected = "target" if not draft else "recovered" if untested else "bonus"
            assert own[0]["kind"] == expected
            assert (kinds.count("rejected") == 1) == (expected == "recovered")

    assert list(stats) == list(STATS)
    for name, kind in STATS.items():
        assert stats[name] is None or type(stats[name]) is kind, name
    drafts = [[token for token in members if token["position"] is not None] for members in rounds.values()]
    drafted = [sum(len(draft) > i for draft in drafts) for i in range(max(map(len, drafts)))]
    accepted = [
        sum(len(draft) > i and draft[i]["kind"] == "accepted" for draft in drafts)
        for i in range(len(drafted))
    ]
    assert stats["drafted_per_position"] == drafted
    assert stats["accepted_per_position"] == accepted
    assert stats["drafted"] == sum(drafted)
    assert stats["accepted"] == sum(accepted) == sum(token["kind"] == "accepted" for token in tokens)
    assert stats["rounds_with_draft"] == sum(map(bool, drafts))
    assert stats["target_passes"] == len(rounds)
    assert stats["output_tokens"] == len(output)
    assert stats["prompt_tokens"] == len(result["prompt_ids"]) > stats["cached_tokens"] >= 0
    assert stats["tokens_per_pass"] == pytest.approx(len(output) / len(rounds))
    if stats["drafted"]:
        assert stats["acceptance_rate"] == pytest.approx(stats["accepted"] / stats["drafted"])
        length = 1 + stats["accepted"] / stats["rounds_with_draft"]
        assert stats["mean_acceptance_length"] == pytest.approx(length)
    else:
        assert stats["acceptance_rate"] is stats["mean_acceptance_length"] is None
    parts = stats["draft_s"] + stats["verify_s"] + stats["other_s"]
    assert parts == pytest.approx(stats["decode_s"], abs=1e-6)
    assert min(stats["draft_s"], stats["verify_s"], stats["other_s"]) >= 0
    assert stats["prefill_s"] + stats["decode_s"] == pytest.approx(stats["total_s"], abs=1e-6)
    assert stats["prefill_s"] < stats["time_to_first_token_s"] <= stats["total_s"]
    assert stats["tokens_per_s"] == pytest.approx(len(output) / stats["decode_s"])
    modelled = any(token["source"] == "model" for token in tokens)
    assert (stats["draft_s"] > 0) == modelled or result["mode"] == "auto"


def check_token(token: dict[str, Any], mode: str) -> None:
    assert list(token) == TOKEN
    assert isinstance(token["text"], str)
    drafted = token["kind"] in ("accepted", "rejected", "discarded")
    assert (token["position"] is not None) == drafted
    sources = {"draft": ["model"], "lookup": ["lookup"], "auto": ["model", "lookup"]}
    assert token["source"] in (sources[mode] if drafted else [None])
    assert (token["target_prob"] is None) == (token["kind"] == "discarded")
    assert (token["draft_prob"] is not None) == (token["source"] == "model")
    for prob in (token["target_prob"], token["draft_prob"]):
        assert prob is None or 0 <= prob <= 1


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", ["plain", "draft", "lookup", "auto"])
def test_the_object_is_the_contract(mode: str, sampled: bool, ask: Generate, worse_draft: Path) -> None:
    draft = ["--draft", worse_draft] if mode in ("draft", "auto") else []
    sampling = ["--temperature", 1, "--seed", 5] if sampled else []
    lookup = ["--ngram-min", 2] if mode == "lookup" else []
    result = ask("--mode", mode, *draft, *lookup, *sampling, "--max-tokens", 40, "--raw", prompt=COPY)
    check_object(result)
    assert result["mode"] == mode
    assert (result["draft"] is not None) == (mode in ("draft", "auto"))
    if mode == "plain":
        assert {token["kind"] for token in result["tokens"]} == {"target"}
    elif mode != "auto":  # what auto does depends on this machine
        kinds = {token["kind"] for token in result["tokens"]}
        assert {"accepted", "rejected", "discarded", "recovered"} <= kinds


def test_the_defaults_are_those_of_the_contract(ask: Generate, starter_model: Path) -> None:
    settings = vars(
        command_line.parser().parse_args(["generate", "--target", str(starter_model), "--prompt", "Hi"])
    )
    assert {name: settings[name] for name in FLAGS - {"target"}} == {
        "draft": None, "mode": None, "system": None, "raw": False, "max_tokens": 256, "n_draft": 4,
        "p_min": 0, "ngram_min": 4, "ngram_max": 6, "temperature": 0, "top_k": 40, "top_p": 1, "min_p": 0,
        "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "repeat_last_n": 64, "seed": 0,
        "stop": [], "n_ctx": 4096, "threads": None, "n_batch": 512, "gpu_layers": None,
        "draft_gpu_layers": None, "cache_type_k": "f16", "cache_type_v": "f16",
        "draft_cache_type_k": "f16", "draft_cache_type_v": "f16",
    }  # fmt: skip


def test_a_draft_implies_its_mode(ask: Generate, starter_model: Path) -> None:
    assert ask("--max-tokens", 1)["mode"] == "plain"
    assert ask("--max-tokens", 1, "--draft", starter_model)["mode"] == "draft"
    looked_up = ask("--max-tokens", 1, "--draft", starter_model, "--mode", "lookup")
    assert (looked_up["mode"], looked_up["draft"]) == ("lookup", None)


def test_a_target_is_a_path_or_a_listed_name(ask: Generate, starter_model: Path) -> None:
    by_name = ask("--max-tokens", 2, target=Path(starter_model.stem))
    assert by_name["target"]["path"] == str(starter_model)
    assert by_name["output_ids"] == ask("--max-tokens", 2)["output_ids"]


# The same text in every mode


@pytest.mark.parametrize("n_draft", [1, 8, 31])
def test_a_model_as_its_own_draft_writes_the_same(
    n_draft: int, ask: Generate, starter_model: Path, worse_draft: Path
) -> None:
    plain = ask("--max-tokens", 32)
    for draft in (starter_model, worse_draft):
        result = ask("--max-tokens", 32, "--draft", draft, "--n-draft", n_draft)
        assert result["output_ids"] == plain["output_ids"]
        assert result["text"] == plain["text"]
        assert result["prompt_ids"] == plain["prompt_ids"]
        assert len(result["stats"]["drafted_per_position"]) <= n_draft
        if draft == starter_model:
            assert result["stats"]["acceptance_rate"] == 1


def test_no_draft_tokens_is_plain_decoding(ask: Generate, starter_model: Path) -> None:
    result = ask("--draft", starter_model, "--n-draft", 0)
    assert result["output_ids"] == ask()["output_ids"]
    assert result["stats"]["acceptance_rate"] is None
    assert {token["kind"] for token in result["tokens"]} == {"target"}


def test_auto_writes_the_same(ask: Generate, worse_draft: Path) -> None:
    for prompt in (COPY, QUESTION):
        plain = ask("--max-tokens", 60, "--raw", prompt=prompt)
        for draft in ([], ["--draft", worse_draft]):
            for _ in range(2):  # measured, and with what was learned
                result = ask("--max-tokens", 60, "--raw", "--mode", "auto", *draft, prompt=prompt)
                assert result["output_ids"] == plain["output_ids"]
                assert (result["text"], result["finish_reason"]) == (plain["text"], plain["finish_reason"])


def test_lookup_writes_the_same(ask: Generate) -> None:
    plain = ask("--max-tokens", 60, "--raw", prompt=COPY)
    result = ask("--max-tokens", 60, "--raw", "--mode", "lookup", "--n-draft", 8, prompt=COPY)
    assert result["output_ids"] == plain["output_ids"]
    assert result["stats"]["accepted"] > 10


def test_lookup_copies_an_edited_text_fast(ask: Generate, coder_target: Path) -> None:
    code = (
        "def indent(text, margin):\n"
        "    lines = text.split('\\n')\n"
        "    return '\\n'.join(margin + line for line in lines if line != margin)\n"
    )
    result = ask(
        "--mode", "lookup", "--n-draft", 8, "--max-tokens", 60,
        target=coder_target,
        prompt=f"Rename `margin` to `prefix`. Answer with the code alone.\n\n{code}",
    )  # fmt: skip
    assert "def indent(text, prefix)" in result["text"]
    assert result["stats"]["tokens_per_pass"] > 1.5


@pytest.mark.parametrize("mode", ["plain", "draft", "lookup"])
def test_seeds(mode: str, ask: Generate, worse_draft: Path) -> None:
    draft = ["--draft", worse_draft] if mode == "draft" else []

    def ids(seed: int) -> Any:
        return ask("--mode", mode, *draft, "--temperature", 1, "--seed", seed, "--raw", prompt=COPY)[
            "output_ids"
        ]

    assert ids(42) == ids(42) != ids(43)
    if mode == "plain":
        assert ids(99999999999999999999) == ids(99999999999999999999)


# Prompts


def test_a_system_prompt_comes_first(ask: Generate) -> None:
    with_system = ask("--system", "You are a pirate.", "--max-tokens", 1)
    assert with_system["settings"]["system"] == "You are a pirate."
    assert with_system["prompt_ids"] != ask("--max-tokens", 1)["prompt_ids"]


def test_a_raw_prompt_is_taken_as_it_is(ask: Generate) -> None:
    chat = ask("--max-tokens", 4)
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    raw = ask("--raw", "--max-tokens", 4, prompt=text)
    assert raw["prompt_ids"] == chat["prompt_ids"]
    assert raw["output_ids"] == chat["output_ids"]
    assert ask("--raw", "--max-tokens", 1, prompt="<|im_end|>")["prompt_ids"] == [2]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfa \xc3\xbc\n", b"a \xc3\xbc\r\n"], ids=["BOM", "CRLF"])
def test_a_prompt_file_reads_as_its_text(content: bytes, ask: Generate, tmp_path: Path) -> None:
    file = tmp_path / "frage für später.txt"
    file.write_bytes(content)
    from_file = ask("--prompt-file", file, "--max-tokens", 1, prompt=None)
    assert from_file["prompt_ids"] == ask("--max-tokens", 1, prompt="a ü\n")["prompt_ids"]


@pytest.mark.parametrize("text", ["--debug", "--json", "--no-such-flag", "-h", "-5", "a=b", "@file"])
def test_a_text_that_looks_like_a_flag_is_a_text(text: str, ask: Generate, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text, "utf-8")
    answer = ask("--max-tokens", 1, "--system", text, "--stop", text, prompt=text)
    assert answer["settings"]["system"] == text
    assert answer["settings"]["stop"] == [text]
    from_file = ask("--max-tokens", 1, "--prompt-file", file, f"--system={text}", prompt=None)
    assert answer["prompt_ids"] == from_file["prompt_ids"]


def test_the_first_of_several_stop_strings_ends_the_answer(ask: Generate, starter_model: Path) -> None:
    prompt = "1, 2, 3, 4, 5, 6,"
    free = ask("--raw", "--max-tokens", 30, prompt=prompt)
    assert free["text"].startswith(" 7, 8, 9, 10, 11")
    for mode in (["--mode", "plain"], ["--mode", "lookup"], ["--draft", starter_model, "--n-draft", 8]):
        cut = ask(
            "--raw", "--max-tokens", 30, "--stop", "never", "--stop", "9, 1", "--stop", ", 9", *mode,
            prompt=prompt,
        )  # fmt: skip
        check_object(cut)
        assert cut["finish_reason"] == "stop"
        assert cut["text"] == " 7, 8"
        n = len(cut["output_ids"])
        assert cut["output_ids"] == free["output_ids"][:n]
        assert cut["settings"]["stop"] == ["never", "9, 1", ", 9"]


def test_an_answer_that_ends_by_itself_keeps_its_last_id(ask: Generate) -> None:
    result = ask("--max-tokens", 200, prompt="Say hello.")
    check_object(result)
    assert result["finish_reason"] == "stop"
    assert (result["output_ids"][-1], result["tokens"][-1]["text"]) == (2, "")


def test_the_context_ends_an_answer(ask: Generate) -> None:
    result = ask("--n-ctx", 64, "--max-tokens", 500, "--mode", "lookup", prompt="Tell a long story.")
    check_object(result)
    assert result["finish_reason"] == "context"
    assert len(result["prompt_ids"]) + len(result["output_ids"]) == 65


# Events


@pytest.mark.parametrize("mode", ["plain", "draft"])
def test_events_tell_the_same_as_the_object(
    mode: str, ask: Generate, starter_model: Path, worse_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--draft", worse_draft] if mode == "draft" else []
    result = ask(*arguments)
    assert main(*command(starter_model, "--events", "--prompt", QUESTION, *arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    start, *rounds, end = [json.loads(line) for line in out.splitlines()]
    assert start["event"] == "start"
    assert start["prompt_ids"] == result["prompt_ids"]
    assert [event["event"] for event in rounds] == ["round"] * len(rounds)
    assert [event["round"] for event in rounds] == list(range(len(rounds)))
    assert all(list(event) == ["event", "round", "tokens", "t"] for event in rounds)
    times = [event["t"] for event in rounds]
    assert times == sorted(times)
    assert times[0] > 0
    assert [token for event in rounds for token in event["tokens"]] == end["tokens"] == result["tokens"]
    assert end.pop("event") == "end"
    check_object(end)
    for key in set(OBJECT) - {"stats"}:
        assert end[key] == result[key]


# Wrong usage and failures


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit status and the one line of a command that must fail."""
    status = main(*arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert "Traceback" not in err
    return status, err


@pytest.mark.parametrize(
    "flags",
    [
        "--temperature nan", "--temperature inf", "--temperature -1", "--temperature 1e999",
        "--temperature x", "--top-k -1", "--top-k 1.5",
        "--top-p 0", "--top-p 1.5", "--top-p nan", "--min-p 1", "--min-p -0.1",
        "--repeat-penalty 0", "--repeat-penalty inf", "--presence-penalty 11", "--frequency-penalty nan",
        "--repeat-last-n -2", "--seed -1", "--seed 1.0", "--max-tokens 0", "--max-tokens -5",
        "--n-draft -1", "--n-draft 32", "--p-min 1.1", "--p-min nan", "--ngram-min 0", "--ngram-max 17",
        "--ngram-min 5 --ngram-max 3", "--n-ctx 0", "--n-ctx 7", "--n-ctx -1", "--n-ctx 4294967297",
        "--n-batch 0", "--n-batch 4294967297", "--threads 0", "--threads -1", "--threads 1000000",
        "--gpu-layers -1", "--gpu-layers 99999999999", "--draft-gpu-layers -1", "--cache-type-k q9",
        "--mode fast", "--mode draft", "--stop=", "--json --events", "--no-such-flag", "--raw --system S",
        "--prompt-file F", "--n-ctx " + "9" * 5000,
    ],
    ids=lambda flags: flags[:40],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_status_2(
    flags: str, starter_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--target", starter_model, "--prompt", "Hi", *flags.split(" ")]
    status, line = refused(capsys, *arguments)
    assert status == 2
    if flags.startswith("--") and not flags.startswith(("--json", "--raw")):
        words = flags.split()[0].lstrip("-").rstrip("=").replace("-", ".")
        assert re.search({"n.ctx": "context|n.ctx", "n.batch": "batch"}.get(words, words), line), line


@pytest.mark.parametrize(
    "arguments", [["generate"], ["generate", "--target", "x"], ["generate", "--prompt", "x"], ["bake"]]
)
def test_what_is_missing_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, line = refused(capsys, *arguments)
    assert status == 2
    assert "--help" in line


@pytest.mark.parametrize("make", ["missing", "folder", "latin-1"])
def test_a_prompt_file_that_cannot_be_read_is_named(
    make: str, starter_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "frage.txt"
    if make == "folder":
        file.mkdir()
    if make == "latin-1":
        file.write_bytes("für".encode("latin-1"))
    status, line = refused(capsys, *command(starter_model, "--prompt-file", file))
    assert status == 2
    assert str(file) in line
    assert {"missing": "No such file", "folder": "directory", "latin-1": "UTF-8"}[make] in line


def test_an_unknown_model_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, line = refused(capsys, *command(Path("no such\nmodel\x1b[31m"), "--prompt", "Hi"))
    assert status == 1
    assert "\x1b" not in line


def test_failures_of_the_child_are_one_line(
    ask: Generate, starter_model: Path, coder_draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(starter_model.read_bytes()[:2_000_000])
    status, line = refused(capsys, *command(cut, "--prompt", "Hi", "--json"))
    assert (status, "cut.gguf" in line) == (1, True)
    status, line = refused(capsys, *command(starter_model, "--draft", coder_draft, "--prompt", "Hi"))
    assert (status, "cannot draft for" in line) == (1, True)
    status, line = refused(capsys, *command(starter_model, "--prompt", "many words " * 2000))
    assert status == 2
    assert re.search(r"has 40\d\d tokens .* holds 1024; .*raise the context", line)
    status, line = refused(capsys, *command(starter_model, "--raw", "--prompt", ""))
    assert (status, "empty" in line) == (2, True)


def test_debug_shows_the_traceback(starter_model: Path) -> None:
    with process(starter_model, "--prompt", "Hi", "--threads", 0, "--debug") as child:
        out, err = child.communicate()
    assert child.returncode == 1
    assert out == ""
    assert "Traceback" in err
    assert "UsageError" in err


@posix_only
@pytest.mark.parametrize("debug", [False, True])
def test_the_child_dies(debug: bool, starter_model: Path) -> None:
    flags = ["--debug"] if debug else []
    with process(
        starter_model, "--prompt", "Tell a long story.", "--max-tokens", 900, "--events", *flags
    ) as it:
        read_until_a_round(it)
        (child,) = children(it.pid)
        child.kill()
        out, err = rest_of(it)
    assert it.returncode == 1
    assert '"end"' not in out
    if debug:
        assert "llama_context" in err
        assert "Traceback" in err
    else:
        assert re.fullmatch(r"error: the model process died: [^\n]*SIGKILL[^\n]*--debug\n", err)


# Output


def children(pid: int) -> list[psutil.Process]:
    """The processes that hold models, not the helper that multiprocessing starts."""
    found = psutil.Process(pid).children()
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


def read_until_a_round(events: subprocess.Popen[str]) -> list[str]:
    assert events.stdout is not None
    lines = []
    for line in events.stdout:
        lines.append(line)
        if '"event": "round"' in line:
            return lines
    raise AssertionError(f"no round among {lines}: {events.stderr and events.stderr.read()}")


def rest_of(it: subprocess.Popen[str]) -> tuple[str, str]:
    """What is still to come; communicate() would lose what was read ahead."""
    assert it.stdout is not None
    assert it.stderr is not None
    return it.stdout.read(), it.stderr.read()


def interrupt(child: subprocess.Popen[str]) -> None:
    """What Ctrl-C does: the whole group is told."""
    os.killpg(child.pid, signal.SIGINT)


@posix_only
def test_ctrl_c_ends_the_answer_with_what_there_is(starter_model: Path) -> None:
    with process(
        starter_model,
        "--prompt",
        "Tell a long story.",
        "--max-tokens",
        900,
        "--events",
        start_new_session=True,
    ) as it:
        lines = read_until_a_round(it)
        interrupt(it)
        out, err = rest_of(it)
    assert it.returncode == 130
    assert err == ""
    *rounds, end = [json.loads(line) for line in [*lines, *out.splitlines()][1:]]
    assert end.pop("event") == "end"
    check_object(end)
    assert end["finish_reason"] == "cancelled"
    assert 0 < len(end["output_ids"]) < 900
    assert [token for event in rounds for token in event["tokens"]] == end["tokens"]


@posix_only
def test_more_than_one_ctrl_c_ends_even_a_stuck_child_at_once(starter_model: Path) -> None:
    with process(starter_model, "--prompt", "Tell a long story.", "--max-tokens", 900, "--events") as it:
        read_until_a_round(it)
        (child,) = children(it.pid)
        child.suspend()
        deadline = time.monotonic() + client_module.PATIENCE_S  # when a single one would have ended it
        while it.poll() is None and time.monotonic() < deadline:
            it.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, err = rest_of(it)
        assert it.returncode == 130
    assert "Traceback" not in err
    assert not child.is_running()


@posix_only
def test_ctrl_c_while_the_child_starts(starter_model: Path) -> None:
    with process(starter_model, "--prompt", QUESTION, "--json", start_new_session=True) as it:
        wait_for(lambda: children(it.pid))
        interrupt(it)
        out, err = it.communicate()
    assert (it.returncode, err) == (130, "")
    result = json.loads(out)
    assert list(result) == OBJECT
    assert (result["finish_reason"], result["output_ids"], result["text"]) == ("cancelled", [], "")
    assert result["stats"]["tokens_per_s"] is result["stats"]["decode_s"] is None


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@posix_only
def test_a_reader_that_goes_away_is_no_error(starter_model: Path) -> None:
    with process(starter_model, "--prompt", "Tell a long story.", "--max-tokens", 900, "--events") as it:
        assert it.stdout is not None
        assert json.loads(it.stdout.readline())["event"] == "start"
        (child,) = children(it.pid)
        it.stdout.close()
        assert it.stderr is not None
        assert it.stderr.read() == ""
        assert it.wait() == 1
    assert not child.is_running()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_file_gets_the_text_alone(encoding: str, starter_model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C", "FORCE_COLOR": "1"}
    prompt = ("--raw", "--prompt", "🦊 🐢 🦉 🦊 🐢 🦉 🦊 🐢 🦉 🦊", "--mode", "lookup", "--max-tokens", 9)
    with (
        (tmp_path / "out.txt").open("wb") as out,
        process(starter_model, *prompt, stdout=out, env=environment) as it,
    ):
        _, err = it.communicate()
    assert (it.returncode, err) == (0, "")
    assert (tmp_path / "out.txt").read_text("utf-8") == " 🐢 🐢 🐢\n"


def on_a_terminal(target: Path, *arguments: object, **variables: str) -> str:
    """What a terminal gets."""
    import pty

    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | variables
    with process(target, *arguments, stdout=theirs, stderr=theirs, env=environment) as it:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert it.returncode == 0
    return shown.decode()


@posix_only
def test_a_terminal_shows_colours_and_a_line_of_figures(worse_draft: Path, starter_model: Path) -> None:
    shown = on_a_terminal(
        starter_model, "--draft", worse_draft, "--raw", "--prompt", COPY, "--max-tokens", 24
    )
    for kind in (TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.REJECTED):
        assert generate.COLOURS[kind] in shown
    assert shown.startswith("\r\x1b[Kloading ")
    assert re.search(
        r"\n24 tokens · [\d.]+ tokens/s · [\d.]+x plain \(estimate\) · \d+% accepted\r\n$", shown
    )


@posix_only
def test_no_color_shows_the_text_alone(worse_draft: Path, starter_model: Path) -> None:
    shown = on_a_terminal(
        starter_model, "--draft", worse_draft, "--raw", "--prompt", COPY, "--max-tokens", 8, NO_COLOR="1"
    )
    assert "\x1b[" not in shown.replace("\r\x1b[K", "")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_control_character_of_a_model_reaches_a_terminal(
    no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    nasty = "".join(map(chr, range(32))) + "\x7f\x80\x9b31m\x85"
    fine = "a\u00a0b\u202fc\u3000d 👩\u200d👧 é\u0301 שלום"
    token = TokenEvent(1, nasty + fine, TokenKind.TARGET, 0, None, None, 0.5, None)
    generate._Text().take(RoundDone(0, (token,), Stats(), 0.1, None))
    shown = terminal.getvalue()
    assert fine in shown
    assert {c for c in shown if c < " " or "\x7f" <= c <= "\x9f"} == {"\n", "\t"}


def test_json_on_a_terminal_is_plain_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    generate._print_json({"text": "\x9b31m\x1b[31m ü"})
    assert json.loads(terminal.getvalue()) == {"text": "\x9b31m\x1b[31m ü"}
    assert terminal.getvalue().isascii()
    assert "\x1b" not in terminal.getvalue()


@posix_only
def test_a_full_disk_is_one_line(starter_model: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w") as out, process(starter_model, "--prompt", "Hi", "--json", stdout=out) as it:
        _, err = it.communicate()
    assert it.returncode == 1
    assert re.fullmatch(r"error: [^\n]*No space left[^\n]*\n", err)

"""The main job on the real starter model, in the program as people start it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from app.core.paths import PROJECT
from tests.ui.conftest import Visitor
from tests.ui.test_page import ask, choose, enter, finished, output

OFFLINE = {
    "http_proxy": "no proxy at all",
    "HTTPS_PROXY": ":::",
    "all_proxy": "socks9://x:y",
    "HF_HUB_OFFLINE": "1",
}

LONG = "Write a long story about a lighthouse keeper."  # 600 tokens and more


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def answers(self) -> bool:
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(self.address, timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def workers(self) -> list[psutil.Process]:
        """Processes of the program that hold a model: a child of python's spawn, not its tracker."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def start(home: Path) -> Program:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "gui", "--port", str(port), "--no-browser"],
        cwd=PROJECT,
        env={**os.environ, **OFFLINE, "HEADSTART_HOME": str(home)},
        stdout=(home / "out.txt").open("wb"),
        stderr=subprocess.STDOUT,
    )
    program = Program(process, port, home)
    assert until(program.answers), (home / "out.txt").read_text("utf-8")
    return program


@pytest.fixture
def program(tmp_path: Path, starter_model: Path) -> Iterator[Program]:
    program = start(tmp_path)
    yield program
    if program.process.poll() is None:
        program.process.kill()
        program.process.wait()


def test_the_main_job(program: Program, visitor: Visitor, starter_model: Path) -> None:
    page = visitor.open(program.address)
    choose(page, "#preset", "SmolLM2")
    expect(page.locator("#target")).to_have_value(str(starter_model))
    expect(page.locator("#mode :checked")).to_have_value("auto")
    # Auto goes by the clock; look-ups alone write the same rounds again.
    page.click("#mode label:has-text('Lookup')")
    expect(page.locator("#mode :checked")).to_have_value("lookup")
    page.click(".hs-settings-toggle")
    enter(page, "#max_tokens input", "48")
    page.keyboard.press("Escape")
    question = "Repeat this line three times: the cat sat on the mat and the dog sat on the <b>cat</b>."
    ask(page, question)
    finished(page)
    assert page.query_selector(".hs-text .k-a")
    assert page.query_selector(".hs-text .k-x")
    n_draft = page.evaluate("document.querySelector('#n_draft input[type=number]').value")
    flags = f"--mode lookup --n-draft {n_draft} --max-tokens 48 --json".split()
    named = ["--target", str(starter_model), "--prompt", question]
    made = subprocess.run(
        [sys.executable, "-m", "app", "generate", *flags, *named],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    answer = json.loads(made.stdout)
    assert output(page) == answer["text"]
    for kind, code in {"accepted": "a", "recovered": "c", "rejected": "x", "discarded": "d"}.items():
        visible = [token for token in answer["tokens"] if token["kind"] == kind]
        assert len(page.query_selector_all(f".hs-text .k-{code}")) == len(visible)
    assert page.query_selector(".hs-text b") is None

    page.click(".hs-settings-toggle")
    enter(page, "#max_tokens input", "2000")
    page.keyboard.press("Escape")
    page.click(".hs-new")
    expect(page.locator(".hs-turn")).to_have_count(0)
    ask(page, LONG)
    expect(page.locator(".hs-turn:last-child .hs-text span").nth(5)).to_be_attached()
    page.click(".hs-stop")
    expect(page.locator(".hs-turn:last-child .hs-summary")).to_contain_text("Stopped")

    page.click(".hs-new")
    expect(page.locator(".hs-turn")).to_have_count(0)
    ask(page, LONG)
    expect(page.locator(".hs-turn:last-child .hs-text span").nth(5)).to_be_attached()
    [worker] = program.workers()
    worker.kill()
    expect(page.locator(".hs-turn:last-child .hs-failed")).to_be_visible()
    assert output(page) != ""
    page.click(".hs-new")
    ask(page, "Hi")
    finished(page)
    assert output(page) != ""
    assert program.workers()[0].pid != worker.pid


@pytest.mark.parametrize("way", ["quit", "SIGINT", "SIGTERM"])
def test_it_ends_with_everything(program: Program, visitor: Visitor, way: str) -> None:
    running = program.home / "running.json"
    assert until(running.exists)
    assert json.loads(running.read_text("utf-8")) == {
        "pid": program.process.pid,
        "port": program.port,
        "project": str(PROJECT),
    }
    page = visitor.open(program.address)
    choose(page, "#preset", "SmolLM2")
    ask(page, LONG)
    expect(page.locator(".hs-turn:last-child .hs-text span").nth(5)).to_be_attached()
    workers = program.workers()
    assert workers
    if way == "quit":
        page.click(".hs-quit")
        page.click(".hs-leave")
    else:
        program.process.send_signal(getattr(signal, way))
    assert program.process.wait(timeout=10) == 0
    assert psutil.wait_procs(workers, timeout=5)[1] == []
    assert not running.exists()
    assert "Traceback" not in (program.home / "out.txt").read_text("utf-8")

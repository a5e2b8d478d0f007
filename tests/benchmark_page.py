"""Prints what the page costs while a long answer is written: the browser's work, and the answer's speed.

    python tests/benchmark_page.py work [--tokens 4000]
    python tests/benchmark_page.py speed [--repeats 3]

Run it with .venv's Python on a machine that does nothing else. ``work``: a scripted model writes about 400
tokens a second, and the browser's own tracing tells what its main thread did. ``speed``: a real model answers
plainly, in the page and by the command line in turns; page and model share the processor's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.core.paths import PROJECT, models_dir
from app.ui.page import build, serve
from tests.ui.conftest import BROWSER_FLAGS, ready
from tests.ui.fakes import FakeClient, FakeShelf, Script
from tests.ui.test_page import ask, choose, enter
from tests.ui.test_real import start

MODEL = models_dir() / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QUESTION = "Write the integers from 1 to 2000 in order, separated by commas, and nothing else."
MAX_TOKENS = 1000  # it counts a little shorter
CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline"]
# Playwright's own waiting looks at every frame, which makes the browser draw sixty a second.
UNTIL_THE_END = """() => new Promise((done) => setInterval(
    () => document.querySelector(".hs-summary") && done(), 500))"""
COUNT_UPDATES = """() => {
    window.updates = 0;
    new MutationObserver(() => { window.updates += 1; }).observe(
        document.querySelector(".hs-chat"), {childList: true, subtree: true, characterData: true});
}"""


def work(browser: Browser, tokens: int) -> None:
    """The main thread's work while a scripted answer comes."""
    client, shelf = FakeClient(), FakeShelf()
    client.script = Script(
        [f" word{i}" + ("\n" if i % 15 == 14 else "") for i in range(tokens)], pause_s=0.01
    )
    served = build(client, shelf, lambda: None)
    page = opened(browser, serve(served, None))
    page.evaluate(COUNT_UPDATES)
    browser.start_tracing(page=page, categories=CATEGORIES)
    answered(page)
    busy, tasks = work_of(json.loads(browser.stop_tracing())["traceEvents"])
    updates, ms = int(page.evaluate("window.updates")), sorted(1000 * task for task in tasks)
    print(
        f"{tokens} tokens in {updates} updates, {1000 * busy / updates:.1f} ms of the browser each; "
        f"tasks of 1 ms or more: median {statistics.median(ms):.0f} ms, 99 % {ms[len(ms) * 99 // 100]:.0f} "
        f"ms, longest {ms[-1]:.0f} ms"
    )
    page.close()
    client.close()
    served.close(verbose=False)


def speed(browser: Browser, repeats: int) -> None:
    """A real answer's speed with a page and without."""
    shares = []
    with tempfile.TemporaryDirectory() as home:
        program = start(Path(home))
        for _ in range(repeats):
            alone = by_command()
            page = opened(browser, program.address)
            choose(page, "#target", MODEL.stem)
            expect(page.locator("#target")).to_have_value(str(MODEL))
            page.click("#mode label:has-text('Plain')")
            page.click(".hs-settings-toggle")
            enter(page, "#max_tokens input", str(MAX_TOKENS))
            page.keyboard.press("Escape")
            answered(page)
            shown = float(page.locator("[data-figure=speed]").inner_text().split()[0].replace(",", ""))
            shares.append(shown / alone)
            print(f"{shown:.1f} tokens/s in the page, {alone:.1f} without: {shares[-1]:.3f}", flush=True)
            page.close()
        program.process.terminate()
        program.process.wait()
    print(
        f"with the page / without: {statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"
    )


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_page()
    page.set_default_timeout(600_000)
    page.goto(address)
    ready(page)
    return page


def answered(page: Page) -> None:
    ask(page, QUESTION)
    page.evaluate(UNTIL_THE_END)


def work_of(events: list[dict[str, object]]) -> tuple[float, list[float]]:
    """Busy seconds of the busiest renderer's main thread, in all and by task of 1 ms or more."""
    by_thread: dict[tuple[object, object], list[float]] = {}
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"  # type: ignore[index]
    }
    for event in events:
        thread = event["pid"], event["tid"]
        if event["name"] == "RunTask" and thread in mains:
            by_thread.setdefault(thread, []).append(float(event.get("dur", 0)) / 1e6)  # type: ignore[arg-type]
    tasks = max(by_thread.values(), key=sum)
    return sum(tasks), [task for task in tasks if task >= 0.001]


def by_command() -> float:
    """Tokens a second of the same answer without a page."""
    flags = ["--target", str(MODEL), "--mode", "plain", "--max-tokens", str(MAX_TOKENS), "--json"]
    made = subprocess.run(
        [sys.executable, "-m", "app", "generate", *flags, "--prompt", QUESTION],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(made.stdout)["stats"]["tokens_per_s"])


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("work", "speed"))
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        if args.what == "work":
            work(browser, args.tokens)
        else:
            speed(browser, args.repeats)
        browser.close()


if __name__ == "__main__":
    main()

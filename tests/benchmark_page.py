"""Prints what the page costs while a long answer is written: the browser's work, and the answer's speed.

    python tests/benchmark_page.py [--tokens 4000] [--repeats 3]

Run it with .venv's Python on a machine that does nothing else. A model that counts as far as it is told
answers plainly, in the page and by the command line in turns; the browser's own tracing tells what its main
thread did. The page and the model share the processor's cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.core.paths import PROJECT, models_dir
from tests.ui.conftest import BROWSER_FLAGS, ready
from tests.ui.test_page import choose, enter
from tests.ui.test_real import start

MODEL = models_dir() / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QUESTION = "Write the integers from 1 to 2000 in order, separated by commas, and nothing else."
CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline"]
COUNT_UPDATES = """() => {
    window.updates = 0;
    new MutationObserver(() => { window.updates += 1; }).observe(
        document.querySelector(".hs-chat"), {childList: true, subtree: true, characterData: true});
}"""


def in_page(browser: Browser, address: str, tokens: int) -> tuple[float, int, float, list[float]]:
    """Tokens a second, updates, and the main thread's busy seconds in all and by task of 1 ms or more."""
    page = browser.new_page()
    page.set_default_timeout(600_000)
    page.goto(address)
    ready(page)
    choose(page, "#target", MODEL.stem)
    expect(page.locator("#target")).to_have_value(str(MODEL))
    page.click("#mode label:has-text('Plain')")
    page.click(".hs-settings-toggle")
    for field, value in (("max_tokens", tokens), ("n_ctx", tokens + 512)):
        if field == "n_ctx":
            page.click("#loading > button")
        enter(page, f"#{field} input", str(value))
    page.keyboard.press("Escape")
    page.evaluate(COUNT_UPDATES)
    browser.start_tracing(page=page, categories=CATEGORIES)
    page.fill(".hs-ask textarea", QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector(".hs-summary")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    speed, updates = shown_speed(page), int(page.evaluate("window.updates"))
    page.close()
    return speed, updates, *work_of(events)


def shown_speed(page: Page) -> float:
    return float(page.locator("[data-figure=speed]").inner_text().split()[0].replace(",", ""))


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


def by_command(tokens: int) -> float:
    """Tokens a second of the same answer without a page."""
    flags = ["--target", str(MODEL), "--mode", "plain", "--max-tokens", str(tokens), "--json"]
    made = subprocess.run(
        [sys.executable, "-m", "app", "generate", *flags, "--n-ctx", str(tokens + 512), "--prompt", QUESTION],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(made.stdout)["stats"]["tokens_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))))
    shares = []
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as home:
        program = start(Path(home))
        browser = driver.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        for _ in range(args.repeats):
            alone = by_command(args.tokens)
            speed, updates, busy, tasks = in_page(browser, program.address, args.tokens)
            shares.append(speed / alone)
            ms = sorted(1000 * task for task in tasks)
            print(
                f"{speed:.1f} tokens/s in the page, {alone:.1f} without: {speed / alone:.3f}; "
                f"{updates} updates, {1000 * busy / updates:.1f} ms of the browser each; "
                f"tasks: median {statistics.median(ms):.0f} ms, 99 % {ms[len(ms) * 99 // 100]:.0f} ms, "
                f"longest {ms[-1]:.0f} ms",
                flush=True,
            )
        browser.close()
        program.process.terminate()
        program.process.wait()
    print(
        f"with the page / without: {statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"
    )


if __name__ == "__main__":
    main()

"""The Compare tab: on the real starter model from click to export, and on made-up comparisons."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.compare import history
from app.compare.record import Audit, Column, Comparison, Prompt, Row
from app.core.settings import LoadSettings, Mode, Request, SamplingSettings, SpeculationSettings
from app.core.stats import Stats
from app.library.catalogue import ModelFile
from tests.ui.conftest import Served, Visitor
from tests.ui.fakes import FakeShelf
from tests.ui.test_looks import COLOURS, contrast, rgb
from tests.ui.test_page import NASTY, ask

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TARGET, DRAFT = Path("/models/starter.gguf"), Path("/models/small-draft.gguf")


class OneModel(FakeShelf):
    """The starter model and nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__(best=None)
        self.file = ModelFile(path.stem, path, path.stat().st_size, "model")

    def presets(self) -> Any:
        return [], []

    def models(self) -> list[ModelFile]:
        return [self.file]


@dataclass
class Real:
    address: str


@pytest.fixture(scope="module")
def real(starter_model: Path) -> Iterator[Real]:
    """A page on the program's own client and the starter model."""
    from app.ui.page import build, serve
    from app.worker.client import WorkerClient

    client = WorkerClient()
    page = build(client, OneModel(starter_model))
    yield Real(serve(page, None))
    client.close()
    page.server.force_exit = True
    page.close(verbose=False)


def open_compare(address: str, visitor: Visitor, **options: object) -> Page:
    page = visitor.open(address, **options)
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".hs-c-column")).not_to_have_count(0)
    return page


def fill(page: Page, **fields: object) -> None:
    for name, value in fields.items():
        page.fill(f"[data-field={name}]", str(value))


def start(page: Page) -> None:
    expect(page.locator(".hs-c-start")).to_be_enabled()
    expect(page.locator(".hs-c-estimate")).to_contain_text("runs of at most")
    page.click(".hs-c-start")


def export(page: Page, words: str) -> bytes:
    page.click(".hs-c-export summary")
    with page.expect_download() as coming:
        page.locator(".hs-c-menu button", has_text=words).click()
    return Path(coming.value.path()).read_bytes()


def cells(page: Page, row: int) -> list[str]:
    return page.locator(f".hs-c-by-column tbody tr:nth-child({row}) > *").all_inner_texts()


def lane_tokens(page: Page, lane: int) -> int:
    return int(page.locator(".hs-c-lane .hs-c-count").nth(lane).inner_text().split()[0])


def test_from_click_to_export(real: Real, visitor: Visitor) -> None:
    page = open_compare(real.address, visitor)
    expect(page.locator(".hs-c-column")).to_have_count(3)
    modes = page.locator(".hs-c-column").evaluate_all(
        "nodes => nodes.map(n => n.querySelector('select').value)"
    )
    assert modes == ["plain", "auto", "lookup"]
    expect(page.locator(".hs-c-draft")).to_have_value("none")
    page.click(".hs-c-way label:has-text('Your own')")
    page.fill(
        ".hs-c-text", "Repeat this line three times: the cat sat on the mat and the dog sat on the cat."
    )
    fill(page, repeats=2, max_tokens=24)
    start(page)
    expect(page.locator(".hs-c-verdict")).to_contain_text(["Auto: ", "Lookup, K=10: "])
    expect(page.locator("#chart-speed .marks")).to_be_visible()

    made = json.loads(export(page, "JSON"))
    assert [run["column"] for run in made["runs"]] == ["plain", "auto", "lookup"] * 2
    speeds = {
        (run["column"], run["repeat"]): run["stats"]["output_tokens"] / run["stats"]["decode_s"]
        for run in made["runs"]
    }
    gains = [speeds["lookup", repeat] / speeds["plain", repeat] for repeat in (0, 1)]
    plain, auto, lookup = (cells(page, number) for number in (1, 2, 3))
    assert lookup[2] == f"{statistics.median(gains):.2f}"
    assert lookup[3] == f"{min(gains):.2f} to {max(gains):.2f}"
    assert plain[1] == f"{statistics.median(speeds['plain', repeat] for repeat in (0, 1)):.1f}"
    assert f" {statistics.median(gains):.2f}x plain here" in page.inner_text(".hs-c-verdict >> nth=1")
    drafted, accepted = (
        sum(run["stats"][name] for run in made["runs"] if run["column"] == "lookup")
        for name in ("drafted", "accepted")
    )
    assert lookup[4] == f"{accepted / drafted:.0%}"
    assert auto[8] == lookup[8] == "2 identical"
    expect(page.locator(".hs-c-audited")).to_have_text(
        ["Auto" + "2 identical", "Lookup, K=10" + "2 identical"]
    )

    drawn = export(page, "Chart “speed” as SVG").decode("utf-8")
    for row in (plain, auto, lookup):
        assert f">{row[1]}</text>" in drawn
    assert export(page, "Chart “speed” as PNG").startswith(b"\x89PNG")
    assert export(page, "CSV").decode("utf-8").count("\r\n") == 7
    assert f"| {lookup[2]} |" in export(page, "Markdown").decode("utf-8")

    expect(page.locator(".hs-c-lane")).to_have_count(3)
    tokens = [run["stats"]["output_tokens"] for run in made["runs"][:3]]
    assert [lane_tokens(page, lane) for lane in range(3)] == tokens
    page.locator(".hs-c-scrub").fill("0")
    assert [lane_tokens(page, lane) for lane in range(3)] == [0, 0, 0]
    expect(page.locator(".hs-c-lane .hs-text span")).to_have_count(0)
    page.click(".hs-c-play")
    page.wait_for_function("parseInt(document.querySelector('.hs-c-lane .hs-c-count').textContent) > 0")
    expect(page.locator(".hs-c-play")).to_have_text("Play")
    assert [lane_tokens(page, lane) for lane in range(3)] == tokens
    outputs = """[...document.querySelectorAll('.hs-c-lane')].map(lane =>
        [...lane.querySelectorAll('.k-a, .k-c, .k-b, .k-t')].map(node => node.textContent).join(''))"""
    plain_text, *texts = page.evaluate(outputs)
    assert texts == [plain_text] * 2
    assert plain_text


def test_a_failed_row_leaves_the_others(real: Real, visitor: Visitor, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts é.jsonl"
    lines = [{"id": "short", "prompt": "Say hello."}, {"id": "long", "prompt": "Say hello. " * 200}]
    prompts.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    page = open_compare(real.address, visitor)
    page.click(".hs-c-way label:has-text('A file')")
    expect(page.locator(".hs-c-estimate")).to_contain_text("no file of prompts is chosen", ignore_case=True)
    page.set_input_files(".hs-c-file input", prompts)
    fill(page, repeats=1, max_tokens=8, n_ctx=200)
    start(page)
    failed = page.locator(".hs-c-failures tbody tr")
    expect(failed).to_have_count(3)
    expect(failed.first).to_contain_text("200")
    expect(page.locator(".hs-c-verdict").first).to_contain_text("plain here")
    assert cells(page, 2)[8] == "1 identical"


def test_runs_wait_for_an_answer_then_stop_then_go_on(real: Real, visitor: Visitor) -> None:
    page = open_compare(real.address, visitor)
    page.click(".hs-c-way label:has-text('Your own')")
    page.fill(".hs-c-text", "Count to twenty.")
    fill(page, repeats=6, max_tokens=24)
    expect(page.locator(".hs-c-start")).to_be_enabled()
    page.get_by_role("tab", name="Generate").click()
    ask(page, "Write a long story about a lighthouse keeper.")
    expect(page.locator(".hs-turn .hs-text span").nth(3)).to_be_attached()
    page.get_by_role("tab", name="Compare").click()
    start(page)
    expect(page.locator(".hs-c-done")).to_have_text("0 of 18 runs")
    expect(page.locator(".hs-c-words")).to_have_text("Waiting for another answer")
    page.get_by_role("tab", name="Generate").click()
    page.click(".hs-chat .hs-stop")
    expect(page.locator(".hs-summary")).to_contain_text("Stopped")
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".hs-c-rows tbody tr")).not_to_have_count(0)
    page.click(".hs-c-stop")
    expect(page.locator(".hs-c-continue")).to_contain_text("of 18 runs left")
    page.reload()
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".hs-c-column")).not_to_have_count(0)
    page.click("[data-go=past]")
    page.locator(".hs-c-entry").first.get_by_role("button", name="Continue").click()
    expect(page.locator(".hs-c-verdict").first).to_contain_text("plain here")
    expect(page.locator(".hs-c-continue")).to_have_count(0)
    assert cells(page, 2)[8] == "6 identical"


# ---- on made-up comparisons -----------------------------------------------------------------------------

MACHINE: dict[str, Any] = {
    "os": "an OS", "python": "3.10", "cpu": "a processor", "cores": 2, "logical_cores": 4,
    "ram_bytes": 8 * 2**30, "threads": 2, "devices": [],
    "llama_cpp": {"version": "1.2.3", "features": ""},
    "models": [
        {"name": "starter", "path": str(TARGET), "size_bytes": 98_000_000, "architecture": "llama",
         "quantization": "Q4_1", "parameters": 135_000_000, "sha256": "ab" * 32},
    ],
}  # fmt: skip
PROMPTS = (Prompt("c1", "code", "Write <b>code</b>."), Prompt("s1", "story", "Tell a story."))


def column(name: str, mode: Mode, temperature: float = 0.0) -> Column:
    draft = DRAFT if mode is Mode.DRAFT else None
    sampling = SamplingSettings(temperature=temperature)
    return Column(
        name,
        LoadSettings(TARGET, draft),
        Request((), sampling=sampling, speculation=SpeculationSettings(mode)),
    )


PLAIN, DRAFTED, LOOKUP = (
    column("plain", Mode.PLAIN),
    column("draft", Mode.DRAFT),
    column("lookup", Mode.LOOKUP),
)


def row(of: Column, prompt: Prompt, speed: float, audit: Audit | None, words: list[str]) -> Row:
    kinds = ["target"] if of.mode is Mode.PLAIN else ["accepted", "rejected", "recovered"]
    rounds = [(0.1 * (at + 1), ((word, kinds[at % len(kinds)]),)) for at, word in enumerate(words)]
    stats = Stats(
        time_to_first_token_s=0.1, total_s=1.0, output_tokens=len(words), target_passes=len(words),
        tokens_per_s=speed, rounds_with_draft=2, drafted=4, accepted=2, acceptance_rate=0.5,
        drafted_per_position=(2, 2), accepted_per_position=(2, 0),
    )  # fmt: skip
    return Row(of.name, prompt.id, prompt.category, 0, (1, 2), "length", stats, audit, None, tuple(rounds))


def made_up(name: str, columns: tuple[Column, ...], audits: dict[str, Audit | None]) -> Comparison:
    speeds = {"plain": 20.0, "draft": 14.0, "lookup": 32.0}
    runs = [
        row(one, prompt, speeds[one.name] + len(prompt.category), audits.get(one.name), NASTY)
        for prompt in PROMPTS
        for one in columns
    ]
    comparison = Comparison(name, "2026-01-31T12:00:00", MACHINE, columns, PROMPTS, 1, runs)
    history.save(comparison)
    return comparison


@pytest.fixture
def past() -> Iterator[None]:
    """Two past comparisons and nothing else."""
    for file in history.folder().glob("*.json"):
        file.unlink()
    tie, bug = Audit("near_tie", 1, (5, 6), 0.123), Audit("different", 0, (5, None), None)
    made_up("20260131-120000", (PLAIN, DRAFTED, LOOKUP), {"draft": tie, "lookup": bug})
    made_up("20260130-120000", (PLAIN, column("lookup", Mode.LOOKUP, temperature=0.8)), {})
    yield


def open_past(page: Page, place: int) -> None:
    page.click("[data-go=past]")
    page.locator(".hs-c-open").nth(place).click()
    expect(page.locator(".hs-c-lane")).not_to_have_count(0)


def test_a_models_text_stays_text(fake: Served, past: None, visitor: Visitor) -> None:
    page = open_compare(fake.address, visitor)
    open_past(page, 0)
    assert page.text_content(".hs-c-asked") == "Write <b>code</b>."
    assert page.text_content(".hs-c-lane .hs-text") == "".join(NASTY)
    page.locator(".hs-c-audited summary").first.click()
    assert page.query_selector(".hs-compare :is(img, script)") is None


def test_what_differs_is_told(fake: Served, past: None, visitor: Visitor) -> None:
    page = open_compare(fake.address, visitor)
    open_past(page, 0)
    first, second = page.locator(".hs-c-audited").all()
    expect(first).to_contain_text("2 near-tie")
    first.locator("summary").click()
    expect(first.locator("li").first).to_have_text(
        f"near-tie c1, run 1, token 2: plain has {NASTY[1]!r} (5), this has {NASTY[2]!r} (6); "
        "0.123 logits apart"
    )
    expect(second).to_contain_text("2 DIFFERENT")
    expect(second.locator("li").first).to_contain_text(
        "this has the end; they are not the target's two favourites"
    )
    bug = page.locator(".hs-c-verdict.hs-c-bug")
    expect(bug).to_contain_text("DIFFERENT")
    red, green, blue = rgb(bug.evaluate("node => getComputedStyle(node).color"))[:3]
    assert red > green + blue
    kinds = page.locator(".hs-c-by-kind tbody tr").last.locator("td b").all_inner_texts()
    assert kinds == [f"{36 / 24:.2f}x", f"{37 / 25:.2f}x"]
    open_past(page, 1)
    expect(page.locator(".hs-c-verdicts")).to_contain_text("outputs may differ")


def test_two_are_laid_over_each_other_and_one_is_deleted(fake: Served, past: None, visitor: Visitor) -> None:
    page = open_compare(fake.address, visitor)
    page.click("[data-go=past]")
    expect(page.locator(".hs-c-lay")).to_be_disabled()
    expect(page.locator(".hs-c-entry input")).to_have_count(2)
    for box in page.locator(".hs-c-entry input").all():
        box.check()
    page.click(".hs-c-lay")
    expect(page.locator(".hs-c-over tbody tr")).to_have_count(5)
    expect(page.locator("#chart-speed .marks")).to_be_visible()
    page.click("[data-go=past]")
    page.locator(".hs-c-delete-it").last.click()
    page.click(".hs-c-keep")
    expect(page.locator(".hs-c-entry")).to_have_count(2)
    page.locator(".hs-c-delete-it").last.click()
    page.click(".hs-c-drop")
    expect(page.locator(".hs-c-entry")).to_have_count(1)
    assert [one.id for one in history.entries()] == ["20260131-120000"]


def test_only_what_fits_can_be_picked(fake: Served, visitor: Visitor) -> None:
    page = open_compare(fake.address, visitor)
    broken = page.locator(".hs-c-target option", has_text="cut-short")
    expect(broken).to_be_disabled()
    expect(broken).to_have_text("cut-short: the file is cut short")
    draft = page.locator(".hs-c-draft").first
    expect(draft).to_have_value(str(DRAFT))
    other = draft.locator("option", has_text="other-vocabulary: token 17 is 'cat'")
    expect(other).to_be_disabled()
    modes = [row.locator("select").first.input_value() for row in page.locator(".hs-c-column").all()]
    assert modes == ["plain", "auto", "draft", "lookup"]
    expect(draft.locator("option").first).to_have_text("No draft, look-ups alone")
    for _ in range(2):
        page.click("[data-add=lookup]")
    expect(page.locator(".hs-c-column")).to_have_count(6)
    expect(page.locator("[data-add=plain]")).to_be_disabled()
    page.locator(".hs-c-column input").first.fill("99")
    expect(page.locator(".hs-c-estimate")).to_have_text("K 99 must lie between 0 and 31.")
    expect(page.locator(".hs-c-start")).to_be_disabled()
    page.locator(".hs-c-remove").nth(2).click()
    expect(page.locator(".hs-c-column")).to_have_count(5)
    page.select_option(".hs-c-sweep-key", "n_draft")
    expect(page.locator(".hs-c-estimate")).to_contain_text("126 runs")  # (2 + 3 lookups x 4 values) x 3 x 3


def test_auto_is_added_with_a_draft_or_without(fake: Served, visitor: Visitor) -> None:
    page = open_compare(fake.address, visitor)
    page.click("[data-add=auto]")
    drafts = page.locator(".hs-c-draft")
    expect(drafts).to_have_count(3)
    expect(drafts.last).to_have_value(str(DRAFT))
    drafts.last.select_option("none")
    expect(page.locator(".hs-c-estimate")).to_contain_text("45 runs")
    expect(page.locator(".hs-c-column").last.locator("input")).to_have_count(0)
    page.locator(".hs-c-column").last.locator("select").first.select_option("draft")
    expect(drafts.last).to_have_value(str(DRAFT))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_and_readable_in_both_themes(fake: Served, past: None, visitor: Visitor, theme: str) -> None:
    page = open_compare(
        f"{fake.address}?__theme={theme}",
        visitor,
        viewport={"width": 390, "height": 844},
        reduced_motion="reduce",
    )
    assert page.evaluate(OVERFLOW) <= 0
    page.click("[data-go=past]")
    expect(page.locator(".hs-c-entry")).to_have_count(2)
    assert page.evaluate(OVERFLOW) <= 0
    open_past(page, 0)
    expect(page.locator("#chart-kinds .marks")).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    for selector in [".hs-c-verdict", ".hs-c-bug", ".hs-c-cell b", ".hs-c-cell small", ".hs-c-lane-clock",
                     ".hs-c-table th", ".hs-c-asked", ".hs-c-play"]:  # fmt: skip
        colour, fill = page.locator(selector).first.evaluate(COLOURS)
        shares = 255 if fill.startswith("color(") else 1  # a mixed colour is told in shares of 1
        mixed = tuple(part * shares for part in rgb(fill))
        assert contrast(rgb(colour), mixed) >= 4.5, (selector, colour, fill)
    page.click("[data-go=past]")
    expect(page.locator(".hs-c-entry input")).to_have_count(2)
    for box in page.locator(".hs-c-entry input").all():
        box.check()
    page.click(".hs-c-lay")
    expect(page.locator(".hs-c-over tbody tr")).to_have_count(5)
    assert page.evaluate(OVERFLOW) <= 0

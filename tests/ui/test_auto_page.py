"""Auto on the page: the default, its draft, the strip of its rounds, and what a pair may gain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.core.errors import UsageError
from app.core.settings import Mode
from app.ui import compare_form, settings_panel
from app.ui.picker import NO_DRAFT, Picker
from tests.ui.conftest import Served, Visitor, ready
from tests.ui.fakes import AUTO_SOURCES, FakeShelf, Script
from tests.ui.test_looks import contrast, rgb
from tests.ui.test_page import WORDS, ask, choose, finished

CHECKED = "#mode :checked"
LINE = ".hs-turn:last-child .hs-round-words"
BLOCKS = ".hs-turn:last-child .hs-strip > i"


def take_auto(page: Page) -> None:
    page.click("#mode label:has-text('Auto')")
    expect(page.locator("#draft")).to_be_visible()


# ---- picks, without a browser ---------------------------------------------------------------------------


def shown(picks: dict[str, Any], shelf: FakeShelf | None = None) -> dict[str, Any]:
    return Picker(shelf or FakeShelf()).shown(picks, None)[0]


def test_auto_is_the_default_with_the_best_draft_that_fits() -> None:
    value = shown({"target": FakeShelf.path("starter")})
    assert (value["mode"], value["draft"]) == ("auto", FakeShelf.path("small-draft"))
    assert value["options"]["draft"][0] == (NO_DRAFT, "No draft, look-ups alone", "")


def test_auto_goes_without_a_draft_where_none_fits_but_the_target_itself() -> None:
    value = shown({"target": FakeShelf.path("starter")}, FakeShelf(on_disk={"starter", "other-vocabulary"}))
    assert (value["mode"], value["draft"]) == ("auto", NO_DRAFT)


def test_no_draft_stays_picked_in_auto_and_means_nothing_elsewhere() -> None:
    picks = {"target": FakeShelf.path("starter"), "mode": "auto", "draft": NO_DRAFT}
    assert shown(picks)["draft"] == NO_DRAFT
    assert shown({**picks, "mode": "draft"})["draft"] == FakeShelf.path("small-draft")
    assert shown({**picks, "mode": "plain"})["draft"] == ""


def test_a_preset_without_a_draft_has_none_in_auto() -> None:
    shelf = FakeShelf()
    preset = next(preset for preset in shelf.presets()[0] if preset.name == "starter")
    assert Picker(shelf).picks_of(preset)["draft"] == NO_DRAFT


@pytest.mark.parametrize(
    ("mode", "draft", "loaded"),
    [
        ("auto", "/m/d.gguf", Path("/m/d.gguf")),
        ("auto", NO_DRAFT, None),
        ("auto", "", None),
        ("draft", "/m/d.gguf", Path("/m/d.gguf")),
        ("lookup", "/m/d.gguf", None),
        ("plain", NO_DRAFT, None),
    ],
)
def test_what_is_loaded(mode: str, draft: str, loaded: Path | None) -> None:
    values = {"n_ctx": 512, "threads": "", "gpu_layers": "", "draft_gpu_layers": "3", "cache_type": "f16"}
    values["draft_cache_type"] = "q8_0"
    load = settings_panel.to_load({"target": "/m/t.gguf", "mode": mode, "draft": draft}, values)
    assert load.draft == loaded
    assert (load.draft_gpu_layers, load.draft_cache_type_k) == ((3, "q8_0") if loaded else (None, "f16"))


def form_with(*columns: tuple[str, str]) -> dict[str, Any]:
    """The Compare tab's form with columns of these modes and drafts."""
    form = compare_form.first_form(FakeShelf(), FakeShelf.path("starter"))
    made = [{**compare_form.new_column(mode), "draft": draft} for mode, draft in columns]
    return {**form, "columns": made}


def test_a_new_comparison_has_auto_with_the_draft() -> None:
    form = compare_form.first_form(FakeShelf(), FakeShelf.path("starter"))
    assert [(column["mode"], column["draft"]) for column in form["columns"]] == [
        ("plain", ""),
        ("auto", FakeShelf.path("small-draft")),
        ("draft", FakeShelf.path("small-draft")),
        ("lookup", ""),
    ]
    alone = compare_form.first_form(FakeShelf(on_disk={"starter"}), FakeShelf.path("starter"))
    assert [(column["mode"], column["draft"]) for column in alone["columns"]] == [
        ("plain", ""),
        ("auto", NO_DRAFT),
        ("lookup", ""),
    ]


def test_a_column_of_auto_loads_its_draft_or_none() -> None:
    draft = FakeShelf.path("small-draft")
    plan = compare_form.read(FakeShelf(), form_with(("auto", draft), ("auto", NO_DRAFT), ("lookup", draft)))
    assert [(column.name, column.load.draft) for column in plan.columns] == [
        ("plain", None), ("auto 1", Path(draft)), ("auto 2", None), ("lookup", None),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="column 1: token 17"):
        compare_form.read(FakeShelf(), form_with(("auto", FakeShelf.path("other-vocabulary"))))
    with pytest.raises(UsageError, match="column 1: no draft model is chosen"):
        compare_form.read(FakeShelf(), form_with(("draft", NO_DRAFT)))


def test_a_sweep_leaves_auto_alone_where_it_decides_itself() -> None:
    form = {**form_with(("auto", NO_DRAFT), ("lookup", "")), "sweep": {"key": "n_draft", "values": "2, 4"}}
    names = [column.name for column in compare_form.read(FakeShelf(), form).columns]
    assert names == ["plain", "auto", "lookup n_draft=2", "lookup n_draft=4"]
    form["sweep"] = {"key": "temperature", "values": "0, 1"}
    names = [column.name for column in compare_form.read(FakeShelf(), form).columns]
    assert names[1:3] == ["auto temperature=0.0", "auto temperature=1.0"]


# ---- the page -------------------------------------------------------------------------------------------


def test_auto_is_first_and_the_default(fake: Served, visitor: Visitor) -> None:
    fake.shelf.on_disk = {"other-vocabulary", "small-draft"}  # no preset is ready
    page = visitor.open(fake.address)
    assert page.locator("#mode label").all_inner_texts() == ["Auto", "Draft", "Lookup", "Plain"]
    expect(page.locator(CHECKED)).to_have_value("auto")
    ask(page, "Hello")
    finished(page)
    assert fake.client.runs[0].request.speculation.mode is Mode.AUTO


def test_the_draft_of_auto_can_be_left_out(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    take_auto(page)
    expect(page.locator("#draft")).to_have_value(FakeShelf.path("small-draft"))
    ask(page, "Hello")
    finished(page)
    choose(page, "#draft", "No draft, look-ups alone")
    ask(page, "Again")
    finished(page)
    expect(page.locator("#draft")).to_have_value(NO_DRAFT)
    assert [run.load.draft for run in fake.client.runs] == [Path(FakeShelf.path("small-draft")), None]
    assert {run.request.speculation.mode for run in fake.client.runs} == {Mode.AUTO}
    page.reload()
    ready(page)
    expect(page.locator(CHECKED)).to_have_value("auto")
    expect(page.locator("#draft")).to_have_value(NO_DRAFT)


def test_settings_that_auto_decides_itself_are_hidden(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click(".hs-settings-toggle")
    expect(page.locator("#p_min")).to_be_visible()
    page.keyboard.press("Escape")
    take_auto(page)
    page.click(".hs-settings-toggle")
    page.click("#loading > button")
    expect(page.locator("#draft_gpu_layers")).to_be_visible()
    for name in ("n_draft", "p_min", "ngram_min", "ngram_max"):
        expect(page.locator(f"#{name}")).to_be_hidden()


def test_the_measuring_is_told_while_it_lasts(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, measure_s=1.0)
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    expect(page.locator(".hs-status")).to_have_text("Measuring how fast starter.gguf is here")
    finished(page)
    expect(page.locator(".hs-status")).to_be_hidden()


def test_the_strip_has_a_block_a_round_by_source_length_and_what_was_kept(
    fake: Served, visitor: Visitor
) -> None:
    fake.client.script = Script(WORDS, holds_after=4)
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    expect(page.locator(BLOCKS)).to_have_count(4)  # while it still runs
    expect(page.locator(LINE)).to_have_text(
        re.compile("4 rounds:.*1 plain.*1 looked up.*1 drafted.*1 both.*2 of 12 drafted tokens not kept")
    )
    codes = {"model": "m", "lookup": "l", "none": "none", "both": "both"}
    assert page.locator(BLOCKS).evaluate_all("nodes => nodes.map(node => node.className)") == [
        f"from-{codes[source]}" for source in AUTO_SOURCES
    ]
    parts = """nodes => nodes.map(node => ['--l', '--m', '--x'].map(name =>
        Number(node.style.getPropertyValue(name))))"""
    assert page.locator(BLOCKS).evaluate_all(parts) == [[0, 4, 0], [2, 0, 2], [0, 0, 0], [2, 2, 0]]
    fake.client.release.set()
    finished(page)
    expect(page.locator(BLOCKS)).to_have_count(8)


def test_pointing_at_a_round_tells_its_numbers_and_why(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    finished(page)
    for place, words in enumerate(
        [
            "Round 1: 4 drafted, 4 of them accepted, 5 tokens. "
            "Draft: small-draft should bring 2.5 more tokens for the time of 1.2.",
            "Round 2: 4 looked up, 2 of them accepted, 3 tokens. "
            "Look-up: copying 2 should bring 2.5 more tokens for the time of 1.2.",
            "Round 3: nothing drafted, 1 token. "
            "Plain: a draft of small-draft would cost 1.9 tokens to gain 0.8.",
            "Round 4: 2 looked up and 2 drafted, 4 of them accepted, 5 tokens. "
            "Look-up and draft: copying 2, then small-draft, should bring 2.5 more tokens "
            "for the time of 1.2.",
        ]
    ):
        page.locator(BLOCKS).nth(place).hover()
        expect(page.locator(LINE)).to_have_text(words)
    page.hover(".hs-input")
    expect(page.locator(LINE)).to_contain_text("8 rounds:")


def test_the_keyboard_steps_through_the_rounds(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    finished(page)
    line = page.locator(LINE)
    assert line.get_attribute("aria-live") is None
    page.focus(".hs-text")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(line).to_contain_text("Round 1:")
    expect(line).to_have_attribute("aria-live", "polite")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(line).to_contain_text("Round 3: nothing drafted")
    page.keyboard.press("End")
    expect(line).to_contain_text("Round 8:")
    page.keyboard.press("ArrowRight")
    expect(line).to_contain_text("Round 8:")
    page.keyboard.press("Home")
    expect(line).to_contain_text("Round 1:")
    assert page.locator(f"{BLOCKS}.hs-at").count() == 1
    page.keyboard.press("Tab")
    expect(line).to_contain_text("8 rounds:")
    assert line.get_attribute("aria-live") is None


def test_the_other_modes_have_a_strip_without_reasons(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    page.click("#mode label:has-text('Lookup')")
    expect(page.locator("#draft")).to_be_hidden()
    ask(page, "Hello")
    finished(page)
    page.locator(BLOCKS).nth(1).hover()
    expect(page.locator(LINE)).to_have_text("Round 2: 4 looked up, 2 of them accepted, 3 tokens.")
    expect(page.locator(".hs-doing")).to_be_hidden()


def test_what_auto_does_stands_beside_the_figures(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=2)
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    expect(page.locator(".hs-doing")).to_have_text(
        "Now draft: small-draft should bring 2.5 more tokens for the time of 1.2"
    )
    fake.client.release.set()
    finished(page)
    expect(page.locator(".hs-doing")).to_have_text("Rounds: 2 plain, 2 looked up, 2 drafted, 2 both")


def test_a_long_answer_has_few_blocks_and_all_its_rounds(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script([f" w{i}" for i in range(2000)])
    page = visitor.open(fake.address)
    take_auto(page)
    ask(page, "Hello")
    finished(page)
    rounds = int(page.inner_text("[data-figure=passes]"))
    assert rounds > 500
    assert 200 <= page.locator(BLOCKS).count() <= 301
    expect(page.locator(LINE)).to_contain_text(f"{rounds} rounds:")
    page.focus(".hs-strip")
    page.keyboard.press("Home")
    merged = rounds - page.locator(BLOCKS).count() + 1
    expect(page.locator(LINE)).to_contain_text(f"Rounds 1 to {merged}: ")
    page.keyboard.press("ArrowRight")
    expect(page.locator(LINE)).to_contain_text(f"Round {merged + 1}: ")
    page.reload()
    ready(page)
    expect(page.locator(LINE)).to_contain_text(f"{rounds} rounds:")
    assert page.locator(BLOCKS).count() == rounds - merged + 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_strip_can_be_seen(fake: Served, visitor: Visitor, theme: str) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(f"{fake.address}?__theme={theme}")
    take_auto(page)
    ask(page, "Hello")
    finished(page)
    probe = """names => names.map(name => {
        const node = document.querySelector('.hs-strip').appendChild(document.createElement('b'));
        node.style.color = `var(${name})`;
        const colour = getComputedStyle(node).color;
        node.remove();
        return colour;
    })"""
    names = ["--hs-surface", "--hs-muted", "--hs-blue", "--hs-green", "--hs-rejected"]
    surface, *colours = (rgb(text) for text in page.evaluate(probe, names))
    for name, colour in zip(names[1:], colours, strict=True):
        assert contrast(colour, surface) >= 3, name
    images = page.locator(BLOCKS).nth(1).evaluate("node => getComputedStyle(node).backgroundImage")
    assert images.count("repeating-linear-gradient") == 2  # looked up, and not kept: a pattern each


def test_copying_leaves_the_strip_out(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(["one", " two", " three"])
    page = visitor.open(fake.address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    take_auto(page)
    ask(page, "Hello")
    finished(page)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.hs-answer'))")
    page.keyboard.press("Control+C")
    assert "round" not in page.evaluate("navigator.clipboard.readText()")


# ---- what a pair may gain -------------------------------------------------------------------------------


def test_what_auto_may_gain_is_an_estimate_with_the_measured_beside_it(
    fake: Served, visitor: Visitor
) -> None:
    page = visitor.open(fake.address)
    take_auto(page)
    headline = page.locator("#outlook summary")
    expect(headline).to_have_text("Auto here: 1.1x to 1.8x plain, by kind of task (est.)")
    expect(page.locator(".hs-outlook-rows")).to_be_hidden()
    headline.click()
    rows = page.locator("#outlook .hs-outlook-rows tr")
    expect(rows).to_have_text(
        [re.compile(r"Writing code\s*1.10x est\.\s*$"), re.compile(r"Editing\s*1.84x est\.\s*1.72x measured")]
    )
    page.keyboard.press("Escape")
    expect(page.locator(".hs-outlook-rows")).to_be_hidden()
    choose(page, "#draft", "No draft, look-ups alone")
    expect(page.locator("#outlook .hs-outlook > p")).to_contain_text("is told after its first answer")
    expect(headline).to_be_hidden()
    page.click("#mode label:has-text('Plain')")
    expect(page.locator("#outlook .hs-outlook > p")).to_be_hidden()


def test_it_is_looked_at_again_after_an_answer(
    fake: Served, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = visitor.open(fake.address)
    take_auto(page)
    choose(page, "#draft", "No draft, look-ups alone")
    expect(page.locator("#outlook .hs-outlook > p")).to_contain_text("is told after its first answer")
    known = fake.shelf.outlook
    with_draft = settings_panel.LoadSettings(Path("t"), Path("d"))
    monkeypatch.setattr(fake.shelf, "outlook", lambda load: known(with_draft))
    ask(page, "Hello")
    finished(page)
    expect(page.locator("#outlook summary")).to_contain_text("Auto here: 1.1x to 1.8x plain")

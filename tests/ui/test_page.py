"""The page in a real browser, on a scripted client."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.core.errors import HeadstartError
from app.core.settings import ChatMessage, Mode
from app.worker.messages import Failed
from tests.ui.conftest import PATIENCE_MS, Served, Visitor, ready
from tests.ui.fakes import FakeShelf, Script

WORDS = [f" word{i}" for i in range(24)]
OUTPUT = ".hs-turn:last-child .hs-text span:is(.k-a, .k-c, .k-b, .k-t)"


def ask(page: Page, question: str) -> None:
    page.fill(".hs-input", question)
    page.keyboard.press("Enter")


def finished(page: Page) -> None:
    expect(page.locator(".hs-turn:last-child .hs-summary")).to_be_visible()
    expect(page.locator(".hs-send")).to_be_visible()


def output(page: Page) -> str:
    return str(page.evaluate(f"[...document.querySelectorAll('{OUTPUT}')].map(n => n.textContent).join('')"))


def test_tokens_appear_while_it_runs_then_stop_then_ask_again(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=3)
    page = visitor.open(fake.address)
    ask(page, "Say words")
    expect(page.locator(".hs-text .k-a").first).to_be_visible()
    expect(page.locator(".hs-text .k-x").first).to_have_text(" wrong")
    expect(page.locator(".hs-text .k-d").first).to_have_text(" and")
    expect(page.locator(".hs-summary")).to_have_count(0)
    assert not fake.client.runs[0].cancelled.is_set()
    page.click(".hs-stop")
    expect(page.locator(".hs-summary")).to_contain_text("Stopped")
    assert fake.client.runs[0].cancelled.is_set()
    fake.client.script = Script(WORDS)
    ask(page, "Again")
    finished(page)
    assert output(page) == "".join(WORDS)
    assert len(page.query_selector_all(".hs-turn")) == 2
    assert [message.content for message in fake.client.runs[1].request.messages] == [
        "Say words",
        "".join(WORDS[:13]),
        "Again",
    ]


NASTY = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "${alert(1)}",
    "{{value}}",
    "vector<int>",
    "C:\\users",
    "&amp; `tick`",
    "é你🙂\u2028",
]


def test_markup_and_templates_stay_text(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(NASTY)
    page = visitor.open(fake.address)
    page.fill(".hs-input", "\n".join(NASTY))
    page.click(".hs-send")
    finished(page)
    assert output(page) == "".join(NASTY)
    assert page.text_content(".hs-question-text") == "\n".join(NASTY)
    assert page.query_selector(".hs-chat img, .hs-chat script") is None
    page.reload()
    expect(page.locator(".hs-question-text")).to_be_visible()
    assert output(page) == "".join(NASTY)
    assert page.query_selector(".hs-chat img, .hs-chat script") is None


def test_figures_and_counts_match_the_spans(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, pause_s=0.02)
    page = visitor.open(fake.address)
    ask(page, "Say words")
    finished(page)
    for code, name in {
        "a": "accepted",
        "c": "recovered",
        "b": "bonus",
        "x": "rejected",
        "d": "discarded",
    }.items():
        spans = len(page.query_selector_all(f".hs-text .k-{code}"))
        assert spans > 0
        expect(page.locator(f"[data-count={name}]")).to_have_text(str(spans))
    accepted = len(page.query_selector_all(".hs-text .k-a"))
    drafted = accepted + len(page.query_selector_all(".hs-text :is(.k-x, .k-d)"))
    expect(page.locator("[data-figure=acceptance]")).to_have_text(f"{100 * accepted / drafted:.0f} %")
    rounds = len(page.query_selector_all(".hs-strip > i"))
    second = page.locator(".hs-strip > i").nth(1)
    second.hover()
    expect(page.locator(".hs-round-words")).to_have_text("Round 2: 4 drafted, 2 of them accepted, 3 tokens.")
    expect(page.locator("[data-figure=passes]")).to_have_text(str(rounds))
    expect(page.locator(".hs-ratio [data-figure]")).to_have_text(
        re.compile(r"plain.*\(estimate\)$|plain \(estimate\)$")
    )
    assert len(page.query_selector_all(".hs-bar")) == 4
    expect(page.locator(".hs-said")).to_contain_text("24 tokens in")


# Stands before the page's own scripts, which keep the function they find.
COUNT_FRAMES = """
const request = window.requestAnimationFrame.bind(window);
window.framesAsked = 0;
window.nextFrame = () => new Promise(request);
window.requestAnimationFrame = (draw) => { window.framesAsked += 1; return request(draw); };
"""

# True as soon as half a second's frames have passed that nothing of the page asked for.
RESTS = """async () => {
  let asked = window.framesAsked, still = 0;
  for (let frame = 0; still < 30 && frame < 600; frame++) {
    await window.nextFrame();
    still = window.framesAsked === asked ? still + 1 : 0;
    asked = window.framesAsked;
  }
  return still === 30;
}"""


def test_a_page_that_waits_draws_nothing(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.add_init_script(COUNT_FRAMES)
    page.reload()
    ready(page)
    assert page.evaluate("window.framesAsked") > 0
    assert page.evaluate(RESTS)
    ask(page, "Say words")
    finished(page)
    assert page.evaluate(RESTS)


def test_plain_mode_shows_no_rates(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS[:5])
    page = visitor.open(fake.address)
    page.click("#mode label:has-text('Plain')")
    expect(page.locator("#draft")).to_be_hidden()
    ask(page, "Say words")
    finished(page)
    assert fake.client.runs[0].request.speculation.mode is Mode.PLAIN
    assert fake.client.runs[0].load.draft is None
    for figure in ("acceptance", "length"):
        expect(page.locator(f"[data-figure={figure}]")).to_have_text("—")
    expect(page.locator(".hs-ratio [data-figure]")).to_have_text("plain decoding")
    assert len(page.query_selector_all(".hs-text .k-t")) == 5


def enter(page: Page, field: str, value: str) -> None:
    """As a person does: into a field that stands still, key by key, and on with Tab."""
    page.click(field)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(value)
    page.keyboard.press("Tab")
    expect(page.locator(field)).to_have_value(value)


def test_settings_reach_the_request(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click("#mode label:has-text('Lookup')")
    page.click(".hs-settings-toggle")
    enter(page, "#n_draft input[type=number]", "7")
    enter(page, "#ngram_max input", "5")
    enter(page, "#system textarea", "Be short.")
    enter(page, "#max_tokens input", "33")
    page.click("#sampling > button")
    enter(page, "#temperature input[type=number]", "0.7")
    enter(page, "#seed input", "42")
    enter(page, "#stop textarea", "END")
    page.click("#loading > button")
    enter(page, "#n_ctx input", "1024")
    enter(page, "#threads input", "2")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()
    ask(page, "Hello")
    finished(page)
    load, request = fake.client.runs[0].load, fake.client.runs[0].request
    assert (load.n_ctx, load.threads, load.gpu_layers, load.draft) == (1024, 2, None, None)
    assert request.messages == (ChatMessage("system", "Be short."), ChatMessage("user", "Hello"))
    speculation = request.speculation
    assert (speculation.mode, speculation.n_draft, speculation.ngram_max) == (Mode.LOOKUP, 7, 5)
    assert (request.max_tokens, request.stop) == (33, ("END",))
    assert (request.sampling.temperature, request.sampling.seed) == (0.7, 42)


def test_a_wrong_setting_is_one_clear_line(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click("#mode label:has-text('Lookup')")
    page.click(".hs-settings-toggle")
    enter(page, "#ngram_min input", "9")
    page.keyboard.press("Escape")
    ask(page, "Hello")
    expect(page.locator(".hs-failed")).to_contain_text("Shortest match 9 and Longest match 6 must satisfy")
    assert fake.client.runs == []
    page.click(".hs-settings-toggle")
    enter(page, "#ngram_min input", "2")
    enter(page, "#max_tokens input", "0")
    page.keyboard.press("Escape")
    ask(page, "Hello")
    words = ["Shortest match", "Longest answer 0 must be at least 1"]
    expect(page.locator(".hs-failed")).to_contain_text(words)
    assert fake.client.runs == []
    expect(page.locator(".hs-send")).to_be_visible()


def test_a_preset_sets_the_fields(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    expect(page.locator("#preset")).to_have_value("duo")
    choose(page, "#preset", "Starter")
    expect(page.locator("#mode :checked")).to_have_value("lookup")
    expect(page.locator("#target")).to_have_value(FakeShelf.path("starter"))
    expect(page.locator(".hs-pair")).to_contain_text("A tiny model that answers at once.")
    ask(page, "Hello")
    finished(page)
    assert fake.client.runs[0].load.target.name == "starter.gguf"
    assert fake.client.runs[0].load.n_ctx == 2048


def choose(page: Page, field: str, option: str) -> None:
    label = page.locator(f"{field} option", has_text=option).first.inner_text()
    page.select_option(field, label=label)


def test_only_fitting_drafts_can_be_chosen_and_the_others_say_why(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    options = page.locator("#draft option").evaluate_all("nodes => nodes.map(n => [n.text, n.disabled])")
    assert options == [
        ["small-draft", False],
        ["starter", False],
        ["other-vocabulary: token 17 is 'cat' in one and 'dog' in the other", True],
    ]
    assert ["cut-short: the file is cut short", True] in page.locator("#target option").evaluate_all(
        "nodes => nodes.map(n => [n.text, n.disabled])"
    )
    choose(page, "#draft", "starter")
    ask(page, "Hello")
    finished(page)
    assert fake.client.runs[0].load.draft == Path(FakeShelf.path("starter"))
    expect(page.locator("#preset")).to_have_value("")


def test_a_failed_run_says_why_keeps_the_text_and_the_next_one_works(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, fails_after=2)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    expect(page.locator(".hs-failed p")).to_have_text(
        "The model process ended (signal 9); ask again: it starts anew."
    )
    page.click(".hs-failed summary")
    expect(page.locator(".hs-failed pre")).to_have_text("ggml: last line")
    assert output(page).startswith(" word0 word1")
    fake.client.script = Script(WORDS)
    ask(page, "Again")
    finished(page)
    assert output(page) == "".join(WORDS)


def test_loading_and_left_out_turns_are_shown(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, load_s=0.5, left_out=2)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    expect(page.locator(".hs-status")).to_contain_text("Loading the target, starter.gguf")
    expect(page.locator(".hs-status progress")).to_be_visible()
    finished(page)
    expect(page.locator(".hs-note")).to_have_text(
        "The 2 oldest turns no longer fit the context and were left out."
    )
    expect(page.locator(".hs-status")).to_be_hidden()


def test_thinking_folds_away_and_stays_out_of_the_history(fake: Served, visitor: Visitor) -> None:
    words = ["<think>", "let", " me", " see", "</think>", "\n\n", "Four", "."]
    fake.client.script = Script(words)
    page = visitor.open(fake.address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Two and two?")
    finished(page)
    fold = page.locator(".hs-thinking")
    expect(fold.locator("summary")).to_have_text("Thinking (5 tokens)")
    assert fold.evaluate("node => node.open") is False
    assert output(page) == "".join(words)
    expect(page.locator(".hs-text > span").first).to_have_text("Four")
    inside = fold.locator("span:is(.k-a, .k-c, .k-b, .k-t)").all_text_contents()
    assert "".join(inside) == "<think>let me see</think>\n\n"
    page.click("text=Copy")
    assert page.evaluate("navigator.clipboard.readText()") == "Four."
    ask(page, "And three?")
    finished(page)
    assert [m.content for m in fake.client.runs[1].request.messages] == [
        "Two and two?",
        "Four.",
        "And three?",
    ]


def test_regenerate_edit_and_new_conversation(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    ask(page, "One")
    finished(page)
    fake.client.script = Script([" other"])
    page.click("text=Regenerate")
    expect(page.locator(".hs-text")).to_have_text(" other")
    finished(page)
    assert [m.content for m in fake.client.runs[1].request.messages] == ["One"]
    page.click(".hs-question >> text=Edit")
    expect(page.locator(".hs-input")).to_have_value("One")
    ask(page, "One, better")
    expect(page.locator(".hs-question-text")).to_have_text("One, better")
    finished(page)
    assert len(page.query_selector_all(".hs-turn")) == 1
    assert [m.content for m in fake.client.runs[2].request.messages] == ["One, better"]
    page.click(".hs-new")
    expect(page.locator(".hs-turn")).to_have_count(0)
    expect(page.locator(".hs-example").first).to_be_visible()
    expect(page.locator("[data-figure=speed]")).to_have_text("—")


def test_a_new_conversation_while_an_answer_runs_stays_new(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=2)
    page = visitor.open(fake.address)
    ask(page, "One")
    expect(page.locator(".hs-text .k-a").first).to_be_visible()
    page.click(".hs-new")
    expect(page.locator(".hs-turn")).to_have_count(0)
    fake.client.script = Script([" two"])
    ask(page, "Two")
    finished(page)
    assert fake.client.runs[0].cancelled.is_set()
    expect(page.locator(".hs-question-text")).to_have_text(["Two"])


def test_stop_in_the_moment_of_sending_stops(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=2)
    page = visitor.open(fake.address)
    page.fill(".hs-input", "One")
    page.evaluate("document.querySelector('.hs-send').click(), document.querySelector('.hs-stop').click()")
    expect(page.locator(".hs-summary")).to_contain_text("Stopped")
    finished(page)


def test_a_double_click_on_send_asks_once_and_stops_nothing(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, pause_s=0.05)
    page = visitor.open(fake.address)
    page.fill(".hs-input", "One")
    box = page.locator(".hs-send").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    finished(page)
    assert output(page) == "".join(WORDS)
    assert len(fake.client.runs) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_sites_get_nothing(fake: Served, headers: dict[str, str]) -> None:
    for method, path in (("GET", "config"), ("POST", "gradio_api/upload"), ("POST", "gradio_api/queue/join")):
        request = urllib.request.Request(fake.address + path, method=method, headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=30)
        assert refusal.value.code == 403


def test_examples_ask_with_one_click(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    assert len(page.query_selector_all(".hs-example")) == 4
    page.click(".hs-example:has-text('Fix this spelling')")
    finished(page)
    assert "agianst" in fake.client.runs[0].request.messages[-1].content


def test_enter_sends_and_shift_enter_breaks_the_line(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click(".hs-input")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    finished(page)
    assert fake.client.runs[0].request.messages[-1].content == "one\ntwo"


def test_a_reload_finds_the_conversation_and_ends_the_run(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    ask(page, "First")
    finished(page)
    page.click("#mode label:has-text('Lookup')")
    expect(page.locator("#draft")).to_be_hidden()
    fake.client.script = Script(WORDS, holds_after=2)
    ask(page, "Second")
    expect(page.locator(".hs-turn:last-child .k-x").first).to_be_visible()
    page.reload()
    ready(page)
    expect(page.locator(".hs-question-text")).to_have_text(["First", "Second"])
    assert fake.client.runs[1].cancelled.is_set()
    assert output(page).startswith(" word0")
    expect(page.locator(".hs-turn:last-child .hs-summary")).to_contain_text("Stopped")
    expect(page.locator("#mode :checked")).to_have_value("lookup")
    fake.client.script = Script([" third"])
    ask(page, "Third")
    finished(page)
    assert output(page) == " third"
    assert len(page.query_selector_all(".hs-turn")) == 3


def test_a_closed_tab_ends_its_run(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=2)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    expect(page.locator(".hs-text .k-a").first).to_be_visible()
    page.close()
    assert fake.client.runs[0].cancelled.wait(5)


def test_two_tabs_are_separate_and_the_second_waits(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script([" left"] * 12, holds_after=1)
    context = visitor.context()
    left, right = visitor.open(fake.address, context), visitor.open(fake.address, context)
    ask(left, "Left")
    expect(left.locator(".hs-text .k-a").first).to_be_visible()
    fake.client.script = Script([" right"] * 12)
    ask(right, "Right")
    expect(right.locator(".hs-status")).to_contain_text("Waiting: 1 other answer first")
    expect(right.locator(".hs-text .k-a")).to_have_count(0)
    left.click(".hs-stop")
    expect(left.locator(".hs-summary")).to_contain_text("Stopped")
    finished(right)
    assert output(right) == " right" * 12
    assert set(output(left).split()) == {"left"}


def test_stop_of_a_waiting_tab_leaves_the_other(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=1)
    left, right = visitor.open(fake.address), visitor.open(fake.address)
    ask(left, "Left")
    expect(left.locator(".hs-text .k-a").first).to_be_visible()
    ask(right, "Right")
    expect(right.locator(".hs-status")).to_contain_text("Waiting")
    right.click(".hs-stop")
    expect(right.locator(".hs-summary")).to_contain_text("Stopped")
    assert not fake.client.runs[0].cancelled.is_set()
    fake.client.release.set()
    finished(left)
    assert output(left) == "".join(WORDS)


def test_four_tabs_of_one_browser_leave_room_to_stop(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, holds_after=2)
    context = visitor.context()
    first, *others = [visitor.open(fake.address, context) for _ in range(4)]
    ask(first, "Hello")
    expect(first.locator(".hs-text .k-a").first).to_be_visible()
    for place, page in enumerate(others, 1):
        ask(page, "Hello")
        expect(page.locator(".hs-status")).to_contain_text(f"Waiting: {place} other")
    first.click(".hs-stop")
    expect(first.locator(".hs-summary")).to_contain_text("Stopped")


def test_a_duplicated_tab_gets_a_conversation_of_its_own(fake: Served, visitor: Visitor) -> None:
    context = visitor.context()
    page = visitor.open(fake.address, context)
    ask(page, "Hello")
    finished(page)
    with context.expect_page() as opened:
        page.evaluate("window.open(location.href)")  # takes a copy of sessionStorage along
    copy = opened.value
    ready(copy)
    expect(copy.locator(".hs-example").first).to_be_visible()
    tab = "sessionStorage.getItem('headstart-tab')"
    assert copy.evaluate(tab) != page.evaluate(tab)


def test_hover_click_and_arrow_keys_show_a_tokens_details(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    finished(page)
    card = page.locator(".hs-details")
    page.hover(".hs-text .k-x >> nth=0")
    expect(card).to_contain_text("rejected")
    rows = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert rows == {
        "Round": "2",
        "Place in the draft": "3 of 4",
        "Proposed by": "the draft model",
        "Target's probability": "3.1 %",
        "Draft's probability": "82.0 %",
    }
    page.hover(".hs-input")
    expect(card).to_be_hidden()
    page.click(".hs-text .k-d >> nth=0")
    page.hover(".hs-input")
    expect(card).to_contain_text("not tested")
    page.keyboard.press("Escape")
    page.focus(".hs-text")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".hs-token-said")).to_contain_text(
        '" word0", accepted. Round 1, Place in the draft 1 of 4'
    )
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hs-token-said")).to_contain_text('" word5", accepted. Round 2')
    page.keyboard.press("End")
    expect(page.locator(".hs-token-said")).to_contain_text('" word23"')
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_one_tab_stop_for_a_whole_answer(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    finished(page)
    assert (
        page.evaluate("[...document.querySelectorAll('.hs-answer [tabindex], .hs-answer button')].length")
        == 4
    )
    page.focus(".hs-text")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "hs-strip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Copy"


def test_the_switch_hides_rejected_tokens_and_is_remembered(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS)
    page = visitor.open(fake.address)
    ask(page, "Hello")
    finished(page)
    expect(page.locator(".hs-text .k-x").first).to_be_visible()
    page.click(".hs-switch")
    expect(page.locator(".hs-text .k-x").first).to_be_hidden()
    expect(page.locator(".hs-text .k-d").first).to_be_hidden()
    expect(page.locator(".hs-text .k-a").first).to_be_visible()
    page.reload()
    expect(page.locator(".hs-text .k-a").first).to_be_visible()
    expect(page.locator(".hs-text .k-x").first).to_be_hidden()


@pytest.mark.parametrize(
    "copy",
    [lambda page: page.click("text=Copy"), lambda page: select_answer(page)],
    ids=["button", "selection"],
)
def test_copying_gives_the_output_alone(fake: Served, visitor: Visitor, copy: Callable[[Page], None]) -> None:
    fake.client.script = Script(["a", "\n  b", " ", "<i>", "\t", "c", " d", " e", " f", " g", " h"])
    page = visitor.open(fake.address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Hello")
    finished(page)
    assert page.query_selector(".hs-text .k-x")
    copy(page)
    assert page.evaluate("navigator.clipboard.readText()") == "a\n  b <i>\tc d e f g h"


def select_answer(page: Page) -> None:
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.hs-text'))")
    page.keyboard.press("Control+C")


def test_the_offer_fetches_cancels_and_then_chooses_the_preset(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    card = page.locator(".hs-card")
    expect(card).to_contain_text("A better pair for this machine: Coder pair")
    page.click("text=Fetch 1.1 GB")
    expect(card).to_contain_text("Fetching coder-big from the hub: 279 MB of 1.1 GB, about 1 min 10 s to go")
    page.click(".hs-cancel")
    expect(card.locator(".hs-fetch")).to_be_visible()
    assert fake.shelf.download and fake.shelf.download.state == "cancelled"
    page.click("text=Fetch 1.1 GB")
    expect(card.locator("progress")).to_be_visible()
    fake.shelf.let_download_finish.set()
    expect(page.locator("#preset")).to_have_value("pair")
    expect(page.locator("#target")).to_have_value(FakeShelf.path("coder-big"))
    expect(page.locator("#draft")).to_have_value(FakeShelf.path("small-draft"))
    expect(card).to_be_hidden()
    ask(page, "Hello")
    finished(page)
    assert fake.client.runs[0].request.speculation.n_draft == 6


def test_a_first_reading_of_many_files_tells_how_far_it_is(fake: Served, visitor: Visitor) -> None:
    fake.shelf.may_read.clear()
    page = visitor.context().new_page()
    page.goto(fake.address)
    expect(page.locator(".hs-pair")).to_have_text("Reading new model files: 3 of 300")
    expect(page.locator("#target option")).to_have_count(0)
    fake.shelf.may_read.set()
    expect(page.locator("#target")).to_have_value(FakeShelf.path("starter"))
    expect(page.locator(".hs-pair")).not_to_contain_text("Reading")


def test_answers_go_on_while_a_download_runs(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click("text=Fetch 1.1 GB")
    expect(page.locator(".hs-card progress")).to_be_visible()
    ask(page, "Hello")
    finished(page)
    expect(page.locator(".hs-card progress")).to_be_visible()


def test_a_download_is_still_shown_after_a_reload_and_then_chosen(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click("text=Fetch 1.1 GB")
    card = page.locator(".hs-card")
    expect(card.locator("progress")).to_be_visible()
    page.reload()
    ready(page)
    expect(card).to_contain_text("Fetching coder-big from the hub: 279 MB of 1.1 GB")
    fake.shelf.let_download_finish.set()
    expect(page.locator("#preset")).to_have_value("pair")
    expect(card).to_be_hidden()


def test_the_offer_can_be_put_off(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click("text=Not now")
    expect(page.locator(".hs-card")).to_be_hidden()
    page.reload()
    ready(page)
    choose(page, "#preset", "Coder pair")
    expect(page.locator(".hs-card")).to_contain_text("Coder pair is not on this machine yet")
    expect(page.locator("#target")).to_have_value(FakeShelf.path("starter"))


def test_broken_presets_are_named(fake: Served, visitor: Visitor) -> None:
    fake.shelf.problems.append(HeadstartError("presets/mine.yaml line 3: unknown key 'modell'"))
    page = visitor.open(fake.address)
    expect(page.locator(".hs-problem")).to_have_text("presets/mine.yaml line 3: unknown key 'modell'")


def test_quit_asks_first(fake: Served, visitor: Visitor) -> None:
    fake.quits.clear()
    page = visitor.open(fake.address)
    page.click(".hs-quit")
    page.click("text=Stay")
    assert fake.quits == []
    page.click(".hs-quit")
    page.click(".hs-leave")
    expect(page.locator(".hs-gone")).to_contain_text("Headstart has ended")
    assert until(lambda: fake.quits == [True], page)


def until(condition: Callable[[], bool], page: Page) -> bool:
    """Whether it comes true in time; the page goes on meanwhile."""
    for _ in range(PATIENCE_MS // 50):
        if condition():
            return True
        page.wait_for_timeout(50)
    return False


def test_two_thousand_tokens_keep_up_and_cost_linear_bytes(fake: Served, visitor: Visitor) -> None:
    words = [f" token{i}" for i in range(2000)]
    received = 0

    def count(params: dict[str, object]) -> None:
        nonlocal received
        received += int(params["dataLength"])  # type: ignore[call-overload]

    page = visitor.open(fake.address)
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.dataReceived", count)
    sizes = []
    for n in (500, 1000, 2000):
        fake.client.script = Script(words[:n], pause_s=0.004)
        page.click(".hs-new")
        expect(page.locator(".hs-turn")).to_have_count(0)
        received = 0
        ask(page, "Go")
        finished(page)
        assert output(page) == "".join(words[:n])
        sizes.append(received)
    # Each value sent in full would make the bytes grow with the square: 16 times from 500 to 2,000.
    assert sizes[2] < 6 * sizes[0]
    assert sizes[2] < 2000 * 400


def test_everything_of_a_failed_run_is_text(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(
        WORDS, fails_after=0, failure=Failed("<b>broken</b>", "<i>mend it</i>", True, "<u>log</u>")
    )
    page = visitor.open(fake.address)
    ask(page, "Hello")
    expect(page.locator(".hs-failed p")).to_have_text("<b>broken</b>; <i>mend it</i>.")
    assert page.text_content(".hs-failed pre") == "<u>log</u>"


def test_every_figure_explains_itself_to_the_keyboard(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    terms = page.locator("#figures .hs-has-tip")
    assert terms.count() == 8
    for i in range(8):
        tip = terms.nth(i).locator(".hs-tip")
        expect(tip).to_be_hidden()
        terms.nth(i).focus()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        expect(tip).to_be_visible()
        assert terms.nth(i).get_attribute("aria-describedby") == tip.get_attribute("id")

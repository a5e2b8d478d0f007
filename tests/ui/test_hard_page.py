"""What may make the page slow, silent or wrong: stuck processes, files that vanish, odd and endless texts."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from app.worker.client import PATIENCE_S
from app.worker.messages import Failed
from tests.ui.conftest import Served, Visitor, ready
from tests.ui.fakes import FakeShelf, Script
from tests.ui.test_page import OUTPUT, ask, choose, enter, finished, output, until

TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline"]


def joins(page: Page) -> Counter[int]:
    """How often each function of the server is asked from now on."""
    counted: Counter[int] = Counter()

    def note(request: Request) -> None:
        if request.url.partition("?")[0].endswith("/queue/join"):
            counted.update([request.post_data_json["fn_index"]])  # type: ignore[index]

    page.on("request", note)
    return counted


# The model process


def test_a_silent_model_process_is_told_of_and_can_be_stopped(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script([f" word{i}" for i in range(40)], holds_after=3)
    page = visitor.open(fake.address)
    ask(page, "Say words")
    expect(page.locator(OUTPUT).nth(3)).to_be_attached()
    said = output(page)
    fake.client.runs[0].silence = "no sign of life from the model process for 25 s: stopping ends it"
    expect(page.locator(".hs-status")).to_have_text(
        "No sign of life from the model process for 25 s: stopping ends it"
    )
    assert output(page) == said != ""
    fake.client.script = Script(["Fine"])
    page.click(".hs-stop")
    finished(page)
    assert output(page) == said
    ask(page, "Again")
    finished(page)
    assert output(page) == "Fine"


def test_a_child_that_had_to_be_ended_leaves_the_text_and_a_reason(fake: Served, visitor: Visitor) -> None:
    assert PATIENCE_S < 30, "one waits in front of the page"
    ended = Failed("the model process did not stop when it was told to, and was ended", "ask again", True)
    fake.client.script = Script([f" word{i}" for i in range(40)], fails_after=3, failure=ended)
    page = visitor.open(fake.address)
    ask(page, "Say words")
    expect(page.locator(".hs-failed")).to_contain_text("did not stop when it was told to")
    assert output(page).startswith(" word0 word1")


# Files


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_vanished_is_named_when_another_takes_its_place(
    fake: Served, visitor: Visitor, role: str
) -> None:
    fake.shelf.on_disk |= {"short-lived"}
    page = visitor.open(fake.address)
    page.check("#mode input[value=draft]", force=True)
    expect(page.locator(f"#{role}")).to_be_visible()
    settle_on(page, role, "short-lived")
    fake.shelf.on_disk -= {"short-lived"}
    page.reload()
    ready(page)
    expect(page.locator("#notes .hs-problem")).to_contain_text(
        f"The {role} short-lived can't be used (it is not there any more); "
    )
    assert page.input_value(f"#{role}") != FakeShelf.path("short-lived")


def test_a_model_that_vanishes_before_it_is_asked_is_named(fake: Served, visitor: Visitor) -> None:
    fake.shelf.on_disk |= {"short-lived"}
    page = visitor.open(fake.address)
    settle_on(page, "target", "short-lived")
    fake.shelf.on_disk -= {"short-lived"}
    ask(page, "Hi")
    expect(page.locator(".hs-failed")).to_contain_text("short-lived.gguf is not among the models here")
    assert fake.client.runs == []


def settle_on(page: Page, role: str, name: str) -> None:
    """Choose a model and wait for all that follows: memory, outlook, and to remember it."""
    told: list[Request] = []
    page.on("requestfinished", lambda request: told.append(request))
    choose(page, f"#{role}", name)
    picked = f'"{role}":"{FakeShelf.path(name)}"'
    assert until(lambda: sum(picked in (request.post_data or "") for request in told) >= 4, page)
    expect(page.locator(f"#{role}")).to_have_value(FakeShelf.path(name))


# Texts

ODD_WORDS = [
    "שלום ", "עולם ", "\u202e", "txt.exe", "\u2066", " مرحبا", "e", "\u0301", "o\u0308\u0323", "👩", "\u200d",
    "👩\u200d", "👧\u200d👦", " 🏳️", "\u200d🌈", "\ufffd", "\ufeff", "\u0000", "\u0007", "\r\n", "\u2028",
    "<b>", "&lt;", "${1}", "{{2}}", "C:\\users", "\\n", "</script>",
]  # fmt: skip


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7])
def test_odd_texts_arrive_as_they_are_however_drafts_cut_them(fake: Served, visitor: Visitor, k: int) -> None:
    fake.client.script = Script(ODD_WORDS * 3)
    page = visitor.open(fake.address)
    choose(page, "#preset", "Duo")
    page.check(f"#mode input[value={'draft' if k else 'plain'}]", force=True)
    if k:
        page.evaluate("document.querySelector('.hs-settings-toggle').click()")
        enter(page, "#n_draft input[type=number]", str(k))
        page.keyboard.press("Escape")
    question = "".join(word for word in ODD_WORDS if word not in ("\r\n", "\0"))  # a text field changes those
    ask(page, question)
    finished(page)
    assert output(page) == "".join(ODD_WORDS * 3)
    assert page.locator(".hs-question-text").text_content() == question
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_a_question_of_a_megabyte(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    question = "All work and no play. " * 45_000
    page.evaluate("text => document.querySelector('.hs-input').value = text", question)
    page.press(".hs-input", "Enter")
    finished(page)
    assert fake.client.runs[0].request.messages[-1].content == question
    ask(page, "And a short one")
    finished(page)
    assert output(page) == "Hello, world!"


# Work


def test_a_preset_asks_for_what_follows_from_it_once(fake: Served, visitor: Visitor) -> None:
    """It sets twenty fields; each one's change must not ask for the memory and the outlook again."""
    page = visitor.open(fake.address)
    expect(page.locator(".hs-memory-bars")).not_to_be_empty()
    counted = joins(page)
    choose(page, "#preset", "Duo")
    expect(page.locator("#draft")).to_have_value(FakeShelf.path("small-draft"))
    expect(page.locator(".hs-memory-bars")).to_contain_text("draft", ignore_case=True)
    page.wait_for_timeout(1500)  # whatever else may come
    assert sum(counted.values()) <= 8, counted


def test_a_new_token_restyles_and_lays_out_little_of_a_long_answer(
    fake: Served, visitor: Visitor, browser: Browser
) -> None:
    words = [f" word{i}" + ("\n" if i % 15 == 14 else "") for i in range(2400)]
    fake.client.script = Script(words, pause_s=0.005, holds_after=440)
    page = visitor.open(fake.address)
    choose(page, "#preset", "Duo")
    ask(page, "A long story")
    expect(page.locator(OUTPUT).nth(1500)).to_be_attached()
    browser.start_tracing(page=page, categories=TRACED)
    fake.client.release.set()
    finished(page)
    events: list[dict[str, Any]] = json.loads(browser.stop_tracing())["traceEvents"]
    updates = [event["args"] for event in events if event["name"] == "UpdateLayoutTree"]
    restyled = sorted(update["elementCount"] for update in updates if "elementCount" in update)
    assert len(restyled) > 3
    assert restyled[len(restyled) // 2] < 1200, "far fewer than the page's 3,000 tokens"
    assert output(page) == "".join(words)
    most = (
        "Math.max(...[...document.querySelectorAll('.hs-text, .hs-text > div')].map(n => n.children.length))"
    )
    assert page.evaluate(most) < 200, "a block is laid out as a whole"

"""The memory bar in a real browser: it follows what is chosen, warns, and holds nothing up."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.ui.conftest import Served, Visitor
from tests.ui.test_page import ask, choose, enter, finished


def bar(page: Page, words: str) -> None:
    expect(page.locator("#memory .hs-memory-line")).to_have_text(f"Memory{words}")


def open_loading(page: Page) -> None:
    page.click(".hs-settings-toggle")
    page.click("#loading > button")


def test_it_follows_models_context_and_cache_types(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    bar(page, "2.4 of 4.0 GB free")  # 1.5 + 0.45 GB and 2,048 tokens for each
    page.click("#mode label:has-text('Plain')")
    bar(page, "1.7 of 4.0 GB free")
    page.click("#mode label:has-text('Draft')")
    bar(page, "2.4 of 4.0 GB free")
    open_loading(page)
    enter(page, "#n_ctx input", "8192")
    bar(page, "3.6 of 4.0 GB free")
    page.click("#cache_type label:has-text('q8_0')")
    bar(page, "3.2 of 4.0 GB free")
    page.click("#draft_cache_type label:has-text('q8_0')")
    bar(page, "2.8 of 4.0 GB free")
    expect(page.locator("#memory .hs-memory-words")).to_be_hidden()
    page.keyboard.press("Escape")
    ask(page, "Hello")
    finished(page)
    load = fake.client.runs[0].load
    assert (load.cache_type_k, load.cache_type_v) == ("q8_0", "q8_0")
    assert (load.draft_cache_type_k, load.draft_cache_type_v) == ("q8_0", "q8_0")


def test_parts_have_words_colours_and_patterns(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    bar(page, "2.4 of 4.0 GB free")
    box = page.locator("#memory .hs-memory-box")
    box.focus()
    tip = page.locator("#memory .hs-tip")
    expect(tip).to_be_visible()
    assert box.get_attribute("aria-label") == "Memory: 2.4 of 4.0 GB free"
    assert box.get_attribute("aria-describedby") == tip.get_attribute("id")
    texts = tip.locator(".hs-memory-part").all_inner_texts()
    assert [re.sub(r"\s+", " ", text) for text in texts] == [
        "Weights as in the file 1.0 GB target + 300 MB draft",
        "Repacked copies of weights, laid out for this processor 400 MB target + 120 MB draft",
        "Context what the models remember of it 205 MB target + 205 MB draft",
        "Buffers for one pass 100 MB target + 30 MB draft",
    ]
    pieces = page.locator("#memory .hs-memory-bar i")
    shares = pieces.evaluate_all("nodes => nodes.map(node => parseFloat(node.style.width))")
    assert [round(share, 2) for share in shares] == [32.5, 13.0, 10.24, 3.25]
    looks = pieces.evaluate_all(
        "nodes => nodes.map(node => getComputedStyle(node)).map(s => s.backgroundColor + s.backgroundImage)"
    )
    assert len(set(looks)) == 4


def test_too_much_is_said_with_what_would_fit_and_can_be_asked_all_the_same(
    fake: Served, visitor: Visitor
) -> None:
    page = visitor.open(fake.address)
    open_loading(page)
    enter(page, "#n_ctx input", "16384")
    bar(page, "5.2 of 4.0 GB free")
    words = page.locator("#memory .hs-memory-words")
    expect(words).to_have_text(
        "The models need 5.2 GB of RAM and 4.0 GB are free: a context of at most 12800 tokens fits; "
        "without the draft model it fits; with a cache of type q8_0 it fits"
    )
    expect(page.locator("#memory .hs-over em")).to_have_css("position", "absolute")
    page.keyboard.press("Escape")
    ask(page, "Hello")
    finished(page)
    assert fake.client.runs[0].load.n_ctx == 16384
    page.click("#mode label:has-text('Lookup')")
    bar(page, "3.1 of 4.0 GB free")
    expect(words).to_be_hidden()


def test_a_field_that_is_wrong_hides_it(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    open_loading(page)
    enter(page, "#threads input", "many")
    expect(page.locator("#memory .hs-memory-box")).to_have_count(0)
    enter(page, "#threads input", "2")
    bar(page, "2.4 of 4.0 GB free")


def test_an_estimate_that_takes_long_holds_nothing_up(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    bar(page, "2.4 of 4.0 GB free")
    fake.shelf.may_weigh.clear()
    page.click("#mode label:has-text('Plain')")
    ask(page, "Hello")
    finished(page)
    bar(page, "2.4 of 4.0 GB free")
    fake.shelf.may_weigh.set()
    bar(page, "1.7 of 4.0 GB free")


def test_presets_are_grouped_and_what_is_ready_comes_first(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    assert page.locator("#preset").evaluate(
        """select => [...select.children].map(
             node => node.label && node.tagName === 'OPTGROUP'
               ? [node.label, ...[...node.children].map(option => option.text)] : node.text)"""
    ) == [
        "Your own choice",
        ["Ready", "Starter", "Duo"],
        ["To fetch", "Coder pair (1.1 GB to fetch)"],
        [
            "Well-known pairs, not tried here",
            "Giants (about 900.0 GB to fetch), more than this machine's RAM",
        ],
    ]
    choose(page, "#preset", "Giants")
    expect(page.locator(".hs-card")).to_contain_text("Fetch about 900.0 GB")


def test_numbers_out_of_bounds_and_beyond_exactness_are_told(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.click(".hs-settings-toggle")
    page.fill("#n_draft input[type=number]", "100")
    expect(page.locator("#n_draft .hs-limit")).to_have_text("It goes from 1 to 31: 100 becomes 31.")
    page.keyboard.press("Tab")
    expect(page.locator("#n_draft input[type=number]")).to_have_value("31")
    enter(page, "#n_draft input[type=number]", "7")
    expect(page.locator(".hs-limit")).to_be_hidden()
    page.click("#sampling > button")
    enter(page, "#seed input", "10000000000000000000")
    page.keyboard.press("Escape")
    ask(page, "Hello")
    expect(page.locator(".hs-failed")).to_contain_text("Seed is too large to be kept exactly")
    assert fake.client.runs == []

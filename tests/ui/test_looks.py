"""What can be measured of the looks: contrast, overflow, focus, motion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Served, Visitor
from tests.ui.fakes import Script
from tests.ui.test_page import WORDS, ask, finished

SIZES = {
    "desktop": (1280, 720),
    "desktop at 200 %": (640, 360),
    "wide": (1920, 1080),
    "phone": (390, 844),
    "small phone": (320, 640),
}
LONG = "a_very_long_name_without_any_break_" * 12


def luminance(colour: tuple[float, ...]) -> float:
    parts = [c / 255 / 12.92 if c <= 10.3 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2's contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def rgb(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in re.findall(r"[\d.]+", text))


COLOURS = """node => {
  const colour = getComputedStyle(node).color;
  for (let at = node; at; at = at.parentElement) {
    const fill = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$|transparent/.test(fill)) return [colour, fill];
  }
}"""


def show_everything(fake: Served, page: Page) -> None:
    fake.client.script = Script([*WORDS, LONG, "<think>"], left_out=1)
    ask(page, f"Hello {LONG}")
    finished(page)
    page.click("#mode label:has-text('Plain')")
    expect(page.locator("#draft")).to_be_hidden()
    fake.client.script = Script(WORDS[:6], fails_after=4)
    ask(page, "Plainly")
    expect(page.locator(".hs-failed")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(fake: Served, visitor: Visitor, theme: str, tmp_path: Path) -> None:
    page = visitor.open(f"{fake.address}?__theme={theme}")
    show_everything(fake, page)
    assert page.evaluate("document.body.classList.contains('dark')") is (theme == "dark")
    kinds = [f".hs-text .k-{code}" for code in "acbtxd"]
    others = [
        ".hs-question-text",
        ".hs-summary",
        ".hs-failed p",
        ".hs-note",
        ".hs-row dt",
        ".hs-row dd",
        ".hs-ratio",
    ]
    more = [
        ".hs-legend-meaning",
        ".hs-pair-words",
        ".hs-card span",
        ".hs-fetch",
        ".hs-send",
        ".hs-quit",
        ".hs-under",
    ]
    for selector in kinds + others + more:
        colour, fill = page.locator(selector).first.evaluate(COLOURS)
        assert contrast(rgb(colour), rgb(fill)) >= 4.5, (selector, colour, fill)
    page.screenshot(path=tmp_path / f"{theme}.png")


def test_the_system_theme_is_followed_and_the_button_overrides_it(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address, color_scheme="dark")
    is_dark = "document.body.classList.contains('dark')"
    assert page.evaluate(is_dark) is True
    page.click(".hs-theme")
    assert page.evaluate(is_dark) is False
    page.reload()
    page.wait_for_selector(".hs-example")
    page.wait_for_function(f"!({is_dark})")


@pytest.mark.parametrize("size", SIZES)
def test_nothing_overflows_sideways(fake: Served, visitor: Visitor, size: str) -> None:
    width, height = SIZES[size]
    page = visitor.open(fake.address, viewport={"width": width, "height": height})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    show_everything(fake, page)
    assert page.evaluate(overflow) <= 0
    wide = """[...document.querySelectorAll('.hs-chat *, .hs-figures *, #offer *, #notes *, .hs-chrome *')]
        .filter(n => n.getClientRects().length && !n.closest('.hs-strip, .hs-sr, pre') &&
                     n.getBoundingClientRect().right > innerWidth + 0.5).map(n => n.className)"""
    assert page.evaluate(wide) == []
    page.click(".hs-settings-toggle")
    expect(page.locator("#drawer")).to_be_visible()
    assert page.evaluate(overflow) <= 0


def test_a_desktop_window_does_not_scroll_as_a_whole(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    show_everything(fake, page)
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0
    box = page.locator(".hs-input").bounding_box()
    assert box is not None
    assert 0 < box["y"] < 720 - box["height"]


@pytest.mark.parametrize("size", [size for size in SIZES if size != "wide"])
def test_the_ask_box_is_in_sight_from_the_beginning_and_hides_no_text(
    fake: Served, visitor: Visitor, size: str
) -> None:
    width, height = SIZES[size]
    page = visitor.open(fake.address, viewport={"width": width, "height": height})

    def edges(selector: str) -> tuple[float, float]:
        box = page.locator(selector).last.bounding_box()
        assert box is not None
        return box["y"], box["y"] + box["height"]

    assert edges(".hs-send")[1] <= height
    fake.client.script = Script(WORDS * 20)
    ask(page, "A long answer")
    finished(page)
    top, bottom = edges(".hs-input")
    assert 0 < top < bottom <= height
    assert edges(".hs-turn:last-child .hs-summary")[1] <= top


@pytest.mark.parametrize("width", [320, 390, 520, 640, 759, 760, 900, 1280])
def test_tabs_and_buttons_of_the_header_never_cover_each_other(
    fake: Served, visitor: Visitor, width: int
) -> None:
    page = visitor.open(fake.address, viewport={"width": width, "height": 700})
    covered = """[...document.querySelectorAll('#tabs > .tab-wrapper [role=tab], .hs-tools button')]
        .filter(n => n.getClientRects().length).map(n => [n, n.getBoundingClientRect()])
        .filter(([n, box]) => box.left >= 0 && box.right <= innerWidth)
        .filter(([n, box]) => !n.contains(
            document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2)))
        .map(([n]) => n.textContent)"""
    assert page.evaluate(covered) == []


def test_the_newest_text_stays_in_view_unless_one_scrolled_up(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    fake.client.script = Script([f"line {i}\n" for i in range(80)], holds_after=10)
    ask(page, "Hello")
    at_end = "document.querySelector('.hs-scroll')"
    expect(page.locator(".hs-text span").nth(40)).to_be_attached()
    gap = f"{at_end}.scrollHeight - {at_end}.scrollTop - {at_end}.clientHeight"
    page.wait_for_function(f"{gap} < 80")
    page.evaluate(f"{at_end}.scrollTop = 0")
    fake.client.release.set()
    finished(page)
    assert page.evaluate(f"{at_end}.scrollTop") == 0


def test_focus_can_be_seen(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    page.focus(".hs-quit")
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert page.evaluate("document.activeElement.className").split()[-1] == "hs-theme"
    assert outline == "solid"


def test_reduced_motion_stands_still(fake: Served, visitor: Visitor) -> None:
    fake.client.script = Script(WORDS, load_s=2)
    page = visitor.open(fake.address, reduced_motion="reduce")
    ask(page, "Hello")
    expect(page.locator(".hs-status")).to_contain_text("Loading")
    animation = "getComputedStyle(document.querySelector('.hs-status'), '::before').animationName"
    assert page.evaluate(animation) == "none"


def test_no_clutter_of_the_framework(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    expect(page.locator("footer")).to_have_count(0)
    assert page.title() == "Headstart"

"""The tab "Make a draft": on a tiny real model, and on a workshop that does what a test says."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.backend.files import read_facts
from app.core.copies import CopyPlan, ModelCopy
from app.core.errors import Cancelled, HeadstartError, UsageError
from app.drafts.bench import Measured
from app.drafts.search import LOOKUPS
from app.drafts.trials import News, Result, Trial
from app.library import making
from app.library.catalogue import ModelFile
from app.library.making import Making
from app.ui.making_drafts import OnProgress, Stopped
from tests.backend.tiny_gguf import TinyModel
from tests.ui.conftest import Visitor
from tests.ui.fakes import FakeClient, FakeShelf
from tests.ui.test_compare_tab import OVERFLOW
from tests.ui.test_looks import COLOURS, contrast, rgb
from tests.ui.test_page import NASTY

FASTER = Measured((1.1, 1.31, 1.52), 0.913, 0.38, 0.2)
TRIALS = (
    Trial(LOOKUPS, measured=Measured((0.9, 1.02, 1.2))),
    Trial("Q4_K_M", 986_000_000, 0.32, 0.9475, FASTER, "kept"),
    Trial("Q2_K", 676_000_000, 0.21, 0.71, note="not measured: about 0.98x is expected"),
)


@dataclass
class FakeWorkshop:
    """Plans at once, and works for as long as ``go_on`` is not set."""

    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    failure: HeadstartError | None = None

    def plan(self, target: Path, file_type: str | None, skip: str | None, name: str | None) -> Making:
        self.asked.append(("plan", target, file_type, skip, name))
        if skip == "99":
            raise UsageError("99 layers can't be skipped: this model has 28, and the first and the last stay")
        copy = ModelCopy(file_type or "Q4_K_M", (13, 14) if skip else ())
        place = Path(f"/models/{name or target.stem + '-draft'}.gguf")
        return Making(target, place, copy, CopyPlan(300, 986_000_000, 32, 100), target)

    def make(self, making: Making, on_progress: OnProgress, stopped: Stopped) -> Path:
        on_progress(f"writing {making.destination.name}", 150, 300)
        self._wait(stopped)
        return making.destination

    def search(
        self, target: Path, minutes: float, on_news: Callable[[News], None], stopped: Stopped
    ) -> Result:
        self.asked.append(("search", target, minutes))
        on_news(News("measuring Q4_K_M", 3, 9, TRIALS[:1]))
        self._wait(stopped)
        return Result(TRIALS, Path("/models/best.gguf"), f"Q4_K_M pays best {NASTY}")

    def _wait(self, stopped: Stopped) -> None:
        while not self.go_on.wait(0.02):
            if stopped():
                raise Cancelled
        if self.failure:
            raise self.failure


@dataclass
class Served:
    address: str
    workshop: FakeWorkshop


@pytest.fixture(scope="module")
def faked() -> Iterator[Served]:
    from app.ui.page import build, serve

    client, workshop = FakeClient(), FakeWorkshop()
    page = build(client, FakeShelf(), workshop=workshop)
    yield Served(serve(page, None), workshop)
    client.close()
    page.server.force_exit = True
    page.close(verbose=False)


@pytest.fixture
def served(faked: Served) -> Iterator[Served]:
    faked.workshop.go_on.clear()
    faked.workshop.asked.clear()
    faked.workshop.failure = None
    yield faked
    faked.workshop.go_on.set()


def open_tab(address: str, visitor: Visitor, **options: object) -> Page:
    page = visitor.open(address, **options)
    page.get_by_role("tab", name="Make a draft").click()
    expect(page.locator(".hs-d-make [type=submit]")).to_be_enabled()
    return page


def test_a_plan_says_what_it_will_be_before_anything_is_made(served: Served, visitor: Visitor) -> None:
    page = open_tab(served.address, visitor)
    plan = page.locator(".hs-d-plan")
    expect(plan).to_contain_text("Q4_K_M, all layers, about 986 MB")
    expect(plan).to_contain_text("costs about 0.32 of a plain one")
    target = page.locator(".hs-d-target select")
    chosen = Path(target.input_value())
    expect(page.locator(".hs-d-name")).to_have_attribute("placeholder", f"{chosen.stem}-draft")
    assert target.locator("option[disabled]").all_inner_texts() == ["cut-short: the file is cut short"]
    page.select_option(".hs-d-type", "Q3_K_S")
    page.fill(".hs-d-skip", "2")
    page.fill(".hs-d-name", "mine")
    expect(plan).to_contain_text("Q3_K_S, 2 layers fewer")
    assert served.workshop.asked[-1] == ("plan", chosen, "Q3_K_S", "2", "mine")
    page.fill(".hs-d-skip", "99")
    expect(plan).to_contain_text("99 layers can't be skipped: this model has 28")
    expect(page.locator(".hs-d-make [type=submit]")).to_be_disabled()


def test_one_is_made_while_others_watch_and_then_used(served: Served, visitor: Visitor) -> None:
    page = open_tab(served.address, visitor)
    other = open_tab(served.address, visitor)
    page.fill(".hs-d-name", "mine")
    expect(page.locator(".hs-d-make [type=submit]")).to_be_enabled()
    page.click(".hs-d-make [type=submit]")
    work = page.locator(".hs-d-work")
    expect(work).to_contain_text("Making mine.gguf")
    expect(work).to_contain_text("Writing mine.gguf")
    assert page.locator(".hs-d-work progress").evaluate("bar => bar.value") == 0.5
    expect(page.locator(".hs-d-search [type=submit]")).to_be_disabled()
    other.click(".hs-d-make [type=submit]")
    expect(other.locator(".hs-d-problem")).to_contain_text("A draft is already being made; stop it, or wait")
    other.reload()
    other.get_by_role("tab", name="Make a draft").click()
    expect(other.locator(".hs-d-work")).to_contain_text("Writing mine.gguf")
    served.workshop.go_on.set()
    for tab in (page, other):
        expect(tab.locator(".hs-d-verdict p")).to_have_text(
            re.compile("mine.gguf is made: it stands first among the drafts of .*gguf\\.")
        )
        expect(tab.locator(".hs-d-stop")).to_be_hidden()
    expect(page.locator(".hs-d-make [type=submit]")).to_be_enabled()


def test_a_stopped_one_leaves_nothing(served: Served, visitor: Visitor) -> None:
    page = open_tab(served.address, visitor)
    page.click(".hs-d-make [type=submit]")
    page.click(".hs-d-stop")
    expect(page.locator(".hs-d-verdict p")).to_have_text("Stopped; nothing was kept.")
    expect(page.locator(".hs-d-use")).to_be_hidden()


def test_a_search_shows_its_table_and_its_verdict(served: Served, visitor: Visitor) -> None:
    page = open_tab(served.address, visitor)
    page.fill(".hs-d-minutes", "0")
    page.locator(".hs-d-search").evaluate("form => form.noValidate = true")
    page.click(".hs-d-search [type=submit]")
    expect(page.locator(".hs-d-problem")).to_contain_text("Minutes 0 must lie above 0")
    page.fill(".hs-d-minutes", "7")
    page.click(".hs-d-search [type=submit]")
    expect(page.locator(".hs-d-problem")).to_be_hidden()
    rows = page.locator(".hs-d-table tbody tr")
    expect(rows).to_have_count(1)
    expect(page.locator(".hs-d-work")).to_contain_text("Measuring Q4_K_M")
    served.workshop.go_on.set()
    expect(rows).to_have_count(3)
    cells = ["Q4_K_M", "986 MB", "0.32", "95%", "0.38", "91%", "1.31 (1.10 to 1.52)", "faster; kept"]
    assert rows.nth(1).locator("th, td").all_inner_texts() == cells
    expect(page.locator(".hs-d-verdict p")).to_have_text(f"Q4_K_M pays best {NASTY}.")
    assert ("search", Path(page.locator(".hs-d-target select").input_value()), 7.0) in served.workshop.asked
    expect(page.locator(".hs-d-use")).to_be_visible()


def test_a_failure_is_said(served: Served, visitor: Visitor) -> None:
    page = open_tab(served.address, visitor)
    served.workshop.failure = HeadstartError("the disk is full", "free 2 GB first")
    page.click(".hs-d-make [type=submit]")
    served.workshop.go_on.set()
    expect(page.locator(".hs-d-problem")).to_have_text("The disk is full; free 2 GB first.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_and_fits_a_telephone(
    served: Served, visitor: Visitor, tmp_path: Path, theme: str
) -> None:
    served.workshop.go_on.set()
    page = open_tab(served.address, visitor, color_scheme=theme)
    page.click(".hs-d-search [type=submit]")
    expect(page.locator(".hs-d-table tbody tr")).to_have_count(3)
    expect(page.locator(".hs-d-make [type=submit]")).to_be_enabled()
    for selector in (
        ".hs-d-lead",
        ".hs-d-plan dt",
        ".hs-d-plan dd",
        ".hs-d-words",
        ".hs-d-table td",
        ".hs-c-hint",
    ):
        colour, fill = page.locator(f"#make-draft {selector}").first.evaluate(COLOURS)
        assert contrast(rgb(colour), rgb(fill)) >= 4.5, (selector, colour, fill)
    page.screenshot(path=tmp_path / f"{theme}.png", full_page=True)
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"{OVERFLOW} <= 0")
        page.screenshot(path=tmp_path / f"{theme}-{width}.png", full_page=True)


def test_on_a_real_model(visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.ui.page import build, serve
    from app.worker.client import WorkerClient

    target = TinyModel(n_layer=6).write(tmp_path / "ziel é.gguf")
    shelf = FakeShelf()
    monkeypatch.setattr(
        shelf, "models", lambda: [ModelFile("ziel é", target, target.stat().st_size, "model")]
    )
    monkeypatch.setattr(making, "models_dir", lambda: tmp_path)
    client = WorkerClient()
    served = build(client, shelf)
    try:
        page = open_tab(serve(served, None), visitor)
        page.select_option(".hs-d-type", "Q8_0")
        page.fill(".hs-d-skip", "2-3")
        expect(page.locator(".hs-d-plan")).to_contain_text("Q8_0, 2 layers fewer")
        expect(page.locator(".hs-d-make [type=submit]")).to_be_enabled()
        page.click(".hs-d-make [type=submit]")
        expect(page.locator(".hs-d-verdict p")).to_have_text(
            "ziel é-draft-q8_0-cut2.gguf is made: it stands first among the drafts of ziel é.gguf."
        )
        assert read_facts(tmp_path / "ziel é-draft-q8_0-cut2.gguf").n_layer == 4
        expect(page.locator(".hs-d-plan")).to_contain_text(
            "exists already; remove it, or choose another name"
        )
    finally:
        client.close()
        served.server.force_exit = True
        served.close(verbose=False)

"""A browser, and a page on the scripted client that every test finds fresh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Playwright,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.ui.fakes import FakeClient, FakeShelf

BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_configure(config: pytest.Config) -> None:
    # Gradio keeps figures of its own queue with calls that pandas has deprecated.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:gradio.queueing")


DESKTOP: ViewportSize = {"width": 1280, "height": 720}
PATIENCE_MS = 60_000  # real models on a busy machine need it; nothing waits that long when it works


@pytest.fixture(scope="session")
def playwright_driver() -> Iterator[Playwright]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="session")
def browser(playwright_driver: Playwright, chromium_path: str) -> Iterator[Browser]:
    browser = playwright_driver.chromium.launch(executable_path=chromium_path, args=BROWSER_FLAGS)
    yield browser
    browser.close()


@dataclass
class Visitor:
    """Opens tabs, and notes what they ask of the network and what goes wrong in them."""

    browser: Browser
    spare: list[BrowserContext]
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def context(self) -> BrowserContext:
        """A browser of its own, with nobody's cookies; one used before has the scripts in its cache."""
        context = self.spare.pop() if self.spare else self.browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        return context

    def open(
        self,
        address: str,
        context: BrowserContext | None = None,
        viewport: ViewportSize = DESKTOP,
        **media: Any,
    ) -> Page:
        page = (context or self.context()).new_page()
        page.set_viewport_size(viewport)
        page.emulate_media(**media)
        page.on("request", lambda request: self._note(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        ready(page)
        return page

    def leave(self) -> None:
        """Close every tab and forget what they kept."""
        for context in self.contexts:
            for page in context.pages:
                page.close()
            context.set_storage_state({"cookies": [], "origins": []})
            context.clear_permissions()
        self.spare += self.contexts

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)


def ready(page: Page) -> None:
    """The page has found its conversation and chosen its models."""
    page.wait_for_function("document.querySelector('#target')?.value")


@pytest.fixture(scope="session")
def spare_contexts() -> list[BrowserContext]:
    return []


@pytest.fixture
def visitor(browser: Browser, spare_contexts: list[BrowserContext]) -> Iterator[Visitor]:
    visitor = Visitor(browser, spare_contexts)
    yield visitor
    visitor.leave()
    assert visitor.outside == []
    assert visitor.errors == []


@dataclass
class Served:
    address: str
    client: FakeClient
    shelf: FakeShelf
    quits: list[bool]


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from app.ui.page import build, serve

    client, shelf, quits = FakeClient(), FakeShelf(), []  # type: ignore[var-annotated]
    page = build(client, shelf, lambda: quits.append(True))
    yield Served(serve(page, None), client, shelf, quits)
    client.close()
    page.server.force_exit = True
    page.close(verbose=False)


@pytest.fixture
def fake(server: Served) -> Iterator[Served]:
    server.client.reset()
    server.shelf.reset()
    yield server
    server.client.close()
    server.shelf.let_download_finish.set()

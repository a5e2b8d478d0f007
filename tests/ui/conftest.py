"""A browser, and a page on the scripted client that every test finds fresh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

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
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def context(self, **options: object) -> BrowserContext:
        options.setdefault("viewport", {"width": 1280, "height": 720})
        context = self.browser.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        return context

    def open(self, address: str, context: BrowserContext | None = None, **options: object) -> Page:
        page = (context or self.context(**options)).new_page()
        page.on("request", lambda request: self._note(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        ready(page)
        return page

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)


def ready(page: Page) -> None:
    """The page has found its conversation and chosen its models."""
    page.wait_for_function("document.querySelector('#target')?.value")


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    for context in visitor.contexts:
        context.close()
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

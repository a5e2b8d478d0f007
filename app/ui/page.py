"""The whole page: its frame, its tabs, and how it is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gradio as gr
from gradio.routes import STATIC_TEMPLATE_LIB, templates
from jinja2 import ChoiceLoader, DictLoader, FileSystemLoader
from starlette.middleware import Middleware

from app.ui.answering import Client
from app.ui.compare import CompareTab
from app.ui.components import asset, scripted
from app.ui.generate import QUIET, GenerateTab
from app.ui.guard import OnlyThisMachine
from app.ui.make_draft import MakeDraftTab
from app.ui.making_drafts import DiskWorkshop, Workshop
from app.ui.models_library import DiskLibrary, Library
from app.ui.models_tab import ModelsTab
from app.ui.shelf import DiskShelf, Shelf
from app.worker.client import WorkerClient

SANS = ["system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Liberation Sans", "sans-serif"]
STYLES = ("page.css", "parts.css", "chat.css", "side.css", "compare.css", "models.css", "make-draft.css")
MONO = ["ui-monospace", "SF Mono", "Cascadia Code", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"]

POLL_S = 0.02  # a click waits for it, and nobody notices


def build(
    client: Client,
    shelf: Shelf | None = None,
    on_quit: Callable[[], None] | None = None,
    library: Library | None = None,
    workshop: Workshop | None = None,
) -> gr.Blocks:
    """The page around a worker's client; ``on_quit`` is called when a person ends the program from it."""
    with gr.Blocks(title="Headstart", analytics_enabled=False, fill_width=True) as page:
        chrome = scripted("chrome.html", ["chrome.js"], elem_id="chrome")
        library = library or DiskLibrary()
        shelf = shelf or DiskShelf(library.queue)
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap"):
            with gr.Tab("Generate", id="generate"):
                GenerateTab(client, shelf)
            with gr.Tab("Compare", id="compare", elem_id="compare-tab"):
                CompareTab(cast(WorkerClient, client), shelf)
            with gr.Tab("Models", id="models", elem_id="models-tab"):
                ModelsTab(library)
            with gr.Tab("Make a draft", id="make-draft", elem_id="make-draft-tab"):
                MakeDraftTab(shelf, workshop or DiskWorkshop(cast(WorkerClient, client)))
        if on_quit is not None:
            chrome.quit(lambda: on_quit(), None, None, **QUIET)
    return page


def serve(page: gr.Blocks, port: int | None) -> str:
    """Serve the page on 127.0.0.1 and return its address; returns at once."""
    page.queue(default_concurrency_limit=None)
    # Gradio looks for work a thousand times a second, also when nobody asks anything: 3 % of a core.
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = POLL_S
    _run_first("frames.js")
    _, address, _ = page.launch(
        server_name="127.0.0.1",
        server_port=port,
        prevent_thread_lock=True,
        inbrowser=False,
        share=False,
        quiet=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        app_kwargs={"middleware": [Middleware(OnlyThisMachine)]},
        theme=theme(),
        # Not as css_paths: Gradio would scope every rule to its container.
        head=f"<style>{''.join(asset(name) for name in STYLES)}</style>",
    )
    return str(address)


def _run_first(script: str) -> None:
    """Put a script before Gradio's own, whose ``head`` comes too late to change what they call."""
    name = "frontend/index.html"
    html = Path(STATIC_TEMPLATE_LIB, name).read_text("utf-8")
    ours = html.replace("<head>", f"<head><script>{asset(script)}</script>", 1)
    templates.env.loader = ChoiceLoader([DictLoader({name: ours}), FileSystemLoader(STATIC_TEMPLATE_LIB)])


def theme() -> Any:
    """Calm greys and one accent, in the fonts of the machine: nothing is asked of the network."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.stone,
        font=SANS,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_md,
        text_size=gr.themes.sizes.text_md,
    )

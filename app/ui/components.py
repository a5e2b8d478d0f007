"""The page's own components: static templates, and scripts that set text as text.

Gradio evaluates ``{{value}}`` and ``${value}`` in a template as code or markup, so no template here holds
either; a script follows the value instead. They are made by a function because Gradio writes a stub file
beside every module that subclasses a component.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

ASSETS = Path(__file__).with_name("assets")


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (ASSETS / name).read_text("utf-8")


def scripted(template: str, scripts: Sequence[str], value: Any = None, **props: Any) -> Any:
    """Static markup and the scripts that fill it; the value may be any JSON."""
    return gr.HTML(
        value,
        html_template=asset(template),
        js_on_load="\n".join(asset(script) for script in scripts),
        apply_default_css=False,
        **props,
    )

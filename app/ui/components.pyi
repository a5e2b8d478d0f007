"""The page's own components: static templates, and scripts that set text as text.

Gradio evaluates ``{{value}}`` and ``${value}`` in a template as code or markup, so no template here holds
either; a script follows the value instead.
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

from gradio.events import Dependency

class Scripted(gr.HTML):  # type: ignore[misc]
    """Static markup and the scripts that fill it; the value may be any JSON."""

    def __init__(self, template: str, scripts: Sequence[str], value: Any = None, **props: Any) -> None:
        super().__init__(
            value,
            html_template=asset(template),
            js_on_load="\n".join(asset(script) for script in scripts),
            apply_default_css=False,
            **props,
        )

    def postprocess(self, value: Any) -> Any:
        """As it is: it never becomes markup."""
        return value

    def preprocess(self, payload: Any) -> Any:
        """As it is."""
        return payload
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component
"""The page's own components: static templates, and scripts that set text as text.

Gradio evaluates ``{{value}}`` and ``${value}`` in a template as code or markup, so no template here holds
either; a script follows the value instead. They are made by a function because Gradio writes a stub file
beside every module that subclasses a component.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.errors import HeadstartError

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


def answering(name: str, acts: Mapping[str, Callable[..., Any]]) -> Callable[[dict[str, Any]], str]:
    """What a script calls as ``server.NAME``: ``do`` names the act, the rest are its arguments.

    JSON comes back: what the act returned, or ``{"error": ...}`` as a sentence.
    """

    def answer(asked: dict[str, Any]) -> str:
        try:
            found = acts[asked["do"]](**{key: value for key, value in asked.items() if key != "do"})
        except HeadstartError as error:
            found = {"error": sentence(error)}
        except Exception as error:  # a script that waits must be told, whatever happened
            traceback.print_exc()
            found = {"error": f"The page failed: {type(error).__name__}: {error}."}
        return json.dumps(found)  # Gradio's own way takes seconds for a long answer

    answer.__name__ = name
    return answer


def sentence(error: HeadstartError) -> str:
    """The error as a sentence of its own."""
    words = str(error)
    if "." not in words.partition(" ")[0]:  # else it begins with a file's name or an address
        words = words[:1].upper() + words[1:]
    return f"{words}."

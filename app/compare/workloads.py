"""The prompts that ship with the program, and those of a person's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.compare.record import Prompt
from app.core.errors import UsageError

# The kinds differ on purpose: how much of a draft is accepted depends on them.
KINDS = {
    "code": "writing code",
    "edit": "editing",
    "summarise": "summarising",
    "answer": "answering from a text",
    "translate": "translation",
    "reason": "reasoning",
    "extract": "extraction to JSON",
    "story": "a story",
}
# Beside the kinds themselves: one prompt of each, and all of them.
MIXED, ALL = "mixed", "all"
NAMES = (*KINDS, MIXED, ALL)
_FILE = Path(__file__).with_name("workloads.jsonl")


def workload(name: str) -> tuple[Prompt, ...]:
    """The prompts of a built-in workload. Raises UsageError for an unknown name."""
    prompts = read_prompts(_FILE)
    if name == ALL:
        return prompts
    if name == MIXED:
        first = {prompt.category: prompt for prompt in reversed(prompts)}
        return tuple(first[kind] for kind in KINDS)
    if name not in KINDS:
        raise UsageError(f"there is no workload '{name}'; choose one of {', '.join(NAMES)}")
    return tuple(prompt for prompt in prompts if prompt.category == name)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file of JSON lines: ``{"id", "category", "prompt"}``, or ``turns``, of which the
    first counts. Without an id a prompt is called by its line, without a category it is ``other``.

    Raises UsageError naming the line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read the prompts {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the prompts {path} are not UTF-8 text; save the file as UTF-8") from None
    return parse_prompts(text, str(path))


def parse_prompts(text: str, name: str) -> tuple[Prompt, ...]:
    """The prompts of such a file's text; ``name`` is what errors call it. Raises UsageError."""
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number)
            if prompt.id in prompts:
                raise ValueError(f"the id '{prompt.id}' is taken by an earlier line")
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
            raise UsageError(f"{name}, line {number}: {problem}") from None
        prompts[prompt.id] = prompt
    if not prompts:
        raise UsageError(f"{name} has no prompts; write one JSON object a line")
    return tuple(prompts.values())


def _prompt(value: Any, number: int) -> Prompt:
    if not isinstance(value, dict):
        raise ValueError('not an object; write {"id": …, "category": …, "prompt": …}')
    if "prompt" in value and "turns" in value:
        raise ValueError("both a prompt and turns; leave one out")
    text = value.get("prompt")
    if "turns" in value:
        turns = value["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError("turns is not a list with a first question")
        text = turns[0]
    if not isinstance(text, str) or not text.strip():
        raise ValueError("no prompt; it must be text that is not empty")
    names: dict[str, str] = {}
    for key, fallback in (("id", f"line {number}"), ("category", "other")):
        name = value.get(key, fallback)
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            raise ValueError(f"the {key} must be text or a whole number")
        names[key] = str(name)
    return Prompt(**names, prompt=text)

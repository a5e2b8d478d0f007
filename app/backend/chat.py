"""From a conversation to prompt ids, by the chat template that the GGUF file brings.

The template is a stranger's code: it runs in Jinja's immutable sandbox and under a time limit. Its own
markers become special tokens; the same characters typed by a person stay plain text.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.backend.model import Model
from app.core.errors import HeadstartError
from app.core.settings import ChatMessage
from app.core.thinking import MARKERS

_TIME_LIMIT_S = 5.0
_LARGEST_PRODUCT = 10_000_000
_NEVER_MERGED = "\ue000"  # a private character: no vocabulary has a token that continues it


class _TooSlow(Exception):
    """Raised inside a template's thread when its time is over."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses what takes too long or too much memory within one step, where the time limit cannot reach."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A product of two numbers, or of a text and a number, unless it is huge; never a power."""
        sizes = [len(side) if isinstance(side, (str, list, tuple)) else abs(side) for side in (left, right)]
        if operator == "**" or sizes[0] * sizes[1] > _LARGEST_PRODUCT:
            raise SecurityError(f"it multiplies beyond {_LARGEST_PRODUCT}")
        return super().call_binop(context, operator, left, right)


class ChatFormat:
    """One model's way of writing conversations."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._specials = _alternation(model.special_texts())
        self._bos = model.piece(model.bos, special=True).decode("utf-8", "replace") if model.bos >= 0 else ""
        eos = model.piece(model.eos, special=True).decode("utf-8", "replace") if model.eos >= 0 else ""
        self._source = model.chat_template()
        self._environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self._environment.filters["tojson"] = _to_json
        self._environment.globals.update(
            raise_exception=_refuse,
            strftime_now=lambda pattern: datetime.datetime.now().strftime(pattern),
            bos_token=self._bos,
            eos_token=eos,
        )
        self._template: jinja2.Template | None = None  # compiled when first needed: raw prompts need none

    def prompt_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The ids of a conversation up to where the model's answer begins, with one BOS if it wants one.

        Without a template (a base model) the turns are joined by blank lines for the model to go on.
        """
        mark = _unused_character(messages)
        literals: list[str] = []

        def hide(match: re.Match[str]) -> str:
            literals.append(match[0])
            return f"{mark}{len(literals) - 1}{mark}"

        hidden = [ChatMessage(m.role, self._specials.sub(hide, m.content)) for m in messages]
        rendered = self.render(hidden)
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{mark}(\\d+){mark}", rendered)):
            is_literal = place % 2 == 1
            ids += self._tokenize_next(literals[int(part)] if is_literal else part, not is_literal, not ids)
        return self._with_bos(ids)

    def raw_ids(self, prompt: str) -> list[int]:
        """The ids of a prompt taken as it is, special tokens parsed, with one BOS if the model wants one."""
        return self._with_bos(self._model.tokenize(prompt, parse_special=True))

    def opens_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends inside a thinking part that the template opened."""
        tail = b"".join(self._model.piece(token, special=True) for token in prompt_ids[-16:])
        return tail.decode("utf-8", "replace").rstrip().endswith(tuple(opener for opener, _ in MARKERS))

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as the template writes it."""
        if self._source is None:
            return "\n\n".join(message.content for message in messages)
        try:
            try:
                return self._run(messages)
            except jinja2.TemplateError:
                # Some templates know no system role: what they are told then opens the first question.
                if len(messages) < 2 or messages[0].role != "system":
                    raise
                first = ChatMessage("user", f"{messages[0].content}\n\n{messages[1].content}")
                return self._run([first, *messages[2:]])
        except Exception as error:  # whatever a stranger's code may raise
            raise self._unusable(error) from None

    def _run(self, messages: Sequence[ChatMessage]) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]

        def work() -> str:
            if self._template is None:
                self._template = self._environment.from_string(self._source or "")
            return self._template.render(messages=turns, add_generation_prompt=True)

        return _within_time(work)

    def _tokenize_next(self, text: str, parse_special: bool, is_first: bool) -> list[int]:
        """The ids of a part of a text. A later part must not get the blank that SPM puts first."""
        if is_first or not text or self._model.vocab_type != "SPM":
            return self._model.tokenize(text, parse_special)
        before = self._model.tokenize(_NEVER_MERGED, False)
        return self._model.tokenize(_NEVER_MERGED + text, parse_special)[len(before) :]

    def _with_bos(self, ids: list[int]) -> list[int]:
        wants_bos = self._model.adds_bos and ids[:1] != [self._model.bos]
        return [self._model.bos, *ids] if wants_bos else ids

    def _unusable(self, error: Exception) -> HeadstartError:
        reason = "it takes too long" if isinstance(error, _TooSlow) else f"{type(error).__name__}: {error}"
        return HeadstartError(
            f"the chat template of {self._model.path.name} cannot be used ({reason})",
            "choose another model, or send a raw prompt (--raw)",
        )


def _within_time(work: Callable[[], str]) -> str:
    """Run ``work`` in a thread that is interrupted when its time is over."""
    outcome: list[str | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the caller
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_TIME_LIMIT_S)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TooSlow)
        )
        thread.join(1.0)
    result = outcome[0] if outcome else _TooSlow()
    if isinstance(result, BaseException):
        raise result
    return result


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))


def _alternation(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern for any of the texts, the longest first; one that never matches where there are none."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _unused_character(messages: Sequence[ChatMessage]) -> str:
    used = set("".join(message.content for message in messages))
    return next(character for code in range(0xE000, 0xF8FF) if (character := chr(code)) not in used)

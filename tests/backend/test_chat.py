"""Conversations become ids: the template's markers alone are special, and its code can do no harm."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import OpenSession, WriteTiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session import user
from tiny_gguf import LLAMA_TEMPLATE, TinyModel, byte_level, sentence_piece

from app.backend import chat
from app.backend.chat import ChatFormat
from app.backend.model import Model
from app.core.errors import HeadstartError
from app.core.settings import ChatMessage

SYSTEM = ChatMessage("system", "be brief")


@pytest.fixture
def chatml(tiny: WriteTiny) -> Iterator[ChatFormat]:
    """A byte-level BPE model with ChatML."""
    model = Model(tiny(TinyModel()), vocab_only=True)
    yield ChatFormat(model)
    model.close()


@pytest.fixture
def spm(tiny: WriteTiny) -> Iterator[Model]:
    """An SPM model that wants a BOS, whose template writes one too and refuses a system role."""
    model = Model(tiny(TinyModel(vocabulary=sentence_piece(), template=LLAMA_TEMPLATE)), vocab_only=True)
    yield model
    model.close()


@pytest.fixture
def with_template(tiny: WriteTiny) -> Iterator[object]:
    """``with_template(source)``: the format of a model that brings this template."""
    opened: list[Model] = []

    def open_(source: str | None) -> ChatFormat:
        opened.append(Model(tiny(TinyModel(template=source)), vocab_only=True))
        return ChatFormat(opened[-1])

    yield open_
    for model in opened:
        model.close()


def written(model: Model, ids: Sequence[int]) -> str:
    """The text of ids, special ones spelt out."""
    return b"".join(model.piece(token, special=True) for token in ids).decode("utf-8", "replace")


def specials(model: Model, ids: Sequence[int]) -> list[str]:
    """The special tokens among ids, spelt out."""
    return [written(model, [token]) for token in ids if model.piece(token) == b""]


class TestMarkers:
    def test_the_prompt_is_the_template_tokenised_as_a_whole(self, chatml: ChatFormat) -> None:
        messages = [SYSTEM, ChatMessage("user", "the cat\n\nin the hat")]
        ids = chatml.prompt_ids(messages)
        assert ids == chatml._model.tokenize(chatml.render(messages), parse_special=True)
        assert written(chatml._model, ids) == (
            "<|im_start|>system\nbe brief<|im_end|>\n"
            "<|im_start|>user\nthe cat\n\nin the hat<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_a_typed_marker_stays_text(self, chatml: ChatFormat) -> None:
        """V3."""
        model = chatml._model
        ids = chatml.prompt_ids(user("<|im_end|>"))
        assert specials(model, ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
        assert written(model, ids).count("<|im_end|>") == 2
        literal = model.tokenize("<|im_end|>", parse_special=False)
        assert len(literal) == len("<|im_end|>")  # this vocabulary has a token a byte
        start = ids.index(literal[0])
        assert ids[start : start + len(literal)] == literal

    def test_a_typed_marker_on_a_real_vocabulary(self, coder_target: Path) -> None:
        model = Model(coder_target, vocab_only=True)
        form = ChatFormat(model)
        ids = form.prompt_ids(user("say <|im_end|>\n\ntwice"))
        assert written(model, ids) == form.render(user("say <|im_end|>\n\ntwice"))
        assert specials(model, ids).count("<|im_end|>") == 2  # the system's and the user's turn
        literal = model.tokenize("<|im_end|>", parse_special=False)
        assert len(literal) == 6
        before, after = form.render(user("say <|im_end|>\n\ntwice")).split("<|im_end|>\n\ntwice")
        after = "\n\ntwice" + after
        assert ids == [*model.tokenize(before, True), *literal, *model.tokenize(after, True)]
        model.close()

    @given(
        parts=st.lists(
            st.sampled_from(
                ["<|im_end|>", "<|im_start|>", "<|fim|>", "\n", "\n\n", " ", "the", " in", "é語", "|>", "7"]
            ),
            max_size=8,
        )
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_nothing_typed_is_lost_or_becomes_special(self, chatml: ChatFormat, parts: list[str]) -> None:
        model, text = chatml._model, "".join(parts)
        ids = chatml.prompt_ids(user(text))
        assert written(model, ids) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert specials(model, ids) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]

    @given(
        parts=st.lists(
            st.sampled_from(["<s>", "</s>", "<unk>", " ", "  ", "\n", "hello", " world", "é"]), max_size=7
        )
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_nothing_typed_is_lost_in_sentence_pieces(self, spm: Model, parts: list[str]) -> None:
        text = "".join(parts)
        ids = ChatFormat(spm).prompt_ids(user(text))
        # SPM puts one blank before a text that follows a special token, here before "[user]".
        assert written(spm, ids) == f"<s> [user] {text}</s>"
        assert specials(spm, ids) == ["<s>", "</s>"]

    def test_private_characters_in_a_text_pass(self, chatml: ChatFormat) -> None:
        text = "\ue000 0 \ue000<|im_end|>\ue0010\ue001"
        ids = chatml.prompt_ids(user(text))
        assert f"user\n{text}<|im_end|>\n" in written(chatml._model, ids)
        assert specials(chatml._model, ids).count("<|im_end|>") == 1

    def test_a_raw_prompt_has_its_markers_parsed(self, chatml: ChatFormat) -> None:
        assert specials(chatml._model, chatml.raw_ids("a<|im_end|>b")) == ["<|im_end|>"]


class TestBos:
    """V2: exactly one where the model wants one."""

    def test_the_template_writes_it(self, spm: Model) -> None:
        ids = ChatFormat(spm).prompt_ids(user("hello"))
        assert ids[0] == spm.bos
        assert ids.count(spm.bos) == 1

    def test_the_template_does_not_write_it(self, tiny: WriteTiny) -> None:
        words = replace(byte_level(), add_bos=True)
        model = Model(tiny(TinyModel(vocabulary=words)), vocab_only=True)
        ids = ChatFormat(model).prompt_ids(user("hello"))
        assert (ids[0], ids.count(model.bos)) == (model.bos, 1)
        model.close()

    @pytest.mark.parametrize("prompt", ["hello", "<s>hello", ""])
    def test_a_raw_prompt(self, spm: Model, prompt: str) -> None:
        ids = ChatFormat(spm).raw_ids(prompt)
        assert (ids[0], ids.count(spm.bos)) == (spm.bos, 1)

    def test_none_where_the_model_wants_none(self, chatml: ChatFormat) -> None:
        assert chatml._model.bos not in chatml.prompt_ids(user("hello"))
        assert chatml._model.bos not in chatml.raw_ids("hello")

    def test_the_same_ids_in_every_mode(
        self, open_session: OpenSession, tiny_target: Path, tiny_draft: Path
    ) -> None:
        session = open_session(tiny_target, tiny_draft)
        conversation = [SYSTEM, ChatMessage("user", "one <|im_end|> two")]
        prompts = {
            session.ask(conversation, mode, max_tokens=2).prompt_ids for mode in ("plain", "draft", "lookup")
        }
        assert prompts == {tuple(session.format.prompt_ids(conversation))}


class TestTemplates:
    def test_none(self, with_template) -> None:  # type: ignore[no-untyped-def]
        form = with_template(None)
        messages = [ChatMessage("user", "one"), ChatMessage("assistant", "1"), ChatMessage("user", "two")]
        assert written(form._model, form.prompt_ids(messages)) == "one\n\n1\n\ntwo"

    def test_a_refused_system_role_opens_the_first_question(self, spm: Model) -> None:
        form = ChatFormat(spm)
        assert form.render([SYSTEM, *user("hello")]) == "<s>[user] be brief\n\nhello</s>"

    def test_its_own_refusal_is_passed_on(self, with_template) -> None:  # type: ignore[no-untyped-def]
        form = with_template("{{ raise_exception('roles must alternate') }}")
        with pytest.raises(HeadstartError, match=r"roles must alternate.*--raw"):
            form.prompt_ids(user("hello"))
        with pytest.raises(HeadstartError, match="roles must alternate"):
            form.prompt_ids([SYSTEM, *user("hello")])

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.__class__.__base__.__subclasses__() }}",
            "{{ cycler.__init__.__globals__.os.system('true') }}",
            "{% for i in range(10**9) %}x{% endfor %}",
            "{% for i in range(1000000000) %}x{% endfor %}",
            "{{ 10 ** 10 ** 10 }}",
            "{{ 'a' * 10000000000 }}",
            "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
            "{% set _ = messages.append(1) %}",
            "{{ messages[5].content }}",
            "{{ 1 / 0 }}",
            "{% if %}",
            "{{ unknown_function() }}",
            "{% include '/etc/passwd' %}",
            "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
            "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        ],
        ids=lambda source: source[:40],
    )
    def test_hostile_and_broken_ones_fail_with_a_reason(self, with_template, source: str) -> None:  # type: ignore[no-untyped-def]
        form = with_template(source)
        with pytest.raises(HeadstartError, match=r"chat template of .* cannot be used"):
            form.prompt_ids(user("hello"))
        # A raw prompt needs no template.
        assert written(form._model, form.raw_ids("hello")) == "hello"

    def test_one_that_never_ends_is_stopped(self, with_template, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
        monkeypatch.setattr(chat, "_TIME_LIMIT_S", 0.2)
        loop = "{% for i in range(90000) %}"
        form = with_template(loop * 3 + "{% endfor %}" * 3)
        started = time.monotonic()
        with pytest.raises(HeadstartError, match="takes too long"):
            form.prompt_ids(user("hello"))
        assert time.monotonic() - started < 60

    def test_a_look_inside_finds_nothing(self, with_template) -> None:  # type: ignore[no-untyped-def]
        form = with_template("[{{ raise_exception.__globals__ }}{{ messages.__class__ }}]")
        assert form.render(user("hello")) == "[]"

    def test_what_real_templates_use_works(self, with_template) -> None:  # type: ignore[no-untyped-def]
        form = with_template(
            "{%- set ns = namespace(first=true) -%}\n"
            "{% for m in messages %}\n"
            "    {%- if m.role == 'assistant' %}{% continue %}{% endif -%}\n"
            "    {{- m['content'] | trim | tojson -}}\n"
            "{% endfor %}\n"
            "{{- '-' * 3 }}{{ 2 * 3 }}{{ strftime_now('%Y')[:2] }}"
        )
        messages = [ChatMessage("user", ' "é" '), ChatMessage("assistant", "no")]
        assert form.render(messages) == '"\\"é\\""---620'

    @pytest.mark.parametrize(("ending", "opens"), [("<think>\\n", True), ("</think>\\n", False), ("", False)])
    def test_a_thinking_part_that_the_template_opens(self, with_template, ending: str, opens: bool) -> None:  # type: ignore[no-untyped-def]
        form = with_template("{{ messages[0].content }}{{ '" + ending + "' }}")
        assert form.opens_thinking(form.prompt_ids(user("hello"))) is opens

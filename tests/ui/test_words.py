"""Figures, records and conversations, without a browser."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import gradio as gr
import pytest

from app.compare.outlook import Expectation
from app.core.auto import Choice
from app.core.settings import ChatMessage, LoadSettings, Mode, Request, SpeculationSettings
from app.core.stats import Stats
from app.core.tokens import DraftSource, TokenEvent, TokenKind
from app.ui import answering, figures, outlook, stream
from app.ui.answering import Answer, answer
from app.ui.conversation import Conversation, Conversations, Turn
from app.ui.reasons import why
from app.worker.messages import Failed, Finished, Measuring, RoundDone, Started, Waiting
from tests.ui.fakes import FakeClient, Script, rounds

NASTY = [
    "<img src=x onerror=alert(1)>",
    "${alert(1)}",
    "{{value}}",
    "C:\\users",
    '"\n\r\u2028\x1e\x00',
    "é你🙂",
]


def token(text: str, kind: TokenKind = TokenKind.TARGET) -> TokenEvent:
    return TokenEvent(1, text, kind, 0, None, None, 0.5, None)


@pytest.mark.parametrize("text", NASTY)
def test_a_record_is_one_line_and_gives_the_text_back(text: str) -> None:
    line = stream.token_record(token(text))
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert line.isascii()
    assert "<" not in line
    assert json.loads(line)[1] == text


def test_a_token_record_has_every_field() -> None:
    rejected = TokenEvent(7, " cat", TokenKind.REJECTED, 3, 1, DraftSource.LOOKUP, 0.123456, None)
    assert json.loads(stream.token_record(rejected)) == ["x", " cat", 3, 1, "l", 0.1235, None]


def test_every_kind_has_a_code_of_its_own() -> None:
    assert set(stream.KIND_CODES) == set(TokenKind)
    assert len(set(stream.KIND_CODES.values())) == len(TokenKind)


def test_two_streams_differ_in_their_first_line() -> None:
    assert stream.head(0) != stream.head(0)


def test_nothing_drafted_shows_dashes() -> None:
    keeper = figures.FigureKeeper()
    keeper.observe((token("a"),), Stats(output_tokens=1, target_passes=1, tokens_per_s=20.0), 0.1, 20.0)
    shown = keeper.shown()
    assert (shown["acceptance"], shown["length"], shown["chart"]) == ("—", "—", [])
    assert shown["ratio"] == "plain decoding"


@pytest.mark.parametrize(
    ("speed", "plain", "words", "slower"),
    [
        (28.4, 20.0, "1.42x plain (estimate)", False),
        (14.2, 20.0, "slower than plain: 0.71x (estimate)", True),
        (20.0, 20.0, "1.00x plain (estimate)", False),
        (20.0, None, "—", False),
    ],
)
def test_speed_against_plain(speed: float, plain: float | None, words: str, slower: bool) -> None:
    keeper = figures.FigureKeeper(speculates=True)
    keeper.finish(Stats(tokens_per_s=speed, output_tokens=5, drafted=4), plain)
    shown = keeper.shown()
    assert (shown["ratio"], shown["slower"]) == (words, slower)
    if plain:
        assert shown["ratio_detail"] == f"{speed} against {plain} tokens/s"


def test_a_ratio_that_reads_1_is_not_called_slower() -> None:
    assert figures.versus_plain(99.9, 100.0) == "1.00x plain (estimate)"
    assert figures.versus_plain(99.0, 100.0) == "slower than plain: 0.99x (estimate)"


def test_no_speed_up_is_claimed_where_nothing_was_drafted() -> None:
    keeper = figures.FigureKeeper(speculates=True)
    keeper.finish(Stats(tokens_per_s=90.0, output_tokens=13, target_passes=13, decode_s=0.14), 38.0)
    shown = keeper.shown()
    assert (shown["ratio"], shown["ratio_detail"]) == ("—", "nothing drafted so far")
    assert "plain" not in keeper.summary()


def test_speed_right_now_looks_two_seconds_back() -> None:
    keeper = figures.FigureKeeper()
    for second, tokens in ((0, 10), (1, 20), (2, 30), (3, 70), (4, 110)):
        keeper.observe((), Stats(output_tokens=tokens), float(second), None)
    assert keeper.now_tokens_per_s == pytest.approx(40.0)
    keeper.finish(Stats(output_tokens=110), None)
    assert keeper.shown()["now"] == "—"


def test_cached_prompt_tokens_are_labelled() -> None:
    keeper = figures.FigureKeeper()
    keeper.finish(Stats(prompt_tokens=430, cached_tokens=412, output_tokens=1, target_passes=1), None)
    assert keeper.shown()["prompt"] == "430 prompt tokens, 412 of them cached"
    assert "412 of 430 prompt tokens cached" in keeper.summary()


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "—"), (0.05, "0.05 s"), (0.999, "1.0 s"), (2.44, "2.4 s"), (41.2, "41 s"), (131.0, "2 min 11 s")],
)
def test_seconds(value: float | None, words: str) -> None:
    assert figures.seconds(value) == words


def test_thinking_and_empty_answers_stay_out_of_the_history() -> None:
    conversation = Conversation()
    conversation.begin("one").text = "<think>hm</think>Uno."
    conversation.begin("two").text = "<think>unfinished"
    conversation.begin("three").text = "drei</think>Three."
    conversation.turns[-1].opens_thinking = True
    conversation.begin("four")
    assert conversation.messages(" Be short. ") == (
        ChatMessage("system", " Be short. "),
        ChatMessage("user", "one"),
        ChatMessage("assistant", "Uno."),
        ChatMessage("user", "three"),
        ChatMessage("assistant", "Three."),
        ChatMessage("user", "four"),
    )


def test_a_replaced_turn_is_gone() -> None:
    conversation = Conversation()
    conversation.begin("one")
    conversation.begin("two")
    conversation.begin("two, better", replaces_last=True)
    assert [turn.question for turn in conversation.turns] == ["one", "two, better"]


def test_conversations_forget_the_longest_unused() -> None:
    conversations = Conversations(capacity=2)
    first = conversations.get("a")
    conversations.get("b").begin("x")
    assert conversations.get("a") is first
    conversations.get("c")
    assert conversations.get("a") is first
    assert conversations.get("b").turns == []


DRAFT = Path("/models/qwen2.5-coder-0.5b-instruct.gguf")


@pytest.mark.parametrize(
    ("choice", "draft", "n_drafted", "words"),
    [
        (
            Choice("none", "model", 0, 0.8, 1.9),
            DRAFT,
            0,
            "plain: a draft of the 0.5B would cost 1.9 tokens to gain 0.8",
        ),
        (
            Choice("none", "both", 0, 1.24, 1.9),
            DRAFT,
            0,
            "plain: a look-up that the 0.5B continues would cost 1.9 tokens to gain 1.2",
        ),
        (
            Choice("none", "lookup", 0, 1.2, 1.1),
            None,
            0,
            "plain: a look-up would gain 1.2 tokens for 1.1, not enough for the risk",
        ),
        (Choice("none", "lookup", 0, 0.0, 0.0), None, 0, "plain: nothing to look up"),
        (
            Choice("none", "lookup", 0, 0.0, 0.0),
            DRAFT,
            0,
            "plain: nothing to look up, and the 0.5B is not expected to pay",
        ),
        (
            Choice("lookup", "lookup", 6, 4.1, 2.0),
            None,
            0,
            "look-up: copying 6 should bring 4.1 more tokens for the time of 2.0",
        ),
        (
            Choice("model", "model", 0, 2.4, 1.1),
            DRAFT,
            3,
            "draft: the 0.5B should bring 2.4 more tokens for the time of 1.1",
        ),
        (
            Choice("model", "model", 0, 2.4, 1.1),
            Path("/m/<tiny>.gguf"),
            0,
            "draft: <tiny> should bring 2.4 more tokens for the time of 1.1, "
            "but <tiny> was not sure enough of one",
        ),
        (
            Choice("both", "both", 4, 5.0, 2.5),
            DRAFT,
            2,
            "look-up and draft: copying 4, then the 0.5B, should bring 5.0 more tokens for the time of 2.5",
        ),
    ],
)
def test_why(choice: Choice, draft: Path | None, n_drafted: int, words: str) -> None:
    assert why(choice, draft, n_drafted) == words


def test_what_auto_does_now_stands_for_a_second_and_ends_as_counts() -> None:
    keeper = figures.FigureKeeper(speculates=True)
    shown = []
    for t, source in ((0.0, "none"), (0.5, "lookup"), (0.9, "lookup"), (1.1, "model"), (1.2, "none")):
        keeper.explain(source, f"{source}: because", t)
        shown.append(keeper.shown()["doing"])
    assert shown == ["Now none: because"] * 3 + ["Now model: because"] * 2
    keeper.finish(Stats(), None)
    assert keeper.shown()["doing"] == "Rounds: 2 plain, 2 looked up, 1 drafted"


def test_without_auto_there_is_nothing_to_say_of_its_choices() -> None:
    values, turn, _ = ask(Script([f" word{i}" for i in range(9)]), Mode.LOOKUP)
    assert turn.figures is not None
    assert turn.figures["doing"] == ""
    assert "why" not in [fields[0] for fields in records(values[-1])]


def test_every_round_of_auto_has_its_reason_behind_its_tokens() -> None:
    values, turn, _ = ask(Script([f" word{i}" for i in range(30)]), Mode.AUTO)
    found = [fields for fields in records(values[-1]) if fields[0] in (*stream.KIND_CODES.values(), "why")]
    rounds_of = [fields[1] if fields[0] == "why" else fields[2] for fields in found]
    assert rounds_of == sorted(rounds_of)
    assert [fields[1] for fields in found if fields[0] == "why"] == list(range(rounds_of[-1] + 1))
    assert ["why", 2, "plain: a draft of the draft model would cost 1.9 tokens to gain 0.8"] in found
    assert turn.figures is not None
    assert turn.figures["doing"].startswith("Rounds: ")


def test_the_measuring_is_told() -> None:
    making = Answer(Turn("q"), 0, speculates=True)
    making.take(Measuring("target.gguf"))
    assert records(making.shown()[0])[-1] == ["status", "Measuring how fast target.gguf is here", None]


@pytest.mark.parametrize(
    ("expectations", "headline", "rows"),
    [
        ([Expectation("code", None, False, None)], outlook.UNMEASURED, []),
        (
            [Expectation("code", None, False, 1.5)],
            outlook.UNMEASURED,
            [["Writing code", "", "1.50x measured"]],
        ),
        (
            [Expectation("code", 1.0, False, None), Expectation("edit", 1.84, False, 1.7)],
            "Auto here: 1.0x to 1.8x plain, by kind of task (est.)",
            [["Writing code", "1.00x est.", ""], ["Editing", "1.84x est.", "1.70x measured"]],
        ),
        (
            [Expectation("story", 1.02, False, None)],
            "Auto here: as fast as plain (est.)",
            [["A story", "1.02x est.", ""]],
        ),
    ],
)
def test_what_auto_may_gain(expectations: list[Expectation], headline: str, rows: list[list[str]]) -> None:
    shown = outlook.shown(expectations)
    assert (shown["headline"], shown["rows"]) == (headline, rows)


def test_an_estimate_says_what_it_rests_on() -> None:
    assert outlook.shown([Expectation("code", 1.0, False, None)])["note"] == outlook.RECORDED
    assert outlook.shown([Expectation("code", 1.0, True, None)])["note"] == outlook.OWN
    assert outlook.shown([Expectation("code", None, False, 1.5)])["note"] == ""


def records(value: str) -> list[list[object]]:
    return [json.loads(line) for line in value.splitlines()]


def ask(script: Script, mode: Mode = Mode.DRAFT) -> tuple[list[str], Turn, FakeClient]:
    client, conversation = FakeClient(), Conversation()
    client.script = script
    turn = conversation.begin("question")
    request = Request(conversation.messages(""), speculation=SpeculationSettings(mode))
    load = LoadSettings("target.gguf")  # type: ignore[arg-type]
    values = [value for value, _ in answer(client, conversation, turn, load, request)]
    return values, turn, client


def test_values_only_grow_and_the_last_one_has_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "UPDATE_S", 0.01)
    words = [f" word{i}" for i in range(60)]
    values, turn, _ = ask(Script(words, pause_s=0.02))
    assert len(values) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(values))
    assert turn.text == "".join(words)
    output = [fields[1] for fields in records(values[-1]) if fields[0] in ("a", "c", "b", "t")]
    assert output == words
    assert records(values[-1])[-1][:2] == ["end", "stop"]


def test_figures_come_less_often_than_tokens_and_the_last_ones_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in {"UPDATE_S": 0.01, "FIGURES_S": 3600.0, "BEAT_S": 3600.0}.items():
        monkeypatch.setattr(answering, name, seconds)
    client, conversation = FakeClient(), Conversation()
    client.script = Script([f" word{i}" for i in range(30)], pause_s=0.02)
    turn = conversation.begin("question")
    request = Request(conversation.messages(""), speculation=SpeculationSettings(Mode.DRAFT))
    shown = [drawn for _, drawn in answer(client, conversation, turn, LoadSettings("t.gguf"), request)]  # type: ignore[arg-type]
    assert len(shown) > 3
    assert shown[1:-1] == [gr.skip()] * (len(shown) - 2)
    assert shown[0]["running"]
    assert shown[-1] == turn.figures
    assert not shown[-1]["running"]


def test_counts_are_those_of_the_tokens() -> None:
    words = [f" word{i}" for i in range(30)]
    values, turn, _ = ask(Script(words))
    assert turn.figures is not None
    kinds = [fields[0] for fields in records(values[-1])]
    for kind, code in stream.KIND_CODES.items():
        assert turn.figures["counts"][kind.value] == kinds.count(code)
    assert turn.figures["counts"]["rejected"] > 0


def test_a_failure_keeps_the_text_so_far() -> None:
    values, turn, _ = ask(Script([f" word{i}" for i in range(30)], fails_after=2))
    tail = records(values[-1])[-2:]
    assert tail[0] == [
        "failed",
        "The model process ended (signal 9); ask again: it starts anew.",
        "ggml: last line",
    ]
    assert tail[1][:2] == ["end", "failed"]
    assert turn.text.startswith(" word0 word1")


def test_closing_the_generator_cancels_the_run_and_keeps_the_text() -> None:
    client, conversation = FakeClient(), Conversation()
    client.script = Script([f" word{i}" for i in range(30)], holds_after=2)
    turn = conversation.begin("question")
    request = Request(conversation.messages(""), speculation=SpeculationSettings(Mode.DRAFT))
    answering = answer(client, conversation, turn, LoadSettings("t.gguf"), request)  # type: ignore[arg-type]
    while not turn.text:
        next(answering)
    answering.close()  # type: ignore[attr-defined]
    assert client.runs[0].cancelled.is_set()
    assert json.loads(turn.lines[-1])[:2] == ["end", "cancelled"]


def test_stop_before_the_run_exists_still_stops_it() -> None:
    client, conversation = FakeClient(), Conversation()
    client.script = Script([" word"] * 30, holds_after=0)
    turn = conversation.begin("question")
    request = Request(conversation.messages(""), speculation=SpeculationSettings(Mode.DRAFT))
    answering = answer(client, conversation, turn, LoadSettings("t.gguf"), request)  # type: ignore[arg-type]
    next(answering)
    conversation.stop()
    last = list(answering)[-1][0]
    assert records(last)[-1][:2] == ["end", "cancelled"]


def fold(words: list[str], opens_thinking: bool = False) -> list[list[object]]:
    making = Answer(Turn("q"), 0, speculates=False)
    making.take(Started((1,), 0, 0, opens_thinking))
    for index, (_, tokens) in enumerate(rounds(words, SpeculationSettings(Mode.PLAIN))):
        making.take(RoundDone(index, tokens, Stats(), 0.0, None))
    return [fields for fields in records(making.shown()[0]) if fields[0] in ("think", "answer")]


def test_thinking_folds_on_token_boundaries() -> None:
    assert fold(["<", "think", ">", "hm", "</", "think", ">\n", "Yes"]) == [["think", 0], ["answer", 7]]
    assert fold(["hm", "</think>", "Yes"], opens_thinking=True) == [["think", 0], ["answer", 2]]
    assert fold(["<think>", "hm"]) == [["think", 0]]
    assert fold(["Use ", "<think>", " here"]) == []


def test_status_lines_are_not_kept() -> None:
    turn = Turn("q")
    making = Answer(turn, 0, speculates=True)
    making.take(Waiting(1))
    assert ["status", "Waiting: 1 other answer first", None] in records(making.shown()[0])
    making.take(Finished((1,), (), "", "cancelled", Stats(), None))
    assert [json.loads(line)[0] for line in turn.lines] == ["turn", "end"]
    assert json.loads(turn.lines[-1]) == ["end", "cancelled", "no tokens", "stopped"]


def test_a_failure_without_a_remedy_is_still_one_sentence() -> None:
    turn = Turn("q")
    Answer(turn, 0, speculates=True).take(Failed("the file is cut short", ""))
    assert json.loads(turn.lines[1]) == ["failed", "The file is cut short.", ""]


def test_a_failure_that_begins_with_a_file_keeps_its_name() -> None:
    for what, shown in (
        ("zz.gguf is broken", "zz.gguf is broken; ask again."),
        ("it broke", "It broke; ask again."),
    ):
        turn = Turn("q")
        Answer(turn, 0, speculates=False).take(Failed(what, "ask again"))
        assert ["failed", shown, ""] in records("".join(turn.lines))


def test_an_answer_that_nobody_reads_on_has_no_speed_right_now() -> None:
    client, conversation = FakeClient(), Conversation()
    client.script = Script([f" word{i}" for i in range(60)], pause_s=0.02)
    turn = conversation.begin("question")
    values = answer(client, conversation, turn, LoadSettings(Path()), Request(()))
    shown = (drawn for _, drawn in values if drawn != gr.skip())
    while next(shown)["now"] == figures.DASH:
        pass
    values.close()
    assert turn.figures is not None
    assert (turn.figures["now"], turn.figures["running"]) == (figures.DASH, False)


def test_a_turn_that_has_left_the_conversation_shows_no_more() -> None:
    client, conversation = FakeClient(), Conversation()
    client.script = Script([" word"] * 9, holds_after=2)
    turn = conversation.begin("question")
    values = answer(client, conversation, turn, LoadSettings(Path()), Request(()))
    next(values)
    conversation.clear()
    assert list(values) == []
    assert client.runs[0].cancelled.is_set()

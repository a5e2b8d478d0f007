"""The order of runs and the runner, on a client that answers from a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.compare import history, runner
from app.compare.record import Audit, Column, Comparison, Prompt, Row
from app.compare.runner import Doing, Ended, Event, RunEnded, Runner, RunStarted, TokensCame
from app.core.errors import HeadstartError
from app.core.settings import LoadSettings, Mode, Request, SamplingSettings, Scoring
from app.core.stats import Stats
from app.core.tokens import TokenEvent, TokenKind
from app.worker.messages import (
    Failed,
    Finished,
    Loading,
    Measuring,
    Message,
    RoundDone,
    Scored,
    Started,
    Waiting,
)
from tests.unit.comparisons import DRAFT, K4, LOOKUP, PLAIN, PROMPTS, column, comparison, row

OTHER = column("other", Mode.DRAFT, Path("/models/other.gguf"))
TOKENS = (
    TokenEvent(5, "a", TokenKind.ACCEPTED, 0, 0, None, None, None),
    TokenEvent(6, "b", TokenKind.REJECTED, 0, 1, None, None, None),
    TokenEvent(7, "c", TokenKind.RECOVERED, 0, None, None, None, None),
)
Answers = Callable[[LoadSettings, Request | Scoring], list[Message]]


class ScriptedRun:
    """One batch of nothing, then the answer's messages; a cancel before the end replaces the last."""

    silence = ""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.cancelled = False

    def batches(self, timeout: float) -> Iterator[list[Message]]:
        yield []
        yield self._messages[:-1]
        last = self._messages[-1]
        yield [Finished((), (), "", "cancelled", Stats(), None) if self.cancelled else last]

    def cancel(self) -> None:
        self.cancelled = True


class ScriptedClient:
    """Loads what it is asked to, as the child does, and remembers every submission."""

    def __init__(self, answers: Answers | None = None) -> None:
        self.submissions: list[tuple[LoadSettings, Request | Scoring]] = []
        self.runs: list[ScriptedRun] = []
        self._held: LoadSettings | None = None
        self._answers = answers or (lambda load, request: [finished()])

    def submit(self, load: LoadSettings, request: Request | Scoring) -> ScriptedRun:
        self.submissions.append((load, request))
        loading: list[Message] = [] if load == self._held else [Loading("target", "target.gguf", 0.5)]
        answer = self._answers(load, request)
        failed = isinstance(answer[-1], Failed)
        self._held = None if failed else load
        started: list[Message] = (
            [] if failed or isinstance(answer[-1], Scored) else [Started((1, 2), 0, 0, False)]
        )
        self.runs.append(ScriptedRun([Waiting(1), *loading, *started, *answer]))
        return self.runs[-1]

    def forget(self) -> None:
        """Another tab has used the child for other models."""
        self._held = None

    @property
    def measured(self) -> list[tuple[LoadSettings, Request]]:
        found = [(load, request) for load, request in self.submissions if isinstance(request, Request)]
        return [(load, request) for load, request in found if request.fresh]

    @property
    def warm_ups(self) -> list[tuple[LoadSettings, Request]]:
        found = [(load, request) for load, request in self.submissions if isinstance(request, Request)]
        return [(load, request) for load, request in found if not request.fresh]


def finished(*ids: int) -> Finished:
    stats = Stats(tokens_per_s=10.0, output_tokens=len(ids))
    return Finished((1, 2), ids or (5, 7), "ac", "length", stats, None)


def run(client: ScriptedClient, over: Comparison, **more: object) -> tuple[Runner, list[Event]]:
    more = {"save": lambda comparison: None, **more}
    work = Runner(client, over, **more)  # type: ignore[arg-type]
    return work, list(work.events())


def rows(events: list[Event]) -> list[Row]:
    return [event.row for event in events if isinstance(event, RunEnded)]


def asked(client: ScriptedClient) -> list[tuple[str, str, int]]:
    """Mode, prompt and seed of each measured run."""
    return [
        (request.speculation.mode.value, request.messages[0].content, request.sampling.seed)
        for _, request in client.measured
    ]


def test_columns_take_turns_at_each_prompt_and_repeats_come_last() -> None:
    slots = comparison((LOOKUP, PLAIN, K4), repeats=2).slots()
    assert [slot.key for slot in slots] == [
        (name, prompt, repeat)
        for repeat in (0, 1)
        for prompt in ("c1", "e1")
        for name in ("plain", "lk", "k4")
    ]


def test_every_run_is_made_fresh_in_order_and_stored() -> None:
    stored: list[int] = []
    client, over = ScriptedClient(), comparison((LOOKUP, PLAIN), repeats=2)
    work, events = run(client, over, save=lambda comparison: stored.append(len(comparison.runs)))
    assert asked(client) == [
        (mode, prompt.prompt, seed) for seed in (0, 1) for prompt in PROMPTS for mode in ("plain", "lookup")
    ]
    assert stored == list(range(1, 9))
    assert over.runs == rows(events)
    assert over.remaining() == []
    assert events[-1] == Ended(cancelled=False)
    assert work.progress().done == work.progress().total == 8
    first = over.runs[0]
    assert (first.output_ids, first.finish_reason, first.audit) == ((5, 7), "length", Audit("identical"))


def test_the_replay_has_times_texts_and_kinds() -> None:
    stats = Stats(tokens_per_s=1.0)
    answer = [RoundDone(0, TOKENS, stats, 0.25, None), RoundDone(1, TOKENS[2:], stats, 0.5, None), finished()]
    _, events = run(ScriptedClient(lambda load, request: answer), comparison((PLAIN,), PROMPTS[:1]))
    (only,) = rows(events)
    assert only.replay == (
        (0.25, (("a", "accepted"), ("b", "rejected"), ("c", "recovered"))),
        (0.5, (("c", "recovered"),)),
    )
    came = [event for event in events if isinstance(event, TokensCame)]
    assert [(event.t, event.tokens) for event in came] == [(0.25, TOKENS), (0.5, TOKENS[2:])]


def test_each_column_is_warmed_up_once_and_the_warm_up_is_not_a_run() -> None:
    client = ScriptedClient()
    _, events = run(client, comparison((PLAIN, LOOKUP), repeats=2))
    assert [request.speculation.mode for _, request in client.warm_ups] == [Mode.PLAIN, Mode.LOOKUP]
    assert all(request.max_tokens == 8 for _, request in client.warm_ups)
    assert len(rows(events)) == 8
    assert "warming up" in {event.what for event in events if isinstance(event, Doing)}


def test_a_column_without_a_draft_keeps_the_one_that_is_loaded() -> None:
    client = ScriptedClient()
    run(client, comparison((PLAIN, K4), repeats=2))
    assert [load.draft for load, _ in client.measured] == [None, *[DRAFT] * 7]
    modes = [request.speculation.mode.value for _, request in client.warm_ups]
    assert modes == ["plain", "draft", "plain"]  # plain once more, with the draft beside it


def test_auto_without_a_draft_does_not_get_the_one_that_is_loaded() -> None:
    client = ScriptedClient()
    run(client, comparison((PLAIN, column("a", Mode.AUTO), column("b", Mode.AUTO, DRAFT)), PROMPTS))
    assert [load.draft for load, _ in client.measured] == [None, None, DRAFT, DRAFT, None, DRAFT]


def test_measuring_is_told_and_is_no_loading() -> None:
    answer = [Measuring("target.gguf"), finished()]
    client = ScriptedClient(lambda load, request: answer)
    _, events = run(client, comparison((column("a", Mode.AUTO),), PROMPTS[:1]))
    assert "measuring target.gguf" in [event.what for event in events if isinstance(event, Doing)]
    assert len(rows(events)) == len(client.measured) == 1


def test_other_drafts_are_loaded_at_their_turn_and_warmed_up() -> None:
    client = ScriptedClient()
    run(client, comparison((PLAIN, K4, OTHER), PROMPTS))
    other = OTHER.load.draft
    assert [load.draft for load, _ in client.measured] == [None, DRAFT, other, other, DRAFT, other]
    assert len(client.warm_ups) == 6


def test_a_run_during_which_models_were_loaded_is_made_again() -> None:
    client = ScriptedClient()
    work = Runner(client, comparison((PLAIN,), PROMPTS[:1]), save=lambda comparison: None)  # type: ignore[arg-type]
    began = 0
    for event in work.events():
        if isinstance(event, RunStarted):
            began += 1
        if isinstance(event, Doing) and event.what == "warming up":
            client.forget()  # before the measured run
    assert began == len(client.measured) == 2
    assert len(work.comparison.runs) == 1


def test_the_others_stand_where_a_column_fails() -> None:
    def answers(load: LoadSettings, request: Request | Scoring) -> list[Message]:
        is_draft = isinstance(request, Request) and request.speculation.mode is Mode.DRAFT
        return [Failed("no such draft", "choose another")] if is_draft else [finished()]

    client = ScriptedClient(answers)
    _, events = run(client, comparison((PLAIN, K4, LOOKUP)))
    by_column = {name: [one for one in rows(events) if one.column == name] for name in ("plain", "k4", "lk")}
    assert [(one.error, one.stats, one.audit) for one in by_column["k4"]] == [
        ("no such draft", None, None)
    ] * 2
    for name in ("plain", "lk"):
        assert [(one.error, one.audit) for one in by_column[name]] == [(None, Audit("identical"))] * 2
    assert {
        load.draft for load, request in client.measured if request.speculation.mode is not Mode.DRAFT
    } == {None}


def test_nothing_is_audited_where_plain_failed() -> None:
    def answers(load: LoadSettings, request: Request | Scoring) -> list[Message]:
        is_plain = isinstance(request, Request) and request.speculation.mode is Mode.PLAIN
        return [Failed("died", "", child_died=True)] if is_plain else [finished()]

    _, events = run(ScriptedClient(answers), comparison((PLAIN, LOOKUP)))
    assert [one.audit for one in rows(events)] == [None] * 4


@pytest.mark.parametrize(
    ("logits", "verdict"), [((3.0, 2.75), "near_tie"), ((3.0, 2.0), "different")], ids=["near", "far"]
)
def test_a_difference_is_scored_once_token_by_token(logits: tuple[float, float], verdict: str) -> None:
    def answers(load: LoadSettings, request: Request | Scoring) -> list[Message]:
        if isinstance(request, Scoring):
            return [Scored((7, 8), logits)]
        return [finished(5, 8, 9) if request.speculation.mode is Mode.LOOKUP else finished(5, 7, 9)]

    client = ScriptedClient(answers)
    _, events = run(client, comparison((PLAIN, LOOKUP), PROMPTS[:1], repeats=2))
    scorings = [request for _, request in client.submissions if isinstance(request, Scoring)]
    assert scorings == [Scoring((1, 2), (5,), SamplingSettings())]
    audits = [one.audit for one in rows(events) if one.column == "lk"]
    assert audits == [Audit(verdict, 1, (7, 8), logits[0] - logits[1])] * 2


def test_sampled_runs_are_not_audited_and_draw_from_following_seeds() -> None:
    sampled = column("s", Mode.LOOKUP, sampling=SamplingSettings(temperature=0.8, seed=5))
    client = ScriptedClient()
    _, events = run(client, comparison((PLAIN, sampled), PROMPTS[:1], repeats=2))
    assert [one.audit for one in rows(events) if one.column == "s"] == [None, None]
    assert [seed for mode, _, seed in asked(client) if mode == "lookup"] == [5, 6]


def test_cancelling_keeps_what_is_done_and_the_rest_can_be_made_later() -> None:
    client, over = ScriptedClient(), comparison((PLAIN, LOOKUP))
    work = Runner(client, over, save=lambda comparison: None)  # type: ignore[arg-type]
    events = []
    for event in work.events():
        events.append(event)
        if isinstance(event, RunStarted) and len(over.runs) == 1:
            work.cancel()
    assert events[-1] == Ended(cancelled=True)
    assert [one.column for one in over.runs] == ["plain"]
    later = ScriptedClient()
    _, events = run(later, over)
    assert [(mode, prompt) for mode, prompt, _ in asked(later)] == [
        ("lookup", "Write."), ("plain", "Change."), ("lookup", "Change."),
    ]  # fmt: skip
    assert events[-1] == Ended(cancelled=False)


def test_closing_the_generator_stops_the_run() -> None:
    client = ScriptedClient()
    events = Runner(client, comparison(), save=lambda comparison: None).events()  # type: ignore[arg-type]
    while not client.measured:
        next(events)
    next(events)
    events.close()
    assert client.runs[-1].cancelled


def test_progress_tells_what_remains() -> None:
    ticks = iter(range(0, 100, 3))
    _, events = run(ScriptedClient(), comparison((PLAIN, LOOKUP)), clock=lambda: float(next(ticks)))
    told = [event.progress for event in events if isinstance(event, RunEnded)]
    assert [(one.done, one.total, one.remaining_s) for one in told] == [
        (1, 4, 9.0), (2, 4, 6.0), (3, 4, 3.0), (4, 4, 0.0),
    ]  # fmt: skip


def test_the_remaining_time_knows_slow_columns() -> None:
    assert runner.remaining_s([], ["a"]) is None
    assert runner.remaining_s([("a", 2.0), ("a", 4.0), ("b", 9.0)], ["a", "b", "c"]) == 3 + 9 + 6


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "daten ä"))
    return tmp_path / "daten ä" / "comparisons"


def test_a_comparison_survives_its_file(home: Path) -> None:
    failed = Row("lk", "c1", "code", 0, error="no")
    audited = dataclasses.replace(
        row("k4", drafted_per_position=(3, 2)), audit=Audit("near_tie", 4, (1, None), 0.1)
    )
    over = comparison(
        runs=[row(), audited, failed], prompts=(Prompt("c1", "code", "ä\udcff\n"), *PROMPTS[1:])
    )
    history.save(over)
    assert history.load(over.id) == over
    assert history.load("latest") == over
    assert [path.name for path in home.iterdir()] == [f"{over.id}.json"]


def test_history_lists_the_newest_first_and_passes_over_what_is_broken(home: Path) -> None:
    assert history.entries() == []
    for name in ("20260101-000000", "20260102-000000", "20260102-000000-2"):
        history.save(dataclasses.replace(comparison(), id=name))
    (home / "20260103-000000.json").write_text("{}")
    history.save(dataclasses.replace(comparison(), id="20260104-000000", machine={"models": []}))
    assert [one.id for one in history.entries()] == [
        "20260102-000000-2",
        "20260102-000000",
        "20260101-000000",
    ]
    for name in ("20260103-000000", "20260104-000000"):
        with pytest.raises(HeadstartError, match="not a comparison of this version"):
            history.load(name)


@pytest.mark.parametrize("name", ["nothing", "../facts", "..", "", "latest"])
def test_there_is_no_such_comparison(name: str, home: Path) -> None:
    with pytest.raises(HeadstartError):
        history.load(name)


def test_every_comparison_gets_a_name_of_its_own(home: Path) -> None:
    columns: list[Column] = [PLAIN]
    made = []
    for _ in range(3):
        made.append(runner.new(columns, PROMPTS, 1, {}))
        history.save(made[-1])
    assert len({one.id for one in made}) == 3

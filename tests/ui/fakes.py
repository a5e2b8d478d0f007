"""A scripted worker's client and shelf: canned messages in place of models."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.compare.outlook import Expectation
from app.core.auto import Choice
from app.core.errors import HeadstartError
from app.core.memory import RAM, Amount, MemoryEstimate, ModelMemory, Room, advise, weigh
from app.core.models import PairCheck
from app.core.settings import LoadSettings, Mode, Request, SpeculationSettings
from app.core.stats import StatsRecorder
from app.core.tokens import DraftSource, Round, TokenEvent, TokenKind
from app.library.catalogue import ModelFile
from app.library.downloads import DownloadState
from app.library.presets import HubSource, Preset, PresetModel
from app.worker.messages import (
    Failed,
    Finished,
    Loading,
    Measuring,
    Message,
    Prefilling,
    RoundDone,
    Started,
    Waiting,
)

PLAIN_SPEED = 20.0


@dataclass
class Script:
    """What the next runs do. ``words`` are the output tokens; every third round rejects one proposal."""

    words: Sequence[str] = ("Hello", ",", " world", "!")
    pause_s: float = 0.0
    load_s: float = 0.0
    measure_s: float = 0.0
    left_out: int = 0
    cached: int = 0
    opens_thinking: bool = False
    fails_after: int | None = None  # rounds
    failure: Failed = field(
        default_factory=lambda: Failed(
            "the model process ended (signal 9)", "ask again: it starts anew", True, "ggml: last line"
        )
    )
    holds_after: int | None = None  # rounds after which the run waits for `release` or cancel


class FakeRun:
    silence = ""

    def __init__(self, client: FakeClient, load: LoadSettings, request: Request) -> None:
        self.client, self.load, self.request = client, load, request
        self.cancelled = threading.Event()
        self._queue: queue.Queue[Message] = queue.Queue()

    def put(self, message: Message) -> None:
        self._queue.put(message)

    def cancel(self) -> None:
        self.cancelled.set()

    def batches(self, timeout: float) -> Iterator[list[Message]]:
        while True:
            batch: list[Message] = []
            try:
                batch.append(self._queue.get(timeout=timeout))
                while True:
                    batch.append(self._queue.get_nowait())
            except queue.Empty:
                pass
            yield batch
            if any(isinstance(message, Finished | Failed) for message in batch):
                return


class FakeClient:
    """Runs are served one at a time, in order, like the real one's."""

    def __init__(self) -> None:
        self.script = Script()
        self.release = threading.Event()
        self.runs: list[FakeRun] = []
        self._turn = threading.Condition()
        self._line: list[FakeRun] = []

    def submit(self, load: LoadSettings, request: Request) -> FakeRun:
        run = FakeRun(self, load, request)
        self.runs.append(run)
        self._line.append(run)
        threading.Thread(target=self._serve, args=(run, self.script), daemon=True).start()
        return run

    def close(self) -> None:
        for run in self.runs:
            run.cancel()

    def reset(self) -> None:
        self.close()
        self.runs.clear()
        self.script = Script()
        self.release.clear()

    def _serve(self, run: FakeRun, script: Script) -> None:
        said = 0
        with self._turn:
            while self._line[0] is not run and not run.cancelled.is_set():
                ahead = self._line.index(run)
                if ahead != said:
                    run.put(Waiting(ahead))
                    said = ahead
                self._turn.wait(0.02)
        try:
            self._play(run, script)
        finally:
            with self._turn:
                self._line.remove(run)
                self._turn.notify_all()

    def _play(self, run: FakeRun, script: Script) -> None:
        clock = time.monotonic
        if script.load_s:
            for tenth in range(11):
                run.put(Loading("target", run.load.target.name, tenth / 10))
                time.sleep(script.load_s / 10)
        if script.measure_s:
            run.put(Measuring(run.load.target.name))
            time.sleep(script.measure_s)
        run.put(Started((1, 2, 3), script.cached, script.left_out, script.opens_thinking))
        run.put(Prefilling(3, 3))
        stats = StatsRecorder(clock, 30 + script.cached, script.cached, clock())
        stats.end_prefill()
        started, text, ids, reason = clock(), "", [], "stop"
        for number, (round_, tokens) in enumerate(rounds(script.words, run.request.speculation)):
            if run.cancelled.is_set():
                reason = "cancelled"
                break
            if number == script.fails_after:
                run.put(script.failure)
                return
            if number == script.holds_after:
                while not self.release.is_set() and not run.cancelled.is_set():
                    time.sleep(0.01)
                if run.cancelled.is_set():
                    reason = "cancelled"
                    break
            time.sleep(script.pause_s)
            stats.observe(round_)
            text += "".join(token.text for token in tokens if token.kind.is_output)
            ids += list(round_.output)
            choice = choice_of(number) if run.request.speculation.mode is Mode.AUTO else None
            run.put(RoundDone(number, tokens, stats.snapshot(), clock() - started, PLAIN_SPEED, choice))
        run.put(Finished((1, 2, 3), tuple(ids), text, reason, stats.snapshot(), PLAIN_SPEED))


# What auto does here, round by round, again and again.
AUTO_SOURCES = ("model", "lookup", "none", "both")


def choice_of(number: int) -> Choice:
    source = AUTO_SOURCES[number % len(AUTO_SOURCES)]
    if source == "none":
        return Choice("none", "model", 0, 0.8, 1.9)
    return Choice(source, source, 0 if source == "model" else 2, 2.5, 1.25)


def sources_of(number: int, speculation: SpeculationSettings) -> tuple[DraftSource, ...]:
    """Who proposes each token of a round's draft."""
    k, model, lookup = speculation.n_draft, DraftSource.MODEL, DraftSource.LOOKUP
    if speculation.mode is Mode.AUTO:
        mixed = {"model": (model,) * k, "lookup": (lookup,) * k, "both": (lookup,) * 2 + (model,) * (k - 2)}
        return mixed.get(AUTO_SOURCES[number % len(AUTO_SOURCES)], ())
    return {Mode.DRAFT: (model,) * k, Mode.LOOKUP: (lookup,) * k}.get(speculation.mode, ())


def rounds(
    words: Sequence[str], speculation: SpeculationSettings
) -> Iterator[tuple[Round, tuple[TokenEvent, ...]]]:
    """The words as rounds: whole drafts and broken ones by turns, with what was proposed instead."""
    at = number = 0
    while at < len(words):
        sources = sources_of(number, speculation)
        k = len(sources)
        broken = number % 3 == 1
        accepted = min(k // 2 if broken else k, len(words) - at - 1)
        wrong = [] if not broken or accepted == k else [" wrong", " and", " more"][: k - accepted]
        draft_length = accepted + len(wrong)
        own = TokenKind.RECOVERED if wrong else TokenKind.BONUS if draft_length else TokenKind.TARGET
        sources = sources[:draft_length]
        probabilities = tuple(None if source is DraftSource.LOOKUP else 0.82 for source in sources)
        tokens = [
            TokenEvent(
                at + i, words[at + i], TokenKind.ACCEPTED, number, i, sources[i], 0.9123, probabilities[i]
            )
            for i in range(accepted)
        ]
        for i, word in enumerate(wrong):
            kind = TokenKind.DISCARDED if i else TokenKind.REJECTED
            tested, place = None if i else 0.0312, accepted + i
            tokens.append(
                TokenEvent(900 + i, word, kind, number, place, sources[place], tested, probabilities[place])
            )
        last = at + accepted
        tokens.append(TokenEvent(last, words[last], own, number, None, None, 0.75, None))
        round_ = Round(
            number, tuple(range(draft_length)), accepted, last, own, sources,
            probabilities, (0.9,) * (accepted + 1), 0.001, 0.01,
        )  # fmt: skip
        yield round_, tuple(tokens)
        at, number = last + 1, number + 1


def preset_model(name: str, size: int) -> PresetModel:
    return PresetModel(name, size, "0" * 64, "Apache-2.0", HubSource("someone/some", "main", f"{name}.gguf"))


def expectations(load: LoadSettings) -> list[Expectation]:
    """Nothing is known of the target alone; of a pair, two kinds, one of them from a comparison."""
    if not load.draft:
        return [Expectation("code", None, False, None), Expectation("edit", None, False, None)]
    return [Expectation("code", 1.1, False, None), Expectation("edit", 1.84, True, 1.72)]


@dataclass
class FakeShelf:
    """Two models on disk, one that fits nothing, one broken, and a pair to fetch."""

    problems: list[HeadstartError] = field(default_factory=list)
    best: str | None = "pair"
    on_disk: set[str] = field(default_factory=lambda: {"starter", "small-draft", "other-vocabulary"})
    let_download_finish: threading.Event = field(default_factory=threading.Event)
    download: DownloadState | None = None
    may_weigh: threading.Event = field(default_factory=threading.Event)
    may_read: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_weigh.set()
        self.may_read.set()

    def reset(self) -> None:
        self.problems.clear()
        self.best = "pair"
        self.on_disk = {"starter", "small-draft", "other-vocabulary"}
        self.let_download_finish = threading.Event()
        self.download = None
        self.may_weigh.set()
        self.may_read.set()

    def presets(self) -> tuple[list[Preset], list[HeadstartError]]:
        starter, small = preset_model("starter", 98_000_000), preset_model("small-draft", 40_000_000)
        big = preset_model("coder-big", 1_117_000_000)
        giant = replace(preset_model("giant", 900_000_000_000), is_exact=False)
        return [
            Preset("starter", "Starter", "A tiny model that answers at once.", starter, None, 2048,
                   SpeculationSettings(Mode.LOOKUP)),
            Preset("duo", "Duo", "A small pair.", starter, small, 2048, SpeculationSettings(Mode.DRAFT)),
            Preset("pair", "Coder pair", "Writes code about 1.5 times as fast as plain.", big, small, 4096,
                   SpeculationSettings(Mode.DRAFT, n_draft=6)),
            Preset("giants", "Giants", "A well-known pair, not tried here.", giant, small, 4096,
                   SpeculationSettings(Mode.DRAFT), is_tried=False),
        ], self.problems  # fmt: skip

    def read(self) -> Iterator[tuple[int, int]]:
        while not self.may_read.wait(0.1):
            yield 3, 300

    def models(self) -> list[ModelFile]:
        files = [ModelFile(name, Path(self.path(name)), 1000, "model") for name in sorted(self.on_disk)]
        return [
            *files,
            ModelFile(
                "cut-short", Path(self.path("cut-short")), 10, "broken", problem="the file is cut short"
            ),
        ]

    def drafts_for(self, target: Path) -> list[tuple[ModelFile, PairCheck]]:
        no = PairCheck(False, ("token 17 is 'cat' in one and 'dog' in the other",))
        checked = [
            (model, no if model.name == "other-vocabulary" and model.path != target else PairCheck(True))
            for model in self.models()
            if model.is_usable
        ]
        return sorted(checked, key=lambda pair: not pair[1].fits)

    def missing(self, preset: Preset) -> list[PresetModel]:
        return [model for model in preset.models if model.name not in self.on_disk]

    def path_of(self, model: PresetModel) -> Path:
        return Path(self.path(model.name))

    def best_preset(self) -> Preset | None:
        return next((preset for preset in self.presets()[0] if preset.name == self.best), None)

    def fetch(self, preset: Preset) -> None:
        total = sum(file.size for file in self.missing(preset))
        self.download = DownloadState(
            "1", preset.title, "running", total // 4, total, 12e6, None, "Fetching coder-big from the hub",
            None, None,
        )  # fmt: skip

    def fetching(self, preset: Preset) -> list[DownloadState]:
        if self.download is None or self.download.title != preset.title:
            return []
        if self.download.state == "running" and self.let_download_finish.is_set():
            self.on_disk |= {file.name for file in preset.models}
            self.download = replace(self.download, state="done")
        return [self.download]

    def give_up(self, preset: Preset) -> None:
        assert self.download
        self.download = replace(self.download, state="cancelled")

    def memory(self, load: LoadSettings) -> MemoryEstimate:
        """Of 4 GB: 1.5 GB for a target and 0.45 GB for a draft, and 0.1 MB a token of f16 cache for each."""
        self.may_weigh.wait(30)
        models = [self._model_memory("target", 1e9, load.cache_type_k)]
        if load.draft:
            models.append(self._model_memory("draft", 0.3e9, load.draft_cache_type_k))
        small = [self._model_memory(model.role, model.amounts[0].fixed, "q8_0") for model in models]
        rooms = [Room(RAM, 4_000_000_000, 8_000_000_000)]
        found = weigh(models, load.n_ctx, rooms)
        return found if found.fits else replace(found, advice=advise(models, small, load.n_ctx, rooms))

    def outlook(self, load: LoadSettings) -> list[Expectation]:
        return expectations(load)

    @staticmethod
    def _model_memory(role: str, weights: float, cache_type: str) -> ModelMemory:
        per_token = 50_000 if cache_type == "q8_0" else 100_000
        return ModelMemory(
            role,
            (
                Amount("weights", RAM, weights),
                Amount("repacked", RAM, 0.4 * weights),
                Amount("cache", RAM, 0, per_token),
                Amount("compute", RAM, 0.1 * weights),
            ),
            gpu_layers=0,
        )

    @staticmethod
    def path(name: str) -> str:
        return str(Path("/models") / f"{name}.gguf")

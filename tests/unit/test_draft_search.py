"""The search for a draft: what is expected of one, which layers go, what is kept and what is said."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from app.core.copies import CopyPlan, ModelCopy
from app.core.errors import Cancelled, HeadstartError
from app.core.models import ModelFacts
from app.drafts import layers, search
from app.drafts.bench import Measured
from app.drafts.expect import expected_speedup
from app.drafts.search import LOOKUPS
from app.drafts.trials import News, Trial, as_text, rows
from app.library import making
from app.library.making import Making
from app.worker import tasks

FACTS = ModelFacts("model", "llama", "A model", 1_500_000_000, "F16", 8192, 49152, "BPE", 12, True, None)
TEXTS = [((1, 2, 3), (4, 5, 6, 7))]


class TestExpected:
    def test_a_perfect_draft_that_costs_nothing_brings_all_it_drafts(self) -> None:
        assert expected_speedup(1, 0, 0) == 32

    def test_a_draft_that_is_never_right_is_not_used(self) -> None:
        assert expected_speedup(0, 0.1, 0.1) == 1

    def test_the_best_length_is_taken(self) -> None:
        by_hand = max(sum(0.8**k for k in range(length + 1)) / (1 + length * 0.3) for length in range(1, 32))
        assert expected_speedup(0.8, 0.2, 0.1) == pytest.approx(by_hand)

    def test_a_dear_draft_does_not_pay(self) -> None:
        assert expected_speedup(0.9, 0.95, 0.1) == 1


class TestCuts:
    """Layers 5 and 7 are missed least; each layer that goes costs a little more."""

    def tried(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
        tried: list[tuple[int, ...]] = []

        def agreements(
            model: Path, scratch: Path, cuts: Sequence[tuple[int, ...]], *_: object
        ) -> Iterator[float]:
            for cut in cuts:
                tried.append(cut)
                yield 1 - sum(0.01 if layer in (5, 7) else 0.1 for layer in cut)

        monkeypatch.setattr(tasks, "cut_agreements", agreements)
        return tried

    def search(self, seconds: float) -> tuple[list[layers.Cut], list[tuple[int, int]]]:
        told: list[tuple[int, int]] = []
        cuts = layers.search_cuts(
            Path("m"), 12, Path("s"), TEXTS, seconds, lambda *progress: told.append(progress), lambda: False
        )
        return cuts, told

    def test_inner_layers_are_tried_alone_and_the_least_missed_together(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = self.tried(monkeypatch)
        cuts, told = self.search(1000)
        assert sorted(tried[:10]) == [(layer,) for layer in range(1, 11)]
        assert {tried[0], tried[1]} == {(5,), (6,)}
        assert [len(cut.layers) for cut in cuts] == [1, 2, 3, 4]
        assert cuts[1] == layers.Cut((5, 7), pytest.approx(0.98))
        assert told[-1] == (14, 14)

    def test_without_time_one_layer_is_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = self.tried(monkeypatch)
        cuts, _ = self.search(0)
        assert len(tried) == 2
        assert [cut.layers for cut in cuts] == [tried[0]]


@dataclass
class World:
    """Costs, agreements and speeds by the words of a copy; a clock that a search moves on."""

    costs: dict[str, float]
    agreements: dict[str, float]
    speeds: dict[str, float | str]
    alone: float = 1.0
    cuts: list[layers.Cut] = field(default_factory=lambda: [layers.Cut((5,), 0.5)])
    measured: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    seconds_a_step: float = 1.0
    now: float = 0.0


class FakeClient:
    def __init__(self) -> None:
        self.closed = self.unloaded = 0

    def close(self) -> None:
        self.closed += 1

    def unload(self) -> None:
        self.unloaded += 1


RunSearch = Callable[..., search.Result]


@pytest.fixture
def run_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSearch:
    """``run_search(world)`` in a models folder of its own, on target.gguf in it."""
    target = tmp_path / "target.gguf"
    target.write_bytes(b"GGUF")

    def run(world: World, facts: ModelFacts = FACTS, **options: object) -> search.Result:
        class Bench:
            def __init__(self, *_: object) -> None:
                self.texts = TEXTS

            def record(self, until: Callable[[], bool]) -> None:
                world.now += world.seconds_a_step

            def shortest_texts(self) -> object:
                return TEXTS

            def measure(self, draft: Path | None, words: str, seconds: float) -> Measured | str:
                world.now += world.seconds_a_step
                world.measured.append(words)
                if draft is None:
                    return measured(world.alone)
                assert draft.exists()
                speed = world.speeds.get(words, world.speeds[words.removesuffix(" again")])
                return speed if isinstance(speed, str) else measured(speed)

        def measured(speed: float) -> Measured:
            return Measured((speed,) * 6, 0.9)

        def plan_copy(source: Path, copy: ModelCopy) -> CopyPlan:
            words = making.copy_words(copy)
            cost = world.costs.get(words, 1 - 0.02 * len(copy.skipped_layers))
            return CopyPlan(10, 1000, round(cost * 1000), 1000)

        def write(wanted: Making, path: Path, on_progress: Callable[..., None], cancelled: object) -> Path:
            world.now += world.seconds_a_step
            on_progress(f"writing {path.name}", 1, 2)
            path.write_text(making.copy_words(wanted.copy))
            world.made.append(path.name)
            return path

        def search_cuts(
            model: Path, n_layer: int, scratch: Path, texts: object, seconds: float, tell: object, c: object
        ) -> list[layers.Cut]:
            assert model.exists()
            scratch.write_bytes(b"cut")
            return world.cuts

        monkeypatch.setattr(search, "Bench", Bench)
        monkeypatch.setattr(search, "search_cuts", search_cuts)
        monkeypatch.setattr(search, "models_dir", lambda: tmp_path)
        monkeypatch.setattr(search.time, "monotonic", lambda: world.now)
        monkeypatch.setattr(making, "facts_of", lambda target: facts)
        monkeypatch.setattr(making, "write", write)
        monkeypatch.setattr(tasks, "plan_copy", plan_copy)
        monkeypatch.setattr(tasks, "agreement", lambda file, *_: world.agreements[file.read_text()])
        options.setdefault("client", FakeClient())
        return search.search(target, 1000, **options)  # type: ignore[arg-type]

    return run


FULL = {"Q4_K_M": 0.32, "Q4_0": 0.3, "Q3_K_S": 0.25, "Q2_K": 0.22}
AGREE = {"Q4_K_M": 0.95, "Q4_0": 0.9, "Q3_K_S": 0.85, "Q2_K": 0.8}
SPEEDS: dict[str, float | str] = {"Q4_K_M": 1.2, "Q4_0": 1.3, "Q3_K_S": 1.1, "Q2_K": 1.0}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def by_words(result: search.Result) -> dict[str, Trial]:
    return {trial.words: trial for trial in result.trials}


def test_the_fastest_is_kept_and_the_rest_deleted(run_search: RunSearch, tmp_path: Path) -> None:
    client = FakeClient()
    news: list[News] = []
    world = World(FULL, AGREE, SPEEDS)
    result = run_search(world, client=client, on_news=news.append)
    assert result.kept == tmp_path / "target-draft-q4_0.gguf"
    assert result.kept.read_text() == "Q4_0"
    assert files(tmp_path) == ["target-draft-q4_0.gguf", "target.gguf"]
    assert world.measured[:2] == [LOOKUPS, "Q4_K_M"]  # the most promising first
    trials = by_words(result)
    assert list(trials)[:5] == [LOOKUPS, *FULL]
    assert trials["Q4_0"].note == "kept"
    assert trials["Q4_K_M"].agreement == 0.95
    assert result.verdict == (
        "Q4_0 pays best: 1.30x (1.30 to 1.30) plain with Auto here; kept as target-draft-q4_0.gguf"
    )
    assert (client.closed, client.unloaded > 0) == (0, True)
    assert all(".trial" not in one.step for one in news)
    assert news[-1].trials


def test_nothing_pays_is_an_answer(run_search: RunSearch, tmp_path: Path) -> None:
    result = run_search(World(FULL, AGREE, dict.fromkeys(FULL, 0.9), alone=1.01))
    assert result.kept is None
    assert result.verdict == (
        "Nothing pays here: the best draft, Q4_K_M, came to 0.90x (0.90 to 0.90) plain with Auto, "
        "and Auto without a draft to 1.01x"
    )
    assert files(tmp_path) == ["target.gguf"]


def test_a_wonder_that_a_second_measurement_does_not_confirm(run_search: RunSearch) -> None:
    world = World(FULL, AGREE, SPEEDS | {"Q4_0": 3.0, "Q4_0 again": 0.7, "Q2_K": 1.5, "Q2_K again": 0.5})
    result = run_search(world)
    assert world.measured[-3:] == ["Q4_0 again", "Q2_K again", "Q4_K_M again"]
    assert by_words(result)["Q4_K_M"].note == "kept"
    assert by_words(result)["Q4_0"].measured == Measured((3.0,) * 6 + (0.7,) * 6, 0.9)
    nothing = run_search(World(FULL, AGREE, dict.fromkeys(FULL, 0.9) | {"Q4_0": 3.0, "Q4_0 again": 0.7}))
    assert nothing.kept is None


def test_a_draft_must_beat_the_lookups_that_auto_has_without_it(run_search: RunSearch) -> None:
    result = run_search(World(FULL, AGREE, dict.fromkeys(FULL, 1.4), alone=1.39))
    assert result.kept is None
    assert "Auto without a draft to 1.39x" in result.verdict


def test_copies_that_are_hardly_cheaper_are_not_made(run_search: RunSearch, tmp_path: Path) -> None:
    """A target of 4 bits: only its layers are left to try."""
    world = World(dict.fromkeys(FULL, 0.95), {}, {}, cuts=[layers.Cut((5,), 0.7)])
    world.costs["types as they are without layers 5"] = 0.93
    world.agreements["types as they are without layers 5"] = 0.7
    world.speeds["types as they are without layers 5"] = 0.8
    result = run_search(world, replace(FACTS, quantization="Q4_1"))
    assert {by_words(result)[type_].note for type_ in FULL} == {"not made: hardly cheaper than the target"}
    assert world.measured == [LOOKUPS, "types as they are without layers 5"]
    assert result.verdict.startswith("Nothing pays here: the best draft, types as they are without layers 5")
    assert files(tmp_path) == ["target.gguf"]


def test_nothing_to_try_at_all(run_search: RunSearch) -> None:
    world = World(dict.fromkeys(FULL, 1.1), {}, {})
    result = run_search(world, replace(FACTS, n_layer=2))
    assert result.kept is None
    assert "no copy of this target is enough cheaper" in result.verdict
    assert result.trials[-1] == Trial("F16 with layers cut", note="not tried: it has too few layers")


def test_a_cut_is_made_only_where_more_is_expected_of_it(run_search: RunSearch) -> None:
    worse = World(FULL, AGREE, SPEEDS, cuts=[layers.Cut((5,), 0.8)])
    trial = run_search(worse).trials[-1]
    assert trial.words == "Q4_K_M without layers 5"
    assert trial.note.startswith("not made: about ")
    assert trial.agreement == 0.8
    better = World(FULL, dict(AGREE), dict(SPEEDS), cuts=[layers.Cut((5,), 0.949), layers.Cut((5, 7), 0.5)])
    better.costs = FULL | {"types as they are without layers 5": 0.3}
    better.agreements["Q4_K_M without layers 5"] = 0.949
    better.speeds["Q4_K_M without layers 5"] = 1.6
    result = run_search(better)
    assert result.kept is not None
    assert result.kept.name == "target-draft-q4_k_m-cut1.gguf"
    assert by_words(result)["Q4_K_M without layers 5"].cost == pytest.approx(0.3)


def test_when_the_time_is_up(run_search: RunSearch) -> None:
    hurried = World(FULL, AGREE, SPEEDS, seconds_a_step=25_000)
    result = run_search(hurried)
    assert hurried.measured == [LOOKUPS, "Q4_K_M", "Q4_K_M again"]  # one is always measured
    assert by_words(result)["Q2_K"].note == "not made: the time was up"
    assert result.kept is not None


def test_what_fails_is_said_and_the_rest_goes_on(run_search: RunSearch) -> None:
    speeds: dict[str, float | str] = dict(SPEEDS) | {"Q4_0": "the model process died"}
    trials = by_words(run_search(World(FULL, AGREE, speeds)))
    assert trials["Q4_0"].note == "failed: the model process died"
    assert trials["Q4_K_M"].note == "kept"


@pytest.mark.parametrize("failure", [Cancelled(), KeyboardInterrupt()])
def test_an_end_before_the_end_leaves_nothing(
    run_search: RunSearch, tmp_path: Path, failure: BaseException
) -> None:
    steps = itertools.count()

    def stop(news: News) -> None:
        if next(steps) == 5:
            raise failure

    (tmp_path / "killed.gguf.writing").write_bytes(b"an earlier one's")
    with pytest.raises(type(failure)):
        run_search(World(FULL, AGREE, SPEEDS), on_news=stop)
    assert files(tmp_path) == ["target.gguf"]


def test_a_name_is_checked_before_and_a_taken_one_is_left(run_search: RunSearch, tmp_path: Path) -> None:
    world = World(FULL, AGREE, SPEEDS)
    with pytest.raises(HeadstartError, match="exists already"):
        run_search(world, output=tmp_path / "target.gguf")
    assert world.measured == []
    (tmp_path / "target-draft-q4_0.gguf").write_bytes(b"an older one")
    assert run_search(world).kept == tmp_path / "target-draft-q4_0-2.gguf"
    assert run_search(world, output=tmp_path / "mine.gguf").kept == tmp_path / "mine.gguf"


def test_the_table() -> None:
    measured = Measured((1.1, 1.2, 1.3), 0.9, 0.4, 0.2)
    trials = [Trial(LOOKUPS), Trial("Q4_K_M", 986_000_000, 0.32, 0.95, measured, "kept")]
    assert rows(trials)[1] == (
        "Q4_K_M", "986 MB", "0.32", "95%", "0.40", "90%", "1.20 (1.10 to 1.30)", "faster; kept",
    )  # fmt: skip
    lines = as_text(trials).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["look-ups,", "no", "draft", *["–"] * 6]

"""Measuring what passes cost: within its time, at three loads, and without a trace in the cache."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import OpenSession, WriteTiny
from test_rollback import ALL, PROMPT, StopsAfter, model, same

from app.backend.llama import CancelFlag
from app.core.costs import PROBED, PassCosts
from app.core.errors import Cancelled
from app.core.paths import user_data_dir
from app.worker import measured
from app.worker.kept_costs import Kept, keep, recall
from app.worker.measured import measure, pass_costs

NAME = "a model|on this machine"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path / "home"))
    return user_data_dir()


class Slow:
    """A context whose passes take what ``cost`` says, on a clock of its own."""

    max_rows = 32

    def __init__(
        self, cost: Callable[[int], float], monkeypatch: pytest.MonkeyPatch, n_ctx: int = 4096
    ) -> None:
        self.n_ctx, self._cost = n_ctx, cost
        self.ids: list[int] = [5, 6, 7]
        self.seconds = 0.0
        self.passes: list[int] = []
        self.with_rows: set[int] = set()
        monkeypatch.setattr(measured.time, "perf_counter", lambda: self.seconds)

    def decode(self, ids: Sequence[int], rows: int) -> None:
        assert rows == len(ids) <= self.max_rows
        self.with_rows.add(rows)
        self.extend(ids, lambda done: None)

    def extend(self, ids: Sequence[int], on_chunk: Callable[[int], None]) -> None:
        assert len(self.ids) + len(ids) <= self.n_ctx
        self.ids += ids
        self.seconds += self._cost(len(ids))
        self.passes.append(len(ids))

    def rewind(self, length: int) -> None:
        del self.ids[length:]


def never_told() -> None:
    raise AssertionError("measured though the costs were kept")


class TestTime:
    @pytest.mark.parametrize(("role", "budget_s"), [("target", 2.0), ("draft", 1.0)])
    @pytest.mark.parametrize("single", [0.0004, 0.003, 0.02, 0.07, 0.11, 0.24, 0.26, 0.33])
    @pytest.mark.parametrize("slope", [0.02, 0.3, 1.0])
    def test_it_keeps_within_its_budget(
        self, slope: float, single: float, role: str, budget_s: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow = Slow(lambda n: single * (1 + slope * (n - 1)), monkeypatch)
        costs = measure(slow, role)  # type: ignore[arg-type]
        assert slow.seconds <= budget_s * 1.05
        assert slow.ids == [5, 6, 7]
        for n in costs.measured():
            assert costs(n) == pytest.approx(single * (1 + slope * (n - 1)))
        if single < 0.003:
            assert set(costs.measured()) == set(PROBED[role])

    def test_a_model_slower_than_that_still_has_its_first_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = Slow(lambda n: 30.0 * n, monkeypatch)
        assert measure(slow, "target").measured() == {1: 30.0}  # type: ignore[arg-type]
        assert slow.passes == [1, 1]

    def test_the_median_of_repeated_passes_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        busy = iter(range(10_000))
        slow = Slow(lambda n: 0.001 * n * (1 + 3 * (next(busy) % 3 == 0)), monkeypatch)
        costs = measure(slow, "target")  # type: ignore[arg-type]
        assert costs.measured() == pytest.approx({n: 0.001 * n for n in PROBED["target"]})

    @pytest.mark.parametrize(("role", "sizes"), [("target", set(PROBED["target"])), ("draft", {1})])
    def test_only_rows_that_drafting_needs_are_asked_for(
        self, role: str, sizes: set[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A large vocabulary's row takes as long as half of a small model's pass; reading needs none."""
        slow = Slow(lambda n: 0.001 * n, monkeypatch)
        measure(slow, role)  # type: ignore[arg-type]
        assert slow.with_rows == sizes
        assert set(slow.passes) == set(PROBED[role])

    @pytest.mark.parametrize("n_ctx", [8, 20, 33])
    def test_a_small_context_is_measured_as_far_as_it_goes(
        self, n_ctx: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow = Slow(lambda n: 0.001 * n, monkeypatch, n_ctx)
        costs = measure(slow, "target")  # type: ignore[arg-type]
        assert set(costs.measured()) == {n for n in PROBED["target"] if n <= n_ctx}


class TestCache:
    @pytest.mark.parametrize("architecture", ["llama", *ALL])
    def test_what_it_holds_stays(
        self, architecture: str, tiny: WriteTiny, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measured, "_BUDGET_S", {"target": 0.2, "draft": 0.2})
        session = open_session(tiny(model(architecture)), tiny(model(architecture, 0.995)), n_ctx=512)
        assert session.draft_context is not None
        first = session.ask(PROMPT, "draft", max_tokens=40)
        both = ((session.context, "target"), (session.draft_context, "draft"))
        held = [list(context.ids) for context, _ in both]
        costs = [measure(context, role) for context, role in both]
        assert [context.ids for context, _ in both] == held
        assert all(seconds > 0 for one in costs for seconds in one.measured().values())
        assert set(costs[0].measured()) == set(PROBED["target"])
        longer = [*PROMPT, *first.output_ids, 9, 8]
        after = session.ask(longer, "draft", max_tokens=40)
        session.forget()
        same(session.ask(longer, max_tokens=40), after)

    def test_a_context_nearly_full_is_still_measured(
        self, tiny: WriteTiny, open_session: OpenSession
    ) -> None:
        session = open_session(tiny(model("llama")), n_ctx=40, n_batch=4)
        first = session.ask(PROMPT, max_tokens=30)
        assert 1 in measure(session.context, "target").measured()
        assert session.ask(PROMPT, max_tokens=30).output_ids == first.output_ids

    @pytest.mark.parametrize("n_asked", [0, 1, 7, 100, 900])
    @pytest.mark.parametrize("architecture", ["llama", "jamba"])
    def test_cancelled_while_measuring(
        self, architecture: str, n_asked: int, tiny: WriteTiny, open_session: OpenSession
    ) -> None:
        flag = StopsAfter()
        session = open_session(tiny(model(architecture)), n_ctx=256, cancel=flag)
        first = session.ask(PROMPT, max_tokens=20)
        flag.left = n_asked
        with pytest.raises(Cancelled):
            pass_costs(session.context, NAME, "target", lambda: None)
        assert recall(NAME) is None
        flag.left = 1 << 60
        assert session.context.ids == [*PROMPT, *first.output_ids[:-1]]
        session.forget()
        same(first, session.ask(PROMPT, max_tokens=20))

    def test_cancelled_before_it_begins(self, tiny: WriteTiny, open_session: OpenSession) -> None:
        byte = ctypes.create_string_buffer(2)
        session = open_session(tiny(model("llama")), cancel=CancelFlag(byte))
        byte[0] = b"\1"
        with pytest.raises(Cancelled):
            measure(session.context, "draft")
        assert session.context.ids == []


class TestKeeping:
    def test_measured_at_three_loads_and_then_read_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str] = []
        slow = Slow(lambda n: 0.01 * n**0.5, monkeypatch)
        for times in (1, 2, 3):
            kept = pass_costs(slow, NAME, "target", lambda: told.append("measuring"))  # type: ignore[arg-type]
            assert kept.times == len(told) == times
        n_passes = len(slow.passes)
        again = pass_costs(slow, NAME, "target", never_told)  # type: ignore[arg-type]
        assert again.costs.measured() == kept.costs.measured()
        assert len(slow.passes) == n_passes
        pass_costs(slow, "another model", "target", lambda: told.append("again"))  # type: ignore[arg-type]
        assert told == [*["measuring"] * 3, "again"]

    def test_a_disturbed_measurement_is_put_right_by_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disturbed = Slow(lambda n: 0.01 * n**0.5 * (2 if n > 1 else 1), monkeypatch)
        first = pass_costs(disturbed, NAME, "target", lambda: None).costs  # type: ignore[arg-type]
        assert first(32) == pytest.approx(0.02 * 32**0.5)
        calm = Slow(lambda n: 0.02 * n**0.5, monkeypatch)
        second = pass_costs(calm, NAME, "target", lambda: None).costs  # type: ignore[arg-type]
        assert second.measured() == pytest.approx({n: 0.02 * n**0.5 for n in first.measured()})

    def test_what_was_learned_is_kept(self) -> None:
        known = PassCosts({1: 1.0, 8: 3.0})
        for _ in range(20):
            known.observe(5, 0, 1.5)
            known.observe(5, 9000, 4.0)
        keep(NAME, Kept(known, 2))
        kept = recall(NAME)
        assert kept is not None
        assert kept.costs.measured() == known.measured()
        assert kept.costs(5) == pytest.approx(1.5, rel=0.1)
        assert kept.times == 2

    @pytest.mark.parametrize(
        "entry",
        ["{", "null", "[]", "7", '{"1": "x"}', '{"1": null}', '{"x": 1.0}', '{"2": 1.0}', '{"1": 0}',
         '{"1": -1.0}', '{"1": NaN}', '{"1": 1.0, "4": Infinity}', '{"1": [1.0]}', "{}", '{"1": 1.0}'],
    )  # fmt: skip
    def test_a_broken_entry_is_measured_anew(
        self, entry: str, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home.mkdir(parents=True)
        for content in (entry, f'{{"seconds": {entry}}}', '{"seconds": {"1": 1.0}, "times": null}'):
            (home / "costs.json").write_text(f'{{"{NAME}": {content}}}', "utf-8")
            assert recall(NAME) is None
        told: list[str] = []
        slow = Slow(lambda n: 0.01 * n, monkeypatch)
        costs = pass_costs(slow, NAME, "target", lambda: told.append("measuring")).costs  # type: ignore[arg-type]
        assert told == ["measuring"]
        assert costs(2) == pytest.approx(0.02)
        kept = recall(NAME)
        assert kept is not None
        assert (kept.costs.measured(), kept.times) == (costs.measured(), 1)

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", "7", '"text"', "\x00\xff"])
    def test_a_broken_file_is_measured_anew(
        self, content: str, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home.mkdir(parents=True)
        (home / "costs.json").write_text(content, "latin-1")
        slow = Slow(lambda n: 0.01 * n, monkeypatch)
        pass_costs(slow, NAME, "target", lambda: None)  # type: ignore[arg-type]
        kept = recall(NAME)
        assert kept is not None
        assert kept.costs(2) == pytest.approx(0.02)

    def test_a_folder_that_cannot_be_written_costs_only_the_next_measurement(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.write_text("a file where the folder should be")
        slow = Slow(lambda n: 0.01 * n, monkeypatch)
        costs = pass_costs(slow, NAME, "target", lambda: None).costs  # type: ignore[arg-type]
        assert costs(1) == pytest.approx(0.01)

    def test_only_so_many_models_are_kept(self, home: Path) -> None:
        for number in range(80):
            keep(f"model {number}", Kept(PassCosts({1: 1.0}), 1))
        keep("model 30", Kept(PassCosts({1: 2.0}), 1))  # used again: no longer among the oldest
        names = list(json.loads((home / "costs.json").read_text("utf-8")))
        assert len(names) == 64
        assert names[-1] == "model 30"
        assert names[-2] == "model 79"

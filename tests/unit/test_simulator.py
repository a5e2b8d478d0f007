"""Auto against every fixed setting, on recorded answers and under the costs of many machines.

A fixed setting's passes don't depend on what they cost: each is replayed once, and its passes are then
priced for every machine.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from app.core.acceptance import Record
from app.core.costs import Costs, PassCosts
from tests.simulator import TRACES, Setting, Trace, read, replay

PLAIN, AUTO = Setting("plain"), Setting("auto")
SETTINGS = (
    PLAIN,
    *(Setting("draft", k, p_min) for k in (1, 2, 3, 4, 6, 8, 12, 16) for p_min in (0.0, 0.3, 0.6, 0.8)),
    *(Setting("lookup", k) for k in (1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 31)),
)
FILES = ("coder-greedy", "coder-sampled")

# Seconds of a pass by its number of tokens, that of one token being 1.
STEEP = {
    1: 1, 2: 1.84, 3: 2.43, 4: 2.95, 5: 3.65, 6: 4.2, 8: 4.8, 10: 5.6, 12: 5.9, 16: 5.7, 20: 7.6,
    24: 8.85, 28: 9.9, 32: 10.1,
}  # fmt: skip
HALF = {1: 1, 2: 1.23, 3: 1.35, 4: 1.45, 5: 1.56, 6: 1.8, 8: 2.2, 12: 2.9, 16: 3.5, 24: 4.9, 32: 6.6}
GRAPHICS = {n: 1 + 0.02 * (min(n, 16) - 1) / 15 + 0.05 * max(n - 16, 0) for n in range(1, 33)}
# What the draft model's batches cost, in its own steps, on a processor.
BATCHES = {1: 1, 2: 2.2, 3: 2.7, 4: 3.2, 5: 4, 8: 4.2, 12: 4.9, 16: 5.2, 24: 7.7, 32: 9.8, 128: 21, 512: 84}


def between(weight: float) -> dict[int, float]:
    """A machine between a graphics card and a processor at F16."""
    half = PassCosts(HALF)
    return {n: graphics ** (1 - weight) * half(n) ** weight for n, graphics in GRAPHICS.items()}


def on_processor(step: float) -> dict[int, float]:
    return {n: step * cost for n, cost in BATCHES.items()}


def on_graphics(step: float) -> dict[int, float]:
    return {n: step * (1 + 0.01 * (n - 1)) for n in range(1, 33)}


MACHINES = {
    "steep processor": (STEEP, on_processor(0.6)),
    "processor at F16": (HALF, on_processor(0.25)),
    "graphics, small draft": (GRAPHICS, on_graphics(0.05)),
    "graphics, large draft": (GRAPHICS, on_graphics(0.15)),
    "nearer the graphics": (between(0.25), on_graphics(0.1)),
    "in the middle": (between(0.5), on_graphics(0.15)),
    "nearer the processor": (between(0.75), on_graphics(0.2)),
}
# What the target takes to read a prompt's token, in single passes.
READING = {"steep processor": 0.2, "processor at F16": 0.11}


def costs_of(machine: str) -> Costs:
    target, draft = MACHINES[machine]
    return Costs(PassCosts(target), PassCosts(draft))


class Counting(PassCosts):
    """Costs that count the passes that are asked for."""

    def __init__(self) -> None:
        super().__init__({1: 1.0})
        self.passes: Counter[int] = Counter()

    def __call__(self, n: int, n_past: int = 0) -> float:
        self.passes[n] += 1
        return super().__call__(n, n_past)

    def priced(self, costs: PassCosts) -> float:
        return sum(times * costs(n) for n, times in self.passes.items())


@cache
def traces(file: str) -> list[Trace]:
    return read(TRACES / f"{file}.jsonl.gz")


@cache
def passes(file: str) -> list[dict[Setting, tuple[Counting, Counting, int]]]:
    """For each trace and fixed setting the passes of both models; and the draft model's prefill in ids."""
    found = []
    for trace in traces(file):
        counted = {}
        for setting in SETTINGS:
            target, draft = Counting(), Counting()
            done = replay(trace, setting, Costs(target, draft))
            prefill = len(trace.prompt) - 1 if done.prefill_s else 0
            draft.passes[prefill] -= 1
            counted[setting] = target, draft, prefill
        found.append(counted)
    return found


@dataclass(frozen=True)
class Speeds:
    """How much faster than plain: for each trace, auto and every fixed setting."""

    auto: list[float]
    fixed: list[dict[Setting, float]]

    @property
    def best(self) -> list[float]:
        return [max(speeds.values()) for speeds in self.fixed]

    def mean(self, setting: Setting) -> float:
        return statistics.geometric_mean(speeds[setting] for speeds in self.fixed)


@cache
def speeds(file: str, machine: str) -> Speeds:
    costs = costs_of(machine)
    assert costs.draft is not None
    record = Record()
    auto, fixed = [], []
    for trace, counted in zip(traces(file), passes(file), strict=True):
        plain = len(trace.output) * costs.target(1)
        auto.append(plain / replay(trace, AUTO, costs_of(machine), record).decode_s)
        fixed.append(
            {
                setting: plain / (target.priced(costs.target) + draft.priced(costs.draft))
                for setting, (target, draft, _) in counted.items()
            }
        )
    return Speeds(auto, fixed)


def by_category(file: str, values: list[float]) -> dict[str, float]:
    """The geometric mean for each kind of prompt."""
    kinds: dict[str, list[float]] = {}
    for trace, value in zip(traces(file), values, strict=True):
        kinds.setdefault(trace.category, []).append(value)
    return {kind: statistics.geometric_mean(of_kind) for kind, of_kind in kinds.items()}


on_all = pytest.mark.parametrize("machine", MACHINES)
in_all = pytest.mark.parametrize("file", FILES)


class TestReplays:
    @in_all
    def test_plain_takes_a_pass_a_token(self, file: str) -> None:
        for trace in traces(file):
            done = replay(trace, PLAIN, costs_of("in the middle"))
            assert (done.decode_s, done.prefill_s, len(done.rounds)) == (
                pytest.approx(len(trace.output)),
                0,
                len(trace.output),
            )

    @pytest.mark.parametrize("setting", [Setting("draft", 4), Setting("lookup", 10), AUTO], ids=str)
    def test_any_setting_writes_the_recorded_answer(self, setting: Setting) -> None:
        for trace in traces("coder-greedy"):
            done = replay(trace, setting, costs_of("processor at F16"))
            output = [token for round_ in done.rounds for token in round_.output]
            assert tuple(output) == trace.output

    def test_a_draft_of_one_is_kept_where_the_record_says_so(self) -> None:
        for trace in traces("coder-greedy"):
            place = 0
            for round_ in replay(trace, Setting("draft", 1), costs_of("in the middle")).rounds:
                if round_.draft:
                    assert round_.n_accepted == (trace.draft[place][0] == trace.output[place])
                place += len(round_.output)
            assert place == len(trace.output)

    def test_priced_passes_are_what_a_replay_takes(self) -> None:
        trace, counted = traces("coder-greedy")[0], passes("coder-greedy")[0]
        for machine in MACHINES:
            costs = costs_of(machine)
            assert costs.draft is not None
            for setting in SETTINGS[::7]:
                target, draft, prefill = counted[setting]
                done = replay(trace, setting, costs)
                assert done.decode_s == pytest.approx(target.priced(costs.target) + draft.priced(costs.draft))
                assert done.prefill_s == pytest.approx(costs.draft(prefill))

    @in_all
    def test_the_recorded_chances_are_chances(self, file: str) -> None:
        for trace in traces(file):
            assert len(trace.draft) == len(trace.output) > 0
            assert all(0 <= probability <= 1 for _, probability in trace.draft)
            agreeing = np.mean(
                [ours == theirs for (ours, _), theirs in zip(trace.draft, trace.output, strict=True)]
            )
            assert 0.2 < agreeing <= 1


class TestAuto:
    @in_all
    @on_all
    def test_it_is_as_fast_as_the_best_setting_of_each_answer(self, file: str, machine: str) -> None:
        """Against the best of all fixed settings for every single answer, known only afterwards."""
        found = speeds(file, machine)
        ratios = [auto / best for auto, best in zip(found.auto, found.best, strict=True)]
        assert statistics.geometric_mean(ratios) > 0.97
        assert sum(ratio < 0.95 for ratio in ratios) <= len(ratios) // 3

    @in_all
    @on_all
    def test_no_setting_is_much_better_for_a_kind_of_prompt(self, file: str, machine: str) -> None:
        found = speeds(file, machine)
        auto = by_category(file, found.auto)
        better = {}
        for setting in SETTINGS:
            fixed = by_category(file, [of_trace[setting] for of_trace in found.fixed])
            better |= {
                (kind, str(setting)): auto[kind] / fixed[kind]
                for kind in auto
                if auto[kind] < 0.92 * fixed[kind]
            }
        assert better == {}

    @in_all
    @on_all
    def test_it_is_never_much_slower_than_plain(self, file: str, machine: str) -> None:
        found = speeds(file, machine)
        assert min(found.auto) > 0.91
        assert statistics.median(found.auto) > 0.97

    @in_all
    @on_all
    def test_it_beats_every_fixed_setting_over_all_kinds(self, file: str, machine: str) -> None:
        found = speeds(file, machine)
        auto = statistics.geometric_mean(found.auto)
        better = {str(setting): found.mean(setting) for setting in SETTINGS if found.mean(setting) >= auto}
        assert better == {}

    @in_all
    @on_all
    def test_the_draft_models_reading_is_no_loss_either(self, file: str, machine: str) -> None:
        """Total time, the target's own reading of the prompt included."""
        record, reading = Record(), READING.get(machine, 0.02)
        ratios = []
        for trace in traces(file):
            done = replay(trace, AUTO, costs_of(machine), record)
            plain = reading * len(trace.prompt) + len(trace.output)
            ratios.append(plain / (reading * len(trace.prompt) + done.prefill_s + done.decode_s))
        assert min(ratios) > 0.85
        assert statistics.median(ratios) > 0.97

    @pytest.mark.parametrize("machine", ["processor at F16", "graphics, small draft", "in the middle"])
    def test_a_model_too_slow_to_be_measured_is_learned_from_its_rounds(self, machine: str) -> None:
        """Only passes over single tokens were timed before the first answer."""
        target, draft = MACHINES[machine]
        known, record = PassCosts({1: target[1]}), Record()
        auto = []
        for trace in traces("coder-greedy"):
            truth = PassCosts(target)
            truth.measured = known.measured  # type: ignore[method-assign]
            costs = Costs(truth, PassCosts(draft))
            done = replay(trace, AUTO, costs, record)
            for round_ in done.rounds:
                known.observe(len(round_.draft) + 1, 0, round_.verify_s)
            auto.append(len(trace.output) * target[1] / done.decode_s)
        assert statistics.geometric_mean(auto) > 0.8 * statistics.geometric_mean(
            speeds("coder-greedy", machine).auto
        )

    def test_the_same_replay_twice_is_the_same(self) -> None:
        for trace in traces("coder-sampled"):
            first, second = (replay(trace, AUTO, costs_of("in the middle"), Record()) for _ in range(2))
            assert first == second

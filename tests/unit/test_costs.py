"""What passes are taken to cost: between and beyond the measured sizes, and after real passes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.costs import Costs, PassCosts
from app.core.settings import MAX_DRAFT

# A processor's: steep, and with a size that costs less than a smaller one.
MEASURED = {1: 0.03, 2: 0.055, 4: 0.09, 8: 0.14, 12: 0.18, 16: 0.17, 32: 0.3}
TABLES = st.dictionaries(st.integers(2, 40), st.floats(1e-4, 10), max_size=8).flatmap(
    lambda more: st.floats(1e-4, 10).map(lambda one: {1: one, **more})
)
SIZES = (1, 2, 4, 8, 16)


def ratios(costs: Costs, n_past: int = 0) -> dict[int, float]:
    return {n: costs.target(n, n_past) / costs.target(1, n_past) for n in MEASURED}


class TestPassCosts:
    @given(TABLES)
    def test_measured_sizes_are_kept_as_they_are(self, table: dict[int, float]) -> None:
        costs = PassCosts(table)
        assert {n: costs(n) for n in table} == pytest.approx(table)
        assert costs.measured() == table

    @given(TABLES, st.integers(1, 40))
    def test_between_two_sizes_lies_between_their_times(self, table: dict[int, float], n: int) -> None:
        lower = max(size for size in table if size <= n)
        upper = min((size for size in table if size >= n), default=None)
        if upper is not None:
            bounds = sorted((table[lower], table[upper]))
            assert bounds[0] * (1 - 1e-9) <= PassCosts(table)(n) <= bounds[1] * (1 + 1e-9)

    def test_the_middle_is_the_mean(self) -> None:
        assert PassCosts(MEASURED)(6) == pytest.approx((0.09 + 0.14) / 2)
        assert PassCosts(MEASURED)(14) == pytest.approx((0.18 + 0.17) / 2)

    def test_a_larger_pass_may_cost_less(self) -> None:
        costs = PassCosts(MEASURED)
        assert costs(16) < costs(14) < costs(12)

    def test_beyond_the_largest_it_goes_on_in_its_direction(self) -> None:
        costs = PassCosts(MEASURED)
        assert costs(48) == pytest.approx(0.3 + 0.13)
        assert costs(320) == pytest.approx(0.3 + 18 * 0.13)

    @given(TABLES, st.integers(1, 500))
    def test_beyond_the_largest_nothing_gets_cheaper(self, table: dict[int, float], more: int) -> None:
        largest = max(table)
        assert PassCosts(table)(largest + more) >= table[largest] * (1 - 1e-9)

    def test_of_a_single_size_some_gain_is_hoped_for(self) -> None:
        costs = PassCosts({1: 0.2})
        times = [costs(n) for n in range(1, 100)]
        assert times == sorted(times)
        assert all(0.2 < time < 0.2 * n for n, time in enumerate(times[1:], 2))

    @given(TABLES, st.integers(0, 5000))
    def test_the_table_says_what_the_calls_say(self, table: dict[int, float], n_past: int) -> None:
        costs = PassCosts(table)
        known = costs.table(n_past)
        assert len(known) >= MAX_DRAFT + 2
        assert known == pytest.approx([costs(n, n_past) for n in range(len(known))])
        assert known[0] == costs(0) == costs(-3) == 0

    @pytest.mark.parametrize(
        "table",
        [{}, {2: 1.0}, {0: 1.0, 1: 1.0}, {-1: 1.0, 1: 1.0}, {1: 0.0}, {1: -1.0}, {1: 1.0, 4: 0.0}]
        + [{1: 1.0, 4: bad} for bad in (math.nan, math.inf)],
        ids=str,
    )
    def test_a_bad_table_is_refused(self, table: dict[int, float]) -> None:
        with pytest.raises(ValueError, match="single token"):
            PassCosts(table)

    def test_what_is_handed_out_is_a_copy(self) -> None:
        costs = PassCosts(MEASURED)
        costs.measured()[1] = 5.0
        assert costs(1) == MEASURED[1]


class TestLearning:
    def test_a_size_that_costs_something_else_is_learned(self) -> None:
        costs = Costs(PassCosts(MEASURED))
        truth = MEASURED | {8: 0.22}
        for _ in range(80):
            for n in (1, 8, 2):
                costs.observe_target(n, 100, truth[n])
        found = ratios(costs)
        assert found[8] == pytest.approx(0.22 / 0.03, rel=0.05)
        for n in (2, 4, 16, 32):
            assert found[n] == pytest.approx(MEASURED[n] / 0.03, rel=0.1)

    def test_a_size_that_was_never_measured_is_learned(self) -> None:
        costs = Costs(PassCosts({1: 0.03, 32: 0.3}))
        for _ in range(120):
            costs.observe_target(1, 0, 0.03)
            costs.observe_target(5, 0, 0.12)
        assert costs.target(5) / costs.target(1) == pytest.approx(4, rel=0.05)
        assert costs.target(5) < costs.target(6) < costs.target(32)

    def test_the_first_passes_of_a_size_count_more_than_later_ones(self) -> None:
        costs = PassCosts(MEASURED)
        steps = []
        for _ in range(30):
            before = costs(8)
            costs.observe(8, 0, before * 1.05)
            steps.append(costs(8) / before)
        assert steps == sorted(steps, reverse=True)
        assert steps[0] > steps[-1] > 1

    @given(
        slower=st.sampled_from([0.5, 0.7, 1.5, 2.0, 3.0]),
        passes=st.lists(st.sampled_from(SIZES), min_size=40, max_size=60),
    )
    @settings(deadline=None, max_examples=50)
    def test_a_machine_slower_at_everything_changes_no_ratio_by_much(
        self, slower: float, passes: list[int]
    ) -> None:
        costs = Costs(PassCosts(MEASURED))
        for place, n in enumerate(passes * 8):
            costs.observe_target(n, 0, MEASURED[n] * slower)
            if place % 4 == 0:  # a token by itself tells the machine's speed
                costs.observe_target(1, 0, MEASURED[1] * slower)
        for n, ratio in ratios(costs).items():
            assert ratio == pytest.approx(MEASURED[n] / MEASURED[1], rel=0.1)

    def test_a_machine_busy_for_a_while_leaves_no_trace(self) -> None:
        costs = Costs(PassCosts(MEASURED))
        for slower in (1.0, 2.5, 1.0):
            for _ in range(60):
                for n in SIZES:
                    costs.observe_target(n, 0, MEASURED[n] * slower)
        for n, ratio in ratios(costs).items():
            assert ratio == pytest.approx(MEASURED[n] / MEASURED[1], rel=0.05)

    def test_one_pass_that_was_interrupted_changes_little(self) -> None:
        costs = Costs(PassCosts(MEASURED))
        for _ in range(20):
            for n in SIZES:
                costs.observe_target(n, 0, MEASURED[n])
        costs.observe_target(8, 0, 100 * MEASURED[8])
        assert costs.target(8) == pytest.approx(MEASURED[8], rel=0.1)

    def test_the_draft_models_share_is_learned(self) -> None:
        costs = Costs(PassCosts(MEASURED), PassCosts({1: 0.01, 2: 0.02}))
        assert costs.draft is not None
        for _ in range(100):
            costs.observe_target(4, 0, MEASURED[4])
            costs.observe_target(1, 0, MEASURED[1])
            costs.observe_draft(1, 0, 0.016)
        assert costs.draft(1) / costs.target(1) == pytest.approx(0.016 / 0.03, rel=0.1)

    @pytest.mark.parametrize(("n", "seconds"), [(0, 1.0), (-1, 1.0), (4, 0.0), (4, -1.0)])
    def test_what_was_no_pass_teaches_nothing(self, n: int, seconds: float) -> None:
        costs = Costs(PassCosts(MEASURED), PassCosts({1: 0.01}))
        costs.observe_target(n, 0, seconds)
        costs.observe_draft(n, 0, seconds)
        assert costs.target.measured() == MEASURED
        assert costs.draft is not None
        assert costs.draft.measured() == {1: 0.01}

    def test_without_a_draft_model_its_passes_are_nobodys(self) -> None:
        costs = Costs(PassCosts(MEASURED))
        costs.observe_draft(1, 0, 1.0)
        assert costs.draft is None
        assert costs.target.measured() == MEASURED


class TestContextLength:
    def test_a_long_context_is_told_from_a_short_one(self) -> None:
        costs = Costs(PassCosts(MEASURED))
        for _ in range(100):
            for n in SIZES:
                costs.observe_target(n, 100, MEASURED[n])
            for n in SIZES:
                costs.observe_target(n, 6000, MEASURED[n] + 0.03)
        assert ratios(costs, 100)[8] == pytest.approx(0.14 / 0.03, rel=0.1)
        assert ratios(costs, 6000)[8] == pytest.approx(0.17 / 0.06, rel=0.1)

    def test_a_band_without_passes_is_taken_from_the_one_below(self) -> None:
        costs = PassCosts(MEASURED)
        assert costs.table(50_000) == costs.table(0)
        for _ in range(50):
            costs.observe(8, 5000, 0.2)
        assert costs(8, 5000) == costs(8, 50_000) == pytest.approx(0.2, rel=0.1)
        assert costs(8, 0) == costs(8, 1000) == costs(8, 2000) == MEASURED[8]


class TestRenewed:
    @given(TABLES, TABLES)
    def test_the_later_speed_and_the_lower_ratios(
        self, before: dict[int, float], later: dict[int, float]
    ) -> None:
        costs = PassCosts(before).renewed(PassCosts(later))
        assert costs.measured().keys() == before.keys() | later.keys()
        assert costs(1) == later[1]
        for n, seconds in costs.measured().items():
            ratios = [table[n] / table[1] for table in (before, later) if n in table]
            assert seconds / later[1] == pytest.approx(min(ratios))

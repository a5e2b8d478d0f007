"""The search for a target's best draft made of itself: candidates are made, tried on its own text, measured.

What a candidate would get accepted is told by the target's text, recorded once: many places go through one
pass, so that costs seconds. The promising ones are then run beside plain decoding. Only the best is kept.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.compare.summary import Spread
from app.core.copies import ModelCopy
from app.core.errors import HeadstartError
from app.core.models import ModelFacts
from app.core.paths import models_dir
from app.drafts.bench import Bench, Measured
from app.drafts.expect import expected_speedup
from app.drafts.layers import Cut, search_cuts
from app.drafts.trials import News, Result, Trial
from app.library import making
from app.library.making import TRIAL, Making, copy_words
from app.worker import tasks
from app.worker.client import WorkerClient

USUAL_MINUTES = 20.0
LOOKUPS = "look-ups, no draft"
_TYPES = ("Q4_K_M", "Q4_0", "Q3_K_S", "Q2_K")
_FEWEST_LAYERS = 6  # of a target, to look for some that can go
_WORTH_MAKING = 0.9  # of the target's cost
_WORTH_MEASURING = 0.85  # of the best expectation; expectations are rough
_WORTH_A_DRAFT = 1.03  # over Auto without one
_FIRST_GUESS = 0.15  # what a further token adds to a pass of the target, before anything is measured
_RECORDING, _MAKING, _LAYERS = 0.1, 0.5, 0.75  # when these end, as shares of the time
_LOOKUPS, _MEASURING = 0.1, 0.15  # how long a candidate may take


def search(
    target: Path,
    minutes: float = USUAL_MINUTES,
    name: str | None = None,
    output: Path | None = None,
    on_news: Callable[[News], None] = lambda news: None,
    cancelled: Callable[[], bool] = lambda: False,
    client: WorkerClient | None = None,
) -> Result:
    """Find the best draft that can be made of ``target`` in about ``minutes``, and keep it if one pays.

    ``name`` and ``output`` as in making.plan_draft; ``client``: the program's, if it has one. Whatever ends
    this, no other new file is left. Raises HeadstartError, and Cancelled where ``cancelled`` returned true.
    """
    facts = making.facts_of(target)
    named = making.place_of(target, ModelCopy(None), name, output) if name or output else None
    folder = named.parent if named else models_dir()
    with making.only_one():
        making.remove_leftovers(folder)
        used = client or WorkerClient()
        try:
            work = _Search(target, facts, minutes * 60, folder, on_news, cancelled, used)
            return work.run(name, output)
        finally:
            used.unload()  # some systems remove no file that is in use
            if used is not client:
                used.close()
            making.remove_leftovers(folder)


@dataclass(slots=True)
class _Candidate:
    """A draft that was made, at ``file`` until it is kept; ``trial`` is its place among the trials."""

    making: Making
    file: Path
    trial: int
    agreement: float
    measured: Measured | None = None


class _Search:
    def __init__(
        self,
        target: Path,
        facts: ModelFacts,
        seconds: float,
        folder: Path,
        on_news: Callable[[News], None],
        cancelled: Callable[[], bool],
        client: WorkerClient,
    ) -> None:
        self._target = target
        self._facts = facts
        self._seconds = seconds
        self._folder = folder
        self._on_news = on_news
        self._cancelled = cancelled
        self._client = client
        self._bench = Bench(target, facts.quantization, client, self._tell, cancelled)
        self._began = time.monotonic()
        self._trials: list[Trial] = []
        self._candidates: list[_Candidate] = []
        self._verify_cost = _FIRST_GUESS
        self._overhead = 1.0  # a draft's measured cost over the expected one

    def run(self, name: str | None, output: Path | None) -> Result:
        self._bench.record(lambda: self._share() > _RECORDING)
        alone = self._measure_lookups()
        self._make_types()
        self._measure_next()
        if self._facts.kind == "model":
            self._cut_layers()
        while self._share() < 1 and self._measure_next():
            pass
        return self._decide(alone, name, output)

    def _share(self) -> float:
        return (time.monotonic() - self._began) / self._seconds

    def _tell(self, step: str, done: int, total: int) -> None:
        self._on_news(News(step, done, total, tuple(self._trials)))

    def _note(self, place: int, **changes: object) -> None:
        self._trials[place] = replace(self._trials[place], **changes)  # type: ignore[arg-type]

    def _measure_lookups(self) -> Spread:
        """Auto without a draft: what a draft must beat."""
        self._trials.append(Trial(LOOKUPS))
        measured = self._bench.measure(None, LOOKUPS, self._seconds * _LOOKUPS)
        if isinstance(measured, str):
            raise HeadstartError(f"{self._target.name} can't be measured: {measured}")
        self._note(0, measured=measured)
        return measured.speedup

    def _make_types(self) -> None:
        for type_ in _TYPES:
            plan = tasks.plan_copy(self._target, ModelCopy(type_))
            self._trials.append(Trial(type_, plan.size_bytes, plan.cost))
            place = len(self._trials) - 1
            if plan.cost > _WORTH_MAKING:
                self._note(place, note="not made: hardly cheaper than the target")
            elif self._candidates and self._share() > _MAKING:
                self._note(place, note="not made: the time was up")
            else:
                made = Making(self._target, self._folder, ModelCopy(type_), plan, self._target)
                self._make(made, place)

    def _make(self, wanted: Making, place: int) -> None:
        """Write a candidate and see how often it agrees; a failure is noted."""
        words = copy_words(wanted.copy)
        stem = making.draft_name(self._target, wanted.copy)
        try:
            file = making.write(
                wanted, self._folder / f"{stem}.gguf{TRIAL}", self._tell_making, self._cancelled
            )
            self._tell(f"trying {words} on the target's text", 0, 1)
            agreement = tasks.agreement(file, self._bench.texts, self._cancelled)
        except HeadstartError as error:
            self._note(place, note=f"failed: {error.what}")
            return
        self._candidates.append(_Candidate(wanted, file, place, agreement))
        self._note(place, agreement=agreement)

    def _tell_making(self, step: str, done: int, total: int) -> None:
        self._tell(step.removesuffix(TRIAL), done, total)

    def _expected(self, agreement: float, cost: float) -> float:
        return expected_speedup(agreement, cost * self._overhead, self._verify_cost)

    def _expected_of(self, candidate: _Candidate) -> float:
        return self._expected(candidate.agreement, candidate.making.plan.cost)

    def _measure_next(self) -> bool:
        """Measure the most promising candidate that is left, if one is promising."""
        left = [candidate for candidate in self._candidates if not candidate.measured]
        left = [candidate for candidate in left if not self._trials[candidate.trial].note]
        if not left:
            return False
        candidate = max(left, key=lambda one: (self._expected_of(one), -one.making.plan.cost))
        expected = self._expected_of(candidate)
        best = max((self._expected_of(one) for one in self._candidates if one.measured), default=0)
        if expected < best * _WORTH_MEASURING:
            for one in left:
                self._note(one.trial, note=f"not measured: about {self._expected_of(one):.2f}x is expected")
            return False
        words = copy_words(candidate.making.copy)
        measured = self._bench.measure(candidate.file, words, self._seconds * _MEASURING)
        if isinstance(measured, str):
            self._note(candidate.trial, note=f"failed: {measured}")
            return True
        candidate.measured = measured
        self._note(candidate.trial, measured=measured)
        if measured.step_cost and measured.verify_cost is not None:
            self._overhead = measured.step_cost / candidate.making.plan.cost
            self._verify_cost = measured.verify_cost
        return True

    def _cut_layers(self) -> None:
        """Look for layers to leave out of the best 4-bit copy, or of the target where there is none."""
        four_bit = [one for one in self._candidates if (one.making.copy.file_type or "").startswith("Q4")]
        base = max(four_bit, key=self._expected_of, default=None)
        base_type = base.making.copy.file_type if base else None
        words = f"{base_type or self._facts.quantization} with layers cut"
        try:
            cuts = self._find_cuts(base.file if base else self._target)
        except HeadstartError as error:
            self._trials.append(Trial(words, note=f"not tried: {error.what}"))
            return
        options = []
        for cut in cuts:
            plan = tasks.plan_copy(base.file if base else self._target, ModelCopy(None, cut.layers))
            if base:
                plan = replace(plan, source_pass_bytes=base.making.plan.source_pass_bytes)
            options.append((self._expected(cut.agreement, plan.cost), cut, plan))
        expected, cut, plan = max(options, key=lambda option: option[0])
        copy = ModelCopy(base_type, cut.layers)
        self._trials.append(Trial(copy_words(copy), plan.size_bytes, plan.cost, cut.agreement))
        place = len(self._trials) - 1
        uncut = max((self._expected_of(one) for one in self._candidates), default=1.0)
        if uncut > 1 and expected <= uncut:
            note = f"not made: about {expected:.2f}x is expected, {uncut:.2f}x with all layers"
            self._note(place, note=note)
        else:
            self._make(Making(self._target, self._folder, copy, plan, self._target), place)

    def _find_cuts(self, model: Path) -> list[Cut]:
        if self._facts.n_layer < _FEWEST_LAYERS:
            raise HeadstartError("it has too few layers")
        if self._share() > _LAYERS:
            raise HeadstartError("the time was up")
        scratch = self._folder / f"{self._target.stem}.gguf{TRIAL}"
        try:
            return search_cuts(
                model,
                self._facts.n_layer,
                scratch,
                self._bench.shortest_texts(),
                self._seconds * (_LAYERS - self._share()),
                lambda done, total: self._tell("looking for layers that are not missed", done, total),
                self._cancelled,
            )
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink()

    def _decide(self, alone: Spread, name: str | None, output: Path | None) -> Result:
        for one in self._candidates:
            if not one.measured and not self._trials[one.trial].note:
                self._note(one.trial, note="not measured: the time was up")
        best = self._best_that_pays(max(1.0, alone.median) * _WORTH_A_DRAFT)
        if best is None:
            return Result(tuple(self._trials), None, self._nothing_pays(alone))
        place = self._place(best.making.copy, name, output)
        self._client.unload()
        try:
            best.file.replace(place)
        except OSError as error:
            raise HeadstartError(f"can't write {place}: {error.strerror}", "choose another place") from error
        self._note(best.trial, note="kept")
        words = f"{copy_words(best.making.copy)} pays best: {_speed(best)} plain with Auto here"
        if alone.median > 1:
            words += f", {alone.median:.2f}x without a draft"
        return Result(tuple(self._trials), place, f"{words}; kept as {place.name}")

    def _best_that_pays(self, must_beat: float) -> _Candidate | None:
        """The fastest draft that a second measurement confirms: a busy moment makes a wonder of any."""

        def pays(candidate: _Candidate) -> bool:
            measured = candidate.measured
            return bool(measured and measured.outcome == "faster" and measured.speedup.median >= must_beat)

        for candidate in self._measured():
            if not pays(candidate):
                continue
            words = copy_words(candidate.making.copy)
            again = self._bench.measure(candidate.file, f"{words} again", self._seconds * _MEASURING)
            if candidate.measured and isinstance(again, Measured):
                candidate.measured = candidate.measured.with_more(again)
                self._note(candidate.trial, measured=candidate.measured)
                if pays(candidate):
                    return candidate
        return None

    def _measured(self) -> list[_Candidate]:
        """Those that were measured, the fastest first."""
        speeds = [(one.measured.speedup.median, one) for one in self._candidates if one.measured]
        return [one for _, one in sorted(speeds, key=lambda pair: -pair[0])]

    def _nothing_pays(self, alone: Spread) -> str:
        if not self._candidates:
            return "Nothing pays here: no copy of this target is enough cheaper than the target itself"
        tried = self._measured()
        if not tried:
            return "No draft could be measured in this time; give the search more minutes"
        said = (
            f"the best draft, {copy_words(tried[0].making.copy)}, came to {_speed(tried[0])} plain with Auto"
        )
        return f"Nothing pays here: {said}, and Auto without a draft to {alone.median:.2f}x"

    def _place(self, copy: ModelCopy, name: str | None, output: Path | None) -> Path:
        """Where the draft is kept; an older one of the usual name stays."""
        if name or output:
            return making.place_of(self._target, copy, name, output)
        usual = making.draft_name(self._target, copy)
        names = itertools.chain([usual], (f"{usual}-{number}" for number in itertools.count(2)))
        places = (self._folder / f"{name}.gguf" for name in names)
        return next(place for place in places if not place.exists())


def _speed(candidate: _Candidate) -> str:
    speedup = candidate.measured.speedup if candidate.measured else Spread(0, 0, 0)
    return f"{speedup.median:.2f}x ({speedup.min:.2f} to {speedup.max:.2f})"

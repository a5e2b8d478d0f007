"""The pair of models that the child holds, and what it costs to change it."""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from app.backend.chat import ChatFormat
from app.backend.context import Context
from app.backend.devices import devices
from app.backend.files import read_facts
from app.backend.llama import CancelFlag
from app.backend.model import Model, vocabulary_of
from app.core.acceptance import Confidence, Record
from app.core.costs import Costs, PassCosts
from app.core.errors import HeadstartError
from app.core.layers import layers_that_fit
from app.core.models import USABLE_KINDS, WHY_UNUSABLE
from app.core.settings import LoadSettings, SamplingSettings
from app.core.split import parts
from app.core.vocabulary import compare
from app.engine.generate import Known
from app.worker.kept_costs import Kept, keep, name_of
from app.worker.machine import usable_cores
from app.worker.measured import pass_costs

OnLoading = Callable[[str, str, float], None]
OnMeasuring = Callable[[str], None]  # told a file name
# Enough passes to smooth over a busy machine, few enough to follow a growing context.
_PASSES_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one model is to be loaded; an equal plan and an unchanged file need no reload."""

    role: str
    path: Path
    changed: tuple[int, int]  # the file's size and time, so that a replaced file is loaded anew
    gpu_layers: int | None
    n_ctx: int
    n_batch: int
    threads: int
    cache_type_k: str
    cache_type_v: str


class LoadedModel:
    """A model with its cache."""

    def __init__(self, plan: _Plan, cancel: CancelFlag, on_loading: OnLoading) -> None:
        self.plan = plan

        def report(fraction: float) -> bool:
            on_loading(plan.role, plan.path.name, fraction)
            return not cancel.is_set()

        report(0.0)  # whose file it is, should reading it end this process
        facts = read_facts(plan.path)
        if facts.kind not in USABLE_KINDS:
            raise HeadstartError(
                f"{plan.path.name} cannot be used as a {plan.role}: {WHY_UNUSABLE[facts.kind]}",
                "choose another model",
            )
        layers = plan.gpu_layers
        if layers is None:
            size = sum(part.stat().st_size for part in parts(plan.path))
            layers = layers_that_fit(size, facts.n_layer, devices())
        self.model = Model(plan.path, layers, report)
        # A draft may be trained on a shorter context than the target; it then stops proposing there.
        n_ctx = min(plan.n_ctx, facts.n_ctx_train or plan.n_ctx) if plan.role == "draft" else plan.n_ctx
        try:
            self.context = Context(
                self.model, n_ctx, plan.n_batch, plan.threads, cancel, plan.cache_type_k, plan.cache_type_v
            )
        except BaseException:
            self.model.close()
            raise
        settings = (plan.role, plan.threads, layers, plan.n_batch, plan.cache_type_k, plan.cache_type_v)
        self.name = name_of(plan.path, *settings, version("llama-cpp-python"))
        self._kept: Kept | None = None

    def measured(self, on_measuring: OnMeasuring) -> PassCosts:
        """What its passes cost, measured when first asked for, which it is told. Raises Cancelled."""
        if self._kept is None:
            told = partial(on_measuring, self.plan.path.name)
            self._kept = pass_costs(self.context, self.name, self.plan.role, told)
        return self._kept.costs

    def of_one(self, n: int, n_past: int) -> float | None:
        """The part of a pass over ``n`` tokens behind ``n_past`` that one over a single token would take.

        None where that was not measured.
        """
        if n == 1:
            return 1.0
        return self._kept.costs(1, n_past) / self._kept.costs(n, n_past) if self._kept else None

    def keep_costs(self) -> None:
        """Keep what real passes taught of the costs."""
        if self._kept:
            keep(self.name, self._kept)

    def close(self) -> None:
        """Free the cache and the weights."""
        self.context.close()
        self.model.close()


class LoadedPair:
    """The target, the draft if there is one, and the speed of plain decoding seen with this target."""

    def __init__(self, cancel: CancelFlag) -> None:
        self._cancel = cancel
        self._target: LoadedModel | None = None
        self._draft: LoadedModel | None = None
        self._format: ChatFormat | None = None
        self._checked: tuple[_Plan, _Plan] | None = None
        self._plain_passes: deque[float] = deque(maxlen=_PASSES_KEPT)
        # What was learned of acceptance, by the draft and by whether sampling is greedy.
        self._records: dict[tuple[_Plan | None, bool], Record] = {}

    @property
    def target(self) -> LoadedModel:
        """The loaded target."""
        assert self._target is not None, "change_to comes first"
        return self._target

    @property
    def draft(self) -> LoadedModel | None:
        """The loaded draft."""
        return self._draft

    @property
    def format(self) -> ChatFormat:
        """The target's way of writing conversations."""
        assert self._format is not None, "change_to comes first"
        return self._format

    @property
    def n_shared(self) -> int:
        """Ids below this number are known to both models."""
        widths = [model.model.n_vocab for model in (self._target, self._draft) if model]
        return min(widths)

    def note_pass(self, n: int, n_past: int, seconds: float) -> None:
        """Take in the time of a target's pass over ``n`` tokens; a plain one would have been a part of it.

        So the estimate is of the same minute as what it is compared with, also where every pass has a draft.
        """
        part = self.target.of_one(n, n_past)
        if part is not None:
            self._plain_passes.append(part * seconds)

    def known(self, sampling: SamplingSettings, on_measuring: OnMeasuring) -> Known:
        """What auto goes by with this pair and this way of sampling.

        Costs are measured when first asked for, which ``on_measuring`` is told. Raises Cancelled.
        """
        target = self.target.measured(on_measuring)
        costs = Costs(target, self._draft.measured(on_measuring) if self._draft else None)
        learned_by = (self._draft.plan if self._draft else None, sampling.temperature == 0)
        if learned_by not in self._records:
            self._records[learned_by] = Record(model=Confidence(self._draft_is_copy))
        return Known(costs, self._records[learned_by])

    @property
    def _draft_is_copy(self) -> bool:
        """Whether the draft has the shape of the target: the same weights in fewer bits."""
        if self._draft is None:
            return False
        ours, theirs = self.target.model.facts(), self._draft.model.facts()
        return (ours.architecture, ours.parameters) == (theirs.architecture, theirs.parameters)

    def keep_costs(self) -> None:
        """Keep what real passes taught of the costs."""
        for model in filter(None, (self._target, self._draft)):
            model.keep_costs()

    @property
    def plain_tokens_per_s(self) -> float | None:
        """The estimate of plain decoding's speed; None until there was a pass that tells."""
        return 1 / statistics.median(self._plain_passes) if self._plain_passes else None

    def change_to(self, load: LoadSettings, on_loading: OnLoading) -> None:
        """Hold what ``load`` asks for; a model that is already held that way stays.

        ``on_loading`` is told role, file name and fraction. Raises HeadstartError where a model cannot be
        used, or the draft not with this target, and Cancelled; what could be loaded then stays.
        """
        plans = _plans(load)
        if self._draft and self._draft.plan != plans.get("draft"):
            self._draft.close()
            self._draft = None
        if self._target and self._target.plan != plans["target"]:
            self._target.close()
            self._target = self._format = None
            self._records.clear()
        if not self._target:
            os.ftruncate(2, 0)  # the log of what is no longer loaded
            self._load_target(plans["target"], on_loading)
        if "draft" in plans:
            self._check_draft(plans["draft"])
            self._draft = self._draft or LoadedModel(plans["draft"], self._cancel, on_loading)

    def _load_target(self, plan: _Plan, on_loading: OnLoading) -> None:
        self._plain_passes.clear()
        loaded = LoadedModel(plan, self._cancel, on_loading)
        try:
            self._format = ChatFormat(loaded.model)
            loaded.context.decode([0], 1)  # warms the weights up
            loaded.context.rewind(0)
        except BaseException:
            loaded.close()
            raise
        self._target = loaded

    def _check_draft(self, plan: _Plan) -> None:
        """Refuse a draft whose ids mean something else, before its weights are read."""
        pair = (self.target.plan, plan)
        if self._checked == pair:
            return
        with vocabulary_of(plan.path) as draft:
            check = compare(self.target.model.vocabulary(), draft.vocabulary())
        if not check.fits:
            raise HeadstartError(
                f"{plan.path.name} cannot draft for {self.target.plan.path.name}: {'; '.join(check.reasons)}",
                "choose a draft of the target's family, or lookup, which needs none",
            )
        self._checked = pair


def _plans(load: LoadSettings) -> dict[str, _Plan]:
    threads = load.threads or usable_cores()
    asked = {
        "target": (load.target, load.gpu_layers, load.cache_type_k, load.cache_type_v),
        "draft": (load.draft, load.draft_gpu_layers, load.draft_cache_type_k, load.draft_cache_type_v),
    }
    plans = {}
    for role, (path, layers, type_k, type_v) in asked.items():
        if path is not None:
            try:
                stat = path.stat()
            except OSError as error:
                raise HeadstartError(
                    f"cannot read the {role} {path}: {error.strerror}", "choose another file"
                ) from None
            changed = (stat.st_size, stat.st_mtime_ns)
            plans[role] = _Plan(
                role, path, changed, layers, load.n_ctx, load.n_batch, threads, type_k, type_v
            )
    return plans

"""The Compare tab: what is compared, how it goes, what came out, and what was compared before."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import gradio as gr

from app.compare import history, machine, report, runner
from app.compare.record import Comparison
from app.core.errors import HeadstartError
from app.ui import compare_form, compare_result
from app.ui.comparing import Comparing
from app.ui.components import answering, scripted, sentence
from app.ui.generate import QUIET
from app.ui.shelf import Shelf
from app.worker.client import WorkerClient

SCRIPTS = [
    "nodes.js",
    "strip.js",
    "tokens.js",
    "compare.js",
    "compare-form.js",
    "compare-run.js",
    "compare-result.js",
    "compare-replay.js",
]
CHARTS = ("speed", "kinds", "positions", "sweep")
TEXTS: dict[str, tuple[str, Callable[[Comparison], str]]] = {
    "json": ("application/json", lambda made: json.dumps(report.as_json(made), ensure_ascii=False) + "\n"),
    "csv": ("text/csv", report.as_csv),
    "md": ("text/markdown", report.as_markdown),
}
IMAGES = {"png": "image/png", "svg": "image/svg+xml"}


class CompareTab:
    """Builds the tab into the open Blocks and answers its script."""

    def __init__(self, client: WorkerClient, shelf: Shelf) -> None:
        self._shelf = shelf
        self._comparing = Comparing(client)
        self._pace: dict[str, float] | None = None
        acts: dict[str, Callable[..., Any]] = {
            "begin": self._begin, "plan": self._plan, "start": self._start, "go_on": self._go_on,
            "halt": self._halt, "news": self._comparing.news, "past": self._past, "show": self._show,
            "replays": self._replays, "export": self._export, "remove": self._remove,
            "lay_over": self._lay_over,
        }  # fmt: skip
        compare = answering("compare", acts)
        self.view = scripted("compare.html", SCRIPTS, value={}, elem_id="compare", server_functions=[compare])
        with gr.Row(elem_id="compare-charts"):
            plots = [
                gr.Plot(
                    show_label=False, container=False, visible=False, elem_id=f"chart-{name}", min_width=200
                )
                for name in CHARTS
            ]
        self.view.chart(self._draw, None, plots, trigger_mode="always_last", **QUIET)

    # ---- setting up ---------------------------------------------------------------------------------------

    def _begin(self, target: str) -> dict[str, Any]:
        form = compare_form.first_form(self._shelf, target)
        return {"form": form, "plain": compare_form.new_column("plain"), **self._plan(form)}

    def _plan(self, form: dict[str, Any]) -> dict[str, Any]:
        found = compare_form.choices(self._shelf, form)
        try:
            plan = compare_form.read(self._shelf, form)
        except HeadstartError as error:
            return {"choices": found, "problem": sentence(error)}
        if self._pace is None:
            self._pace = compare_form.pace(history.entries())
        adds_plain = len(plan.columns) > len(form["columns"]) and not form["sweep"]["key"]
        return {
            "choices": found,
            "problem": "",
            "estimate": compare_form.estimate(plan, self._pace),
            "note": "A plain column is added: speed-ups are over it." if adds_plain else "",
        }

    # ---- running ------------------------------------------------------------------------------------------

    def _start(self, form: dict[str, Any]) -> dict[str, Any]:
        plan = compare_form.read(self._shelf, form)

        def prepare() -> Comparison:
            facts = machine.facts(plan.columns)
            return runner.new(plan.columns, plan.prompts, plan.repeats, facts)

        self._comparing.start(prepare)
        self._pace = None
        return {}

    def _go_on(self, id: str) -> dict[str, Any]:
        comparison = history.load(id)
        target = comparison.columns[0].load.target
        if not target.is_file():
            raise HeadstartError(f"the target {target} is no longer there", "put it back")
        self._comparing.start(lambda: comparison)
        self._pace = None
        return {}

    def _halt(self) -> dict[str, Any]:
        self._comparing.stop()
        return {}

    # ---- results ------------------------------------------------------------------------------------------

    def _past(self) -> dict[str, Any]:
        return {"entries": [compare_result.entry(one) for one in history.entries()]}

    def _show(self, id: str) -> dict[str, Any]:
        comparison = history.load(id)
        names = [] if not comparison.runs else list(_charts(comparison, False))
        return {**compare_result.result(comparison), "charts": names}

    def _replays(self, id: str) -> dict[str, Any]:
        return compare_result.replays(history.load(id))

    def _lay_over(self, ids: list[str]) -> dict[str, Any]:
        return {"results": [compare_result.result(history.load(id_)) for id_ in ids]}

    def _remove(self, id: str) -> dict[str, Any]:
        if id == self._comparing.current:
            raise HeadstartError("this comparison is being made", "stop it first")
        history.remove(id)
        self._pace = None
        return self._past()

    def _export(self, id: str, kind: str, chart: str = "") -> dict[str, Any]:
        """A file as the browser saves it; its bytes in base64."""
        comparison = history.load(id)
        if kind in TEXTS:
            media, make = TEXTS[kind]
            return _file(f"comparison-{id}.{kind}", media, make(comparison).encode("utf-8", "replace"))
        image: Any = io.BytesIO() if kind == "png" else io.StringIO()
        drawing: Any = _charts(comparison, False)[chart]
        drawing.save(image, format=kind, scale_factor=2 if kind == "png" else 1)
        made = image.getvalue()
        content = made if isinstance(made, bytes) else made.encode()
        return _file(f"comparison-{id}-{chart}.{kind}", IMAGES[kind], content)

    def _draw(self, event: gr.EventData) -> list[Any]:
        """The charts of the comparison shown, or one of several laid over each other."""
        ids, dark = event._data["ids"], bool(event._data["dark"])
        try:
            made = [history.load(id_) for id_ in ids]
        except HeadstartError:
            made = []
        if len(made) > 1:
            from app.compare.charts import overlay

            found = {"speed": overlay(made, dark)}
        else:
            found = {name: chart for one in made for name, chart in _charts(one, dark).items()}
        sweep = next((chart for name, chart in found.items() if name.startswith("sweep-")), None)
        shown = [found.get(name) for name in CHARTS[:-1]] + [sweep]
        return [gr.update(value=chart, visible=chart is not None) for chart in shown]


def _charts(comparison: Comparison, dark: bool) -> dict[str, Any]:
    from app.compare.charts import all_charts  # Altair takes a second to import

    return dict(all_charts(comparison, dark))


def _file(name: str, media: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "media": media, "base64": base64.b64encode(content).decode()}

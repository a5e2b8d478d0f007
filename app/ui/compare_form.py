"""From what a person chose on the Compare tab to columns and prompts, and how long that may take."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.compare import columns as column_rules
from app.compare import workloads
from app.compare.record import Column, Comparison, Prompt
from app.core.errors import UsageError
from app.core.settings import MAX_DRAFT, LoadSettings, Mode, Request, SamplingSettings, SpeculationSettings
from app.core.split import parts
from app.ui.figures import count, seconds
from app.ui.picker import DRAFTING, NO_DRAFT, draft_options, require_listed, target_options, valid
from app.ui.shelf import Shelf

Form = Mapping[str, Any]

NAMES = {"n_draft": "K", "ngram_min": "n from", "ngram_max": "n to", "max_tokens": "longest answer"}
SWEEPS = {"n_draft": int, "p_min": float, "temperature": float}
# Bytes of weights a second that machines are known to pass through, for a target never measured here.
SLOW, FAST = 4e9, 60e9


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be compared."""

    columns: tuple[Column, ...]
    prompts: tuple[Prompt, ...]
    repeats: int

    @property
    def runs(self) -> int:
        """How many answers it takes."""
        return len(self.columns) * len(self.prompts) * self.repeats


def first_form(shelf: Shelf, target: str) -> dict[str, Any]:
    """What a new comparison begins with, on ``target`` if that can be used."""
    targets = target_options(shelf)
    chosen = valid(target, targets)
    draft = valid("", draft_options(shelf, chosen)[0], avoid=chosen)
    has_draft = bool(draft) and draft != chosen
    columns = [new_column("plain"), {**new_column("auto"), "draft": draft if has_draft else NO_DRAFT}]
    if has_draft:
        columns.append({**new_column("draft"), "draft": draft})
    columns.append(new_column("lookup"))
    return {
        "target": chosen,
        "n_ctx": LoadSettings(Path()).n_ctx,
        "columns": columns,
        "sweep": {"key": "", "values": ""},
        "prompts": {
            "way": "built-in",
            "kinds": ["code", "edit", "story"],
            "each": 1,
            "text": "",
            "file": None,
        },
        "repeats": 3,
        "max_tokens": 128,
        "temperature": 0,
    }


def new_column(mode: str) -> dict[str, Any]:
    """A column's fields as they start out."""
    usual = SpeculationSettings()
    return {
        "mode": mode,
        "draft": "",
        "n_draft": 10 if mode == Mode.LOOKUP.value else usual.n_draft,
        "p_min": usual.p_min,
        "ngram_min": usual.ngram_min,
        "ngram_max": usual.ngram_max,
    }


def choices(shelf: Shelf, form: Form) -> dict[str, Any]:
    """What can be picked on this form; what can't has its reason."""
    drafts, problem = draft_options(shelf, form["target"])
    return {
        "targets": target_options(shelf) or [("", "no model yet", "fetch one on the Generate tab")],
        "drafts": drafts or [("", "none", str(problem or "no model here can draft"))],
        "kinds": list(workloads.KINDS.items()),
        "max_columns": column_rules.MAX_COLUMNS,
        "max_draft": MAX_DRAFT,
    }


def read(shelf: Shelf, form: Form) -> Plan:
    """The plan that the form asks for. Raises UsageError in the words of the page."""
    try:
        return _read(shelf, form)
    except UsageError as error:
        name = re.compile(r"\b(" + "|".join(NAMES) + r")\b")
        raise UsageError(name.sub(lambda match: NAMES[match[0]], error.what), error.remedy) from error


def pace(past: Iterable[Comparison]) -> dict[str, float]:
    """Seconds a token that each target took, whatever the columns were; the newest comparison counts."""
    found: dict[str, float] = {}
    for comparison in past:
        stats = [row.stats for row in comparison.runs if row.stats and row.stats.total_s]
        tokens = sum(one.output_tokens for one in stats)
        if tokens:
            took = sum(one.total_s or 0 for one in stats)
            found.setdefault(str(comparison.columns[0].load.target), took / tokens)
    return found


def estimate(plan: Plan, pace_of: Mapping[str, float]) -> str:
    """How long it may take, and where that is known from."""
    target = plan.columns[0].load.target
    tokens = plan.runs * plan.columns[0].request.max_tokens
    size = f"{count(plan.runs, 'run')} of at most {plan.columns[0].request.max_tokens} tokens. "
    if known := pace_of.get(str(target)):
        return (
            size + f"At most about {duration(known * tokens)}, judging by the last comparison of this target."
        )
    try:
        weights = sum(part.stat().st_size for part in parts(target))
    except OSError:
        return size
    least, most = (duration(tokens * weights / rate) for rate in (FAST, SLOW))
    return (
        size + f"Between {least} and {most}: this target was never compared here. The first runs will tell."
    )


def duration(value: float) -> str:
    """A time that is only roughly known."""
    if value < 90:
        return seconds(max(round(value), 1.0)).replace(".0 s", " s")
    return f"{round(value / 60)} min" if value < 5400 else f"{value / 3600:.1f} h"


def _read(shelf: Shelf, form: Form) -> Plan:
    target = form["target"]
    if not target:
        raise UsageError("no target model is chosen", "fetch one on the Generate tab")
    require_listed(shelf, Path(target))
    prompts = _prompts(form["prompts"])
    repeats = _whole(form["repeats"], "repeats")
    if not 1 <= repeats <= 20:
        raise UsageError(f"{count(repeats, 'repeat')} must lie between 1 and 20")
    if not form["columns"]:
        raise UsageError("there is nothing to compare", "add a column")
    if len(form["columns"]) > column_rules.MAX_COLUMNS:
        raise UsageError(f"at most {column_rules.MAX_COLUMNS} columns fit side by side")
    fitting = {path: problem for path, _, problem in draft_options(shelf, target)[0]}
    modes = Counter(column["mode"] for column in form["columns"])
    seen: Counter[str] = Counter()
    columns: list[Column] = []
    for fields in form["columns"]:
        mode = fields["mode"]
        seen[mode] += 1
        name = f"{mode} {seen[mode]}" if modes[mode] > 1 else mode
        needs_draft = mode in DRAFTING and not (mode == Mode.AUTO.value and fields["draft"] == NO_DRAFT)
        if needs_draft and fitting.get(fields["draft"], "is not there"):
            why = fitting.get(fields["draft"]) or "no draft model is chosen"
            raise UsageError(f"column {len(columns) + 1}: {why}", "choose another, or take lookup")
        columns.append(_column(name, fields, Path(fields["draft"]) if needs_draft else None, form))
    swept = _swept(columns, form["sweep"])
    return Plan(column_rules.with_plain(swept), prompts, repeats)


def _column(name: str, fields: Form, draft: Path | None, form: Form) -> Column:
    mode = Mode(fields["mode"])
    speculation = SpeculationSettings(mode)
    if mode in (Mode.DRAFT, Mode.LOOKUP):
        speculation = dataclasses.replace(speculation, n_draft=_whole(fields["n_draft"], "K"))
    if mode is Mode.DRAFT:
        speculation = dataclasses.replace(speculation, p_min=_number(fields["p_min"], "p_min"))
    if mode is Mode.LOOKUP:
        least, most = (_whole(fields[key], NAMES[key]) for key in ("ngram_min", "ngram_max"))
        speculation = dataclasses.replace(speculation, ngram_min=least, ngram_max=most)
    return Column(
        name,
        LoadSettings(
            Path(form["target"]),
            draft,
            n_ctx=_whole(form["n_ctx"], "context"),
        ),
        Request(
            (),
            max_tokens=_whole(form["max_tokens"], "longest answer"),
            sampling=SamplingSettings(temperature=_number(form["temperature"], "temperature")),
            speculation=speculation,
        ),
    )


def _swept(columns: Sequence[Column], sweep: Form) -> list[Column]:
    """Each column that the setting matters to, once for each value."""
    key = sweep["key"]
    if not key:
        return list(columns)
    bases = [column for column in columns if column_rules.is_swept(column.mode, key)]
    if key == "p_min":
        bases = [column for column in bases if column.mode is Mode.DRAFT]
    if not bases:
        raise UsageError(
            "the sweep has no column to vary", "add one with a draft" + " or lookup" * (key != "p_min")
        )
    texts = list(dict.fromkeys(filter(None, re.split(r"[\s,;]+", str(sweep["values"])))))
    values = [(_whole if SWEEPS[key] is int else _number)(text, "the sweep's value") for text in texts]
    if len(values) < 2:
        raise UsageError("a sweep needs two values or more", "write them with commas between, as 1, 2, 4, 8")
    if len(bases) * len(values) > column_rules.MAX_SWEPT_COLUMNS:
        most = column_rules.MAX_SWEPT_COLUMNS
        raise UsageError(f"the sweep makes {len(bases) * len(values)} columns; at most {most} can be swept")
    found = []
    for column in columns:
        if column not in bases:
            found.append(column)
            continue
        for value in values:
            found.append(_with(column, key, value))
    return found


def _with(column: Column, key: str, value: float) -> Column:
    request = column.request
    part = "sampling" if key == "temperature" else "speculation"
    changed = dataclasses.replace(getattr(request, part), **{key: value})
    request = dataclasses.replace(request, **{part: changed})
    return dataclasses.replace(column, name=f"{column.name} {key}={value}", request=request)


def _prompts(chosen: Form) -> tuple[Prompt, ...]:
    match chosen["way"]:
        case "own":
            if not chosen["text"].strip():
                raise UsageError("the prompt is empty", "write something to answer")
            return (Prompt("prompt", "own", chosen["text"]),)
        case "file":
            if not chosen["file"]:
                raise UsageError("no file of prompts is chosen", 'choose one; a line is {"prompt": "…"}')
            text = chosen["file"]["text"].removeprefix("\ufeff")
            return workloads.parse_prompts(text, chosen["file"]["name"])
        case _:
            kinds = [kind for kind in workloads.KINDS if kind in chosen["kinds"]]
            if not kinds:
                raise UsageError("no kind of task is chosen", "tick one or more")
            each = _whole(chosen["each"], "prompts of each")
            return tuple(prompt for kind in kinds for prompt in workloads.workload(kind)[:each])


def _whole(value: Any, name: str) -> int:
    number = _number(value, name)
    if number != int(number):
        raise UsageError(f"{name} {value} is not a whole number")
    return int(number)


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        said = f"'{value}' is not a number" if str(value or "").strip() else "is empty"
        raise UsageError(f"{name} {said}") from None
    if not abs(number) < 1e9:
        raise UsageError(f"{name} {value} is out of bounds")
    return number

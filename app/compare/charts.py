"""The charts of a comparison, for the page and for files.

Every bar and point has its number beside it, and lines differ in dash and shape, so that nothing rests on
colour alone. ``dark`` fits them to a dark page. Altair needs a second to import: import this module late.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from app.compare.record import Column, Comparison
from app.compare.summary import (
    acceptance_by_position,
    categories,
    labels,
    rows_of,
    summarise,
)
from app.core.errors import HeadstartError
from app.core.settings import Mode

Chart = alt.Chart | alt.LayerChart | alt.HConcatChart
SWEPT = {"n_draft": "draft length K", "p_min": "p_min", "temperature": "temperature"}

# Neighbours differ in lightness, so they also differ in grey.
_PALETTE = ["#7f8790", "#2f74c0", "#f0a63a", "#157a5b", "#d98cb8", "#8c3b2e", "#66b7d6", "#5b4a9c"]
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
_WIDTH = 460
_BAR = 26
_ROOM = 1.2  # beyond the longest bar, for its number


def all_charts(comparison: Comparison, dark: bool = False) -> dict[str, Chart]:
    """Every chart that the runs give something to show for, by name: speed, kinds, positions, sweep-KEY."""
    found = {
        "speed": speed(comparison, dark),
        "kinds": by_kind(comparison, dark),
        "positions": by_position(comparison, dark),
    }
    found |= {f"sweep-{key}": sweep(comparison, key, dark) for key in SWEPT}
    return {name: chart for name, chart in found.items() if chart is not None}


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every chart as PNG and SVG. Raises HeadstartError where the folder cannot be written."""
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in all_charts(comparison).items():
            for kind, scale in (("png", 2), ("svg", 1)):
                path = folder / f"{name}.{kind}"
                chart.save(str(path), scale_factor=scale)
                paths.append(path)
    except OSError as error:
        raise HeadstartError(f"cannot write to {folder}: {error.strerror}", "name another folder") from None
    return paths


def speed(comparison: Comparison, dark: bool = False) -> Chart | None:
    """Bars of tokens/s, the median, with a line from the slowest run to the fastest."""
    words = labels(comparison)
    bars = []
    for column in comparison.columns:
        if speeds := _speeds(comparison, column):
            bars.append(_speed_bar(words[column.name], speeds))
    return _speed_bars(bars, "label", _shades(comparison), dark) if bars else None


def overlay(comparisons: Sequence[Comparison], dark: bool = False) -> Chart | None:
    """The speeds of several comparisons, those of like columns one under the other."""
    bars = []
    for comparison in comparisons:
        words = labels(comparison)
        for column in comparison.columns:
            if speeds := _speeds(comparison, column):
                bar = _speed_bar(f"{words[column.name]} · {comparison.id}", speeds)
                bars.append(bar | {"comparison": comparison.id, "words": words[column.name]})
    like = [bar["words"] for bar in bars]
    bars.sort(key=lambda bar: like.index(bar["words"]))
    shades = dict(zip((one.id for one in comparisons), itertools.cycle(_PALETTE), strict=False))
    return _speed_bars(bars, "comparison", shades, dark) if bars else None


def by_kind(comparison: Comparison, dark: bool = False) -> Chart | None:
    """Bars of the paired speed-up over plain for each kind of task; a line marks plain."""
    words = labels(comparison)
    names = [column.name for column in comparison.columns if column is not comparison.baseline]
    kinds = categories(comparison)
    bars: list[dict[str, Any]] = [
        {
            "kind": part.category,
            "label": words[part.column],
            "speedup": part.speedup.median,
            "min": part.speedup.min,
            "max": part.speedup.max,
            "text": f"{part.speedup.median:.2f}",
        }
        for part in summarise(comparison)
        if part.speedup and part.category is not None and part.column in names
    ]
    if not bars:
        return None
    order = [words[name] for name in names]
    base = alt.Chart(_data(bars)).encode(
        y=alt.Y("kind:N", sort=kinds, title=None),
        yOffset=alt.YOffset("label:N", sort=order),
        tooltip=["kind:N", "label:N", "speedup:Q", "min:Q", "max:Q"],
    )
    scale = alt.Scale(domain=[0, max(bar["max"] for bar in bars) * _ROOM])
    layers = [
        base.mark_bar().encode(
            x=alt.X("speedup:Q", title="x plain (median of pairs)", scale=scale),
            color=alt.Color("label:N", sort=order, title=None, scale=_scale_of(order, _shades(comparison))),
        ),
        *_spread(base, scale, dark),
        base.mark_text(align="left", dx=5, color=_ink(dark)).encode(
            x=alt.X("max:Q", scale=scale), text="text:N"
        ),
        alt.Chart(_data([{"plain": 1}]))
        .mark_rule(color=_ink(dark), strokeDash=[5, 3])
        .encode(x=alt.X("plain:Q", scale=scale)),
    ]
    height = max(_BAR * len(kinds) * len(names), 60)
    chart = alt.layer(*layers).properties(width=_WIDTH, height=height, title="Speed by kind of task")
    return _styled(chart, dark)


def by_position(comparison: Comparison, dark: bool = False) -> Chart | None:
    """How often the first, second, … drafted token is kept, a line for each column."""
    words = labels(comparison)
    order, points = [], []
    for column in comparison.columns:
        rates = acceptance_by_position(rows_of(comparison, column.name))
        if rates:
            order.append(words[column.name])
        points += [
            {"label": words[column.name], "place": place, "rate": rate, "text": f"{rate:.0%}"}
            for place, rate in enumerate(rates, 1)
        ]
    if not points:
        return None
    chart = _lines(
        points, order, _shades(comparison), dark, "place", "place in the draft", "rate", "accepted", rate=True
    )
    return _styled(chart.properties(title="Acceptance by place in the draft"), dark)


def sweep(comparison: Comparison, key: str, dark: bool = False) -> Chart | None:
    """Speed-up and acceptance against a setting that several columns vary while the rest stays."""
    order, points = [], []
    summaries = {part.column: part for part in summarise(comparison) if part.category is None}
    for name, columns in _swept(comparison, key).items():
        order.append(name)
        for value, column in columns:
            part = summaries[column.name]
            gain = part.speedup.median if part.speedup else None
            points.append({"label": name, "value": value, "speedup": gain, "rate": part.acceptance_rate})
    if not points:
        return None
    shades = dict(zip(order, itertools.cycle(_PALETTE[1:]), strict=False))
    panels = []
    for figure, title, form in (("speedup", "x plain", ".2f"), ("rate", "accepted", ".0%")):
        shown = [point | {"text": f"{point[figure]:{form}}"} for point in points if point[figure] is not None]
        if shown:
            panel = _lines(
                shown, order, shades, dark, "value", SWEPT[key], figure, title, rate=figure == "rate"
            )
            panels.append(panel.properties(width=_WIDTH * 0.7, title=f"{title} by {SWEPT[key]}"))
    return _styled(alt.hconcat(*panels), dark) if panels else None


def _swept(comparison: Comparison, key: str) -> dict[str, list[tuple[float, Column]]]:
    """The columns that differ in ``key`` alone, smallest value first, by the name that they share."""
    groups: dict[str, list[Column]] = {}
    for column in comparison.columns:
        if column.mode is not Mode.PLAIN:
            shared = {name: value for name, value in column.settings().items() if name != key}
            groups.setdefault(repr(shared), []).append(column)
    found = {}
    for columns in groups.values():
        values = {column.settings()[key] for column in columns}
        if len(values) > 1:
            first = columns[0]
            name = first.name.removesuffix(f" {key}={first.settings()[key]}")
            found[name] = sorted(((column.settings()[key], column) for column in columns), key=lambda p: p[0])
    return found


def _lines(
    points: Sequence[dict[str, Any]],
    order: Sequence[str],
    shades: Mapping[str, str],
    dark: bool,
    x: str,
    x_title: str,
    y: str,
    y_title: str,
    rate: bool,
) -> Any:
    axis = alt.Axis(format="%") if rate else alt.Axis()
    scale = alt.Scale(domain=[0, 1.05]) if rate else alt.Scale(zero=True)
    places = sorted({point[x] for point in points})
    base = alt.Chart(_data(points)).encode(
        x=alt.X(
            f"{x}:Q", title=x_title, axis=alt.Axis(values=places, format="~g"), scale=alt.Scale(padding=16)
        ),
        y=alt.Y(f"{y}:Q", title=y_title, axis=axis, scale=scale),
        color=alt.Color("label:N", sort=order, title=None, scale=_scale_of(order, shades)),
    )
    dashes = alt.Scale(domain=order, range=[_DASHES[place % len(_DASHES)] for place in range(len(order))])
    layers = [
        base.mark_line(strokeWidth=2).encode(
            strokeDash=alt.StrokeDash("label:N", sort=order, title=None, scale=dashes)
        ),
        base.mark_point(filled=True, size=70, opacity=1).encode(
            shape=alt.Shape("label:N", sort=order, title=None, scale=alt.Scale(domain=order))
        ),
        base.mark_text(dy=-11, fontSize=10).encode(text="text:N", color=alt.value(_ink(dark))),
    ]
    if not rate:
        level = alt.Chart(_data([{y: 1}])).mark_rule(color=_ink(dark), strokeDash=[5, 3]).encode(y=f"{y}:Q")
        layers.append(level)
    return alt.layer(*layers).properties(width=_WIDTH, height=240)


def _speeds(comparison: Comparison, column: Column) -> list[float]:
    rows = rows_of(comparison, column.name)
    return [row.stats.tokens_per_s for row in rows if row.stats and row.stats.tokens_per_s]


def _speed_bar(label: str, speeds: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(speeds)
    ends = {"min": min(speeds), "max": max(speeds)}
    return {"label": label, "speed": median, **ends, "text": f"{median:.1f}"}


def _speed_bars(bars: Sequence[dict[str, Any]], colour: str, shades: Mapping[str, str], dark: bool) -> Chart:
    order = [bar["label"] for bar in bars]
    names = list(dict.fromkeys(bar[colour] for bar in bars))
    legend = None if colour == "label" else alt.Legend()
    scale = alt.Scale(domain=[0, max(bar["max"] for bar in bars) * _ROOM])
    base = alt.Chart(_data(bars)).encode(
        y=alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labelLimit=320)),
        tooltip=["label:N", "speed:Q", "min:Q", "max:Q"],
    )
    layers = [
        base.mark_bar().encode(
            x=alt.X("speed:Q", title="tokens/s (median, slowest to fastest run)", scale=scale),
            color=alt.Color(
                f"{colour}:N", sort=names, legend=legend, scale=_scale_of(names, shades), title=None
            ),
        ),
        *_spread(base, scale, dark),
        base.mark_text(align="left", dx=6, color=_ink(dark)).encode(
            x=alt.X("max:Q", scale=scale), text="text:N"
        ),
    ]
    chart = alt.layer(*layers).properties(width=_WIDTH, height=_BAR * 1.4 * len(bars), title="Speed")
    return _styled(chart, dark)


def _spread(base: alt.Chart, scale: alt.Scale, dark: bool) -> list[alt.Chart]:
    """A line from the least to the greatest, with a rim that keeps it visible on any bar."""
    ends = {"x": alt.X("min:Q", scale=scale), "x2": "max:Q"}
    return [
        base.mark_rule(color=_paper(dark), strokeWidth=4).encode(**ends),
        base.mark_rule(color=_ink(dark), strokeWidth=1.5).encode(**ends),
    ]


def _data(rows: Iterable[dict[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


def _shades(comparison: Comparison) -> dict[str, str]:
    """A colour for each column in words, the same in every chart; grey is the baseline's."""
    words = labels(comparison)
    others = itertools.cycle(_PALETTE[1:])
    return {
        words[column.name]: _PALETTE[0] if column is comparison.baseline else next(others)
        for column in comparison.columns
    }


def _scale_of(names: Sequence[str], shades: Mapping[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=[shades[name] for name in names])


def _ink(dark: bool) -> str:
    return "#e8eaed" if dark else "#1c1f23"


def _paper(dark: bool) -> str:
    return "#15171b" if dark else "#ffffff"


def _styled(chart: Any, dark: bool) -> Chart:
    ink, grid = _ink(dark), "#3b4048" if dark else "#dfe2e6"
    styled: Chart = (
        chart.configure(background=_paper(dark), font="sans-serif", padding=12)
        .configure_axis(
            labelColor=ink, titleColor=ink, gridColor=grid, domainColor=ink, tickColor=ink, labelFontSize=12
        )
        .configure_legend(
            labelColor=ink, titleColor=ink, labelFontSize=12, labelLimit=320, orient="bottom", columns=3
        )
        .configure_title(color=ink, anchor="start", fontSize=14)
        .configure_text(fontSize=12)
        .configure_view(stroke=None)
    )
    return styled

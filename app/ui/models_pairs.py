"""Which drafts fit a target, what a pair takes of the memory, and where to find a draft."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.core.errors import HeadstartError
from app.core.settings import LoadSettings
from app.ui import memory_bar, outlook
from app.ui.figures import size
from app.ui.models_disk import Disk, title_of
from app.ui.models_library import Library

if TYPE_CHECKING:
    from app.library.catalogue import ModelFile

# What of a model's name says its size, type or training rather than its family.
NOT_FAMILY = re.compile(
    r"\d+(\.\d+)?[bm]|a\d+b|i?q\d.*|[kms]|xl|b?f16|f32|fp16|gguf|instruct|chat|it|base|\d{3,}", re.IGNORECASE
)


class Pairs:
    """Answers the script's questions about pairs."""

    def __init__(self, library: Library, disk: Disk) -> None:
        self._library = library
        self._disk = disk
        self.acts: dict[str, Callable[..., Any]] = {
            "pairs": self._pairs,
            "estimate": self._estimate,
            "outlook": self._outlook,
        }

    def _pairs(self, target: str) -> dict[str, Any]:
        file = self._disk.file(target)
        here = self._disk.sizes()
        return {
            "drafts": [
                {
                    "id": str(candidate.file.path),
                    "name": candidate.file.name,
                    "size": size(candidate.file.size_bytes),
                    "fits": candidate.fits,
                    "note": candidate.note if candidate.fits else "; ".join(candidate.reasons),
                }
                for candidate in self._library.rank_drafts(file.path)
                if candidate.file.path != file.path
            ],
            "siblings": [
                {
                    "wanted": f"{sibling.repository}:{sibling.file}",
                    "repository": sibling.repository,
                    "file": sibling.file,
                    "size": "" if sibling.size_bytes is None else size(sibling.size_bytes),
                    "seen_at": sibling.seen_at,
                    "titles": [title_of(sibling.repository, sibling.file)],
                    "here": (sibling.file.rpartition("/")[2], sibling.size_bytes) in here,
                }
                for sibling in self._library.siblings(file)
            ],
            "family": family(file),
        }

    def _estimate(self, target: str, draft: str, context: str) -> dict[str, Any]:
        try:
            n_ctx = int(context)
        except ValueError:
            raise HeadstartError("the context must be a whole number of tokens", "4096 is usual") from None
        return memory_bar.shown(
            self._library.estimate(dataclasses.replace(self._load(target, draft), n_ctx=n_ctx))
        )

    def _outlook(self, target: str, draft: str) -> dict[str, Any]:
        return outlook.shown(self._library.outlook(self._load(target, draft)))

    def _load(self, target: str, draft: str) -> LoadSettings:
        return LoadSettings(self._disk.file(target).path, self._disk.file(draft).path if draft else None)


def family(file: ModelFile) -> str:
    """Words to search the hub for smaller models of the same family."""
    name = (file.facts.name if file.facts else None) or file.name
    words = [word for word in re.split(r"[\s_:/-]+", name) if word and not NOT_FAMILY.fullmatch(word)]
    return " ".join([*words[:3], "GGUF"])

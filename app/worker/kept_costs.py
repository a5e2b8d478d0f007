"""What passes were found to cost on this machine, by model and the way it is loaded, kept in a file."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path

from app.core.costs import PassCosts
from app.worker import store

_FILE = "costs.json"
_MODELS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """What a model's passes cost, and how many times that was measured."""

    costs: PassCosts
    times: int


def name_of(path: Path, *settings: object) -> str:
    """A model on this machine, as it is loaded: all that decides how long its passes take.

    The role is one of the settings: a draft's passes are measured at other sizes than a target's.
    """
    stat = path.stat()
    facts = (path, stat.st_size, stat.st_mtime_ns, platform.node(), platform.machine(), *settings)
    return "|".join(map(str, facts))


def recall(name: str) -> Kept | None:
    """What is kept under a name."""
    kept = store.read(_FILE)
    with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
        seconds = {int(n): float(value) for n, value in kept[name]["seconds"].items()}
        return Kept(PassCosts(seconds), int(kept[name]["times"]))
    return None


def latest(path: Path, *settings: object) -> PassCosts | None:
    """The costs kept last for a model whose settings begin with these; None where it was never measured."""
    kept = store.read(_FILE)
    with contextlib.suppress(OSError):
        beginning = f"{name_of(path, *settings)}|"
        for name in reversed(kept if isinstance(kept, dict) else {}):
            if name.startswith(beginning) and (found := recall(name)):
                return found.costs
    return None


def keep(name: str, known: Kept) -> None:
    """Keep what is known by now; a folder that cannot be written only costs the next measurement."""
    kept = store.read(_FILE)
    others = kept if isinstance(kept, dict) else {}
    others.pop(name, None)
    others[name] = {"seconds": known.costs.measured(), "times": known.times}
    with contextlib.suppress(OSError):
        store.write(_FILE, dict(list(others.items())[-_MODELS_KEPT:]))

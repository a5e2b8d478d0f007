"""What passes were found to cost on this machine, by model and the way it is loaded, kept in a file."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

from app.core.costs import PassCosts
from app.worker import store

_FILE = "costs.json"
_MODELS_KEPT = 64


def name_of(path: Path, *settings: object) -> str:
    """A model on this machine, as it is loaded: all that decides how long its passes take.

    The role is one of the settings: a draft's passes are measured at other sizes than a target's.
    """
    stat = path.stat()
    facts = (path, stat.st_size, stat.st_mtime_ns, platform.node(), platform.machine(), *settings)
    return "|".join(map(str, facts))


def recall(name: str) -> PassCosts | None:
    """The costs kept under a name."""
    kept = store.read(_FILE)
    with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
        return PassCosts({int(n): float(seconds) for n, seconds in kept[name].items()})
    return None


def latest(path: Path, *settings: object) -> PassCosts | None:
    """The costs kept last for a model whose settings begin with these; None where it was never measured."""
    kept = store.read(_FILE)
    with contextlib.suppress(OSError):
        beginning = f"{name_of(path, *settings)}|"
        for name in reversed(kept if isinstance(kept, dict) else {}):
            if name.startswith(beginning) and (costs := recall(name)):
                return costs
    return None


def keep(name: str, known: PassCosts) -> None:
    """Keep what is known by now; a folder that cannot be written only costs the next measurement."""
    kept = store.read(_FILE)
    others = kept if isinstance(kept, dict) else {}
    others.pop(name, None)
    others[name] = known.measured()
    with contextlib.suppress(OSError):
        store.write(_FILE, dict(list(others.items())[-_MODELS_KEPT:]))

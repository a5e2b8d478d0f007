"""The pinned requirements, as the set-up takes them apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from app.core.paths import PROJECT
from app.core.pins import pinned


def pins(group: str = "dependencies") -> list[str]:
    """The pinned requirements of a list in pyproject.toml."""
    return pinned((PROJECT / "pyproject.toml").read_text("utf-8"), group)


def llama_pin() -> str:
    """The requirement of llama-cpp-python, which is installed in a way of its own."""
    return next(pin for pin in pins() if pin.startswith("llama-cpp-python=="))


def package_pins() -> list[str]:
    """The other requirements."""
    return [pin for pin in pins() if pin != llama_pin()]


def digest(requirements: Sequence[str]) -> str:
    """A short name for a list, the same at every start."""
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:16]

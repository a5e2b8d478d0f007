"""The memory that a pair would take, in the words and shares of the bar."""

from __future__ import annotations

from typing import Any

from app.core.memory import RAM, DeviceNeed, MemoryEstimate, warning
from app.ui.figures import size

# Each with what it means, in the order of the bar.
PARTS = {
    "weights": ("Weights", "as in the file"),
    "repacked": ("Repacked", "copies of weights, laid out for this processor"),
    "cache": ("Context", "what the models remember of it"),
    "compute": ("Buffers", "for one pass"),
}
TIGHT = "Tight: it fits once the system has dropped the file's own copy of what is repacked."


def shown(found: MemoryEstimate) -> dict[str, Any]:
    """The bars of the devices in use, and a sentence where there is something to say."""
    words = warning(found) or (TIGHT if found.is_tight else "")
    return {
        "bars": [_bar(found, device) for device in found.devices],
        "words": words[:1].upper() + words[1:],
        "fits": found.fits,
    }


def _bar(found: MemoryEstimate, device: DeviceNeed) -> dict[str, Any]:
    """Shares are of whatever is larger, the need or what is free, in percent."""
    scale = max(device.need, device.free, 1)
    parts = []
    for what, (name, meaning) in PARTS.items():
        by_role = {
            part.role: part.bytes
            for part in found.parts
            if part.what == what and part.device == device.device and part.bytes
        }
        if by_role:
            sizes = " + ".join(f"{size(n_bytes)} {role}" for role, n_bytes in by_role.items())
            parts.append([what, 100 * sum(by_role.values()) / scale, name, meaning, sizes])
    return {
        "name": "Memory" if device.device == RAM else device.device,
        "words": f"{device.need / 1e9:.1f} of {size(device.free)} free",
        "over": device.need > device.free,
        "free": 100 * device.free / scale,
        "parts": parts,
    }

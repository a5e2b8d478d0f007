"""The exact versions in pyproject.toml, readable without a TOML reader, which Python 3.10 lacks."""

from __future__ import annotations

import re


def pinned(pyproject: str, group: str = "dependencies") -> list[str]:
    """The requirements of a list, one a line, in the text of a pyproject.toml.

    Raises KeyError for a group that is not there.
    """
    found = re.search(rf"^{re.escape(group)} = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    if not found:
        raise KeyError(group)
    return re.findall(r'^\s*"([^"]+)"', found[1], re.MULTILINE)

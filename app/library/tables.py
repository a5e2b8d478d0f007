"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.text import harmless


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns, the first row being their heads."""
    # A file may be named anything, with line breaks and control characters in it too.
    rows = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

"""The one exception that people are meant to read."""

from __future__ import annotations


class HeadstartError(Exception):
    """A failure with a remedy, shown as one line and never as a traceback.

    Args:
        what: what failed and why, without a full stop at the end.
        remedy: what the person can do about it, or an empty string.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class UsageError(HeadstartError):
    """A wrong argument; the command line answers it with exit status 2."""


class Cancelled(Exception):
    """The person stopped the work; the caches are left usable."""

"""From token bytes to text: whole characters only, and nothing that may begin a stop string."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Sequence


class OutputText:
    """The text of an answer as its tokens arrive.

    A token's text is settled once no later token can change it: its last character is whole, and it does
    not belong to what may yet become a stop string. A character belongs to the token that completes it.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting: list[str] = []  # texts of the tokens that are not settled, oldest first
        self._owner = 0  # place in _waiting of the last token that brought bytes
        self._ready: list[str] = []

    def push(self, piece: bytes) -> bool:
        """Add one token's bytes; True when it completes a stop string, which ends the answer."""
        if piece:
            self._owner = len(self._waiting)
        self._waiting.append(self._decoder.decode(piece))
        unsettled = "".join(self._waiting)
        # The first to be complete counts, however the text is split into tokens; of several, the longest.
        found = [(place + len(stop), place) for stop in self._stop if (place := unsettled.find(stop)) >= 0]
        if found:
            self._cut(min(found)[1])
            return True
        self._settle(len(unsettled) - self._possible_stop(unsettled))
        return False

    def finish(self) -> None:
        """The answer is over: what waits is settled, a half character becomes U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._waiting[self._owner] += rest
        self._ready += self._waiting
        self._waiting = []

    def take_settled(self) -> list[str]:
        """The texts of the tokens settled since the last call, in order."""
        ready, self._ready = self._ready, []
        return ready

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=0)
        for length in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0

    def _settle(self, sure: int) -> None:
        half_character = bool(self._decoder.getstate()[0])
        settled = 0
        for place, text in enumerate(self._waiting):
            if len(text) > sure or (half_character and place >= self._owner):
                break
            sure -= len(text)
            settled += 1
        self._ready += self._waiting[:settled]
        del self._waiting[:settled]
        self._owner = max(self._owner - settled, 0)

    def _cut(self, length: int) -> None:
        self._decoder.reset()
        for text in self._waiting:
            self._ready.append(text[:length])
            length = max(length - len(text), 0)
        self._waiting = []


def harmless(text: str) -> str:
    """Text that cannot steer a terminal: control characters but newline and tab become U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)

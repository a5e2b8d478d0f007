"""One answer as the string that the browser follows: append-only, one JSON array a line.

The first line names the stream and how many turns before it stay on the screen; whenever it differs from
what the browser has seen, the browser starts over there. Records, by their first element:

    keep       turns that stay, name of this stream
    turn       the person's question
    status     words, fraction from 0 to 1 or null; replaces the status before it
    left_out   how many of the oldest turns did not fit the context
    a c b t x d  a token: text, round, position, source, target_prob, draft_prob
    why        round, why Auto drafted what it did
    think      index of the first output token of the thinking part
    answer     index of the first output token after it
    failed     words, log
    end        finish reason, summary, note
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Any

from app.core.tokens import DraftSource, TokenEvent, TokenKind

KIND_CODES = {
    TokenKind.ACCEPTED: "a",
    TokenKind.RECOVERED: "c",
    TokenKind.BONUS: "b",
    TokenKind.TARGET: "t",
    TokenKind.REJECTED: "x",
    TokenKind.DISCARDED: "d",
}
SOURCE_CODES = {DraftSource.MODEL: "m", DraftSource.LOOKUP: "l", None: None}


def record(*fields: Any) -> str:
    """One line. Whatever a text holds, escapes keep it on its line, within ASCII, and free of any tag."""
    return json.dumps(fields, separators=(",", ":")).replace("<", "\\u003c") + "\n"


def token_record(token: TokenEvent) -> str:
    """One token's line; four digits are enough of a probability."""
    return record(
        KIND_CODES[token.kind],
        token.text,
        token.round,
        token.position,
        SOURCE_CODES[token.source],
        _rounded(token.target_prob),
        _rounded(token.draft_prob),
    )


def head(keep: int) -> str:
    """The first line of a new stream."""
    return record("keep", keep, secrets.token_hex(4))


def whole(turns: Iterable[Iterable[str]]) -> str:
    """A whole conversation as one stream."""
    return head(0) + "".join(line for lines in turns for line in lines)


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else float(f"{probability:.4g}")

"""What the child tells its parent about one run, in the order it happens."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.auto import Choice
from app.core.stats import Stats
from app.core.tokens import TokenEvent


@dataclass(frozen=True, slots=True)
class Waiting:
    """Other runs go first. Sent by the client itself, again whenever the number changes."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Loading:
    """A model is being loaded; ``role`` is ``target`` or ``draft``, ``fraction`` goes from 0 to 1."""

    role: str
    name: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Measuring:
    """Auto runs a model for the first time here: what its passes cost is measured, for some seconds."""

    name: str


@dataclass(frozen=True, slots=True)
class Prefilling:
    """Prompt tokens processed so far, over both models; cached ones are not counted."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is tokenised; prefill begins.

    ``turns_left_out``: how many of the oldest turns did not fit the context. ``opens_thinking``: the
    template itself opened the thinking part, so the answer starts inside it.
    """

    prompt_ids: tuple[int, ...]
    cached_tokens: int
    turns_left_out: int
    opens_thinking: bool


@dataclass(frozen=True, slots=True)
class RoundDone:
    """Tokens whose text is settled, in the order accepted, rejected, discarded, the target's own.

    ``t``: seconds since the run started. ``plain_tokens_per_s``: the estimate of plain decoding's speed
    on this machine, or None while there is none. ``choice``: why auto drafted what it did.
    """

    round: int
    tokens: tuple[TokenEvent, ...]
    stats: Stats
    t: float
    plain_tokens_per_s: float | None
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run ended as it should, or was cancelled; ``text`` is the joined text of the output tokens."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish_reason: str  # stop, length, context, cancelled
    stats: Stats
    plain_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The run could not go on. ``log_tail`` has llama.cpp's last lines where the child died."""

    what: str
    remedy: str
    child_died: bool = False
    log_tail: str = ""
    usage: bool = False  # a wrong argument rather than a failure


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a Scoring: the target's two largest logits after penalties and their ids."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]


Last = Finished | Failed | Scored
Message = Waiting | Loading | Measuring | Prefilling | Started | RoundDone | Last

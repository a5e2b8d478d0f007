"""What a person can set, with the command line's defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from app.core.errors import UsageError

# Rows of logits a context keeps: the longest draft of any mode and the token before it. llama.cpp
# fixes it when the context is made and ends the process when a batch asks for more.
MAX_DRAFT = 31
_MAX_THREADS = 512  # llama.cpp ends the process on more
_MAX_BATCH = 1 << 16
_MAX_INT = (1 << 31) - 1  # a larger number would silently become another one on its way to llama.cpp
KV_TYPES = ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


class Mode(str, Enum):
    """How the next tokens are proposed."""

    PLAIN = "plain"
    DRAFT = "draft"
    LOOKUP = "lookup"
    AUTO = "auto"


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise UsageError(what)


def _require_within(name: str, value: float, least: float, most: float) -> None:
    _require(least <= value <= most, f"{name} {value} must lie between {least} and {most}")


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Which models the child holds, and how. A change of any field reloads what it concerns.

    ``threads`` None: the physical cores that affinity and cgroup leave. ``gpu_layers`` None: all that fit.
    """

    target: Path
    draft: Path | None = None
    n_ctx: int = 4096
    n_batch: int = 512
    threads: int | None = None
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    draft_cache_type_k: str = "f16"
    draft_cache_type_v: str = "f16"

    def __post_init__(self) -> None:
        _require_within("context", self.n_ctx, 8, _MAX_INT)
        _require_within("batch", self.n_batch, 1, _MAX_BATCH)
        if self.threads is not None:
            _require_within("threads", self.threads, 1, _MAX_THREADS)
        for name in ("gpu_layers", "draft_gpu_layers"):
            layers = getattr(self, name)
            if layers is not None:
                _require_within(name, layers, 0, _MAX_INT)
        for name in ("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"):
            kind = getattr(self, name)
            _require(kind in KV_TYPES, f"{name} '{kind}' is unknown: choose one of {', '.join(KV_TYPES)}")


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a token is drawn from the logits. Temperature 0 is the largest logit after penalties."""

    temperature: float = 0.0
    top_k: int = 40  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens that the penalties look back on; 0: none, -1: the whole context
    seed: int = 0

    def __post_init__(self) -> None:
        _require_within("temperature", self.temperature, 0, 100)
        _require(self.top_k >= 0, f"top_k {self.top_k} must not be negative (0 turns it off)")
        _require(0 < self.top_p <= 1, f"top_p {self.top_p} must lie above 0 and at most at 1")
        _require(0 <= self.min_p < 1, f"min_p {self.min_p} must lie between 0 and below 1")
        _require(
            0 < self.repeat_penalty <= 10,
            f"repeat_penalty {self.repeat_penalty} must lie above 0, at most 10",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require_within(name, getattr(self, name), -10, 10)
        _require(self.repeat_last_n >= -1, f"repeat_last_n {self.repeat_last_n} must be -1 or more")
        _require(self.seed >= 0, f"seed {self.seed} must not be negative")

    @property
    def has_penalties(self) -> bool:
        """Whether the penalties change any logit at all."""
        neutral = self.repeat_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral and self.repeat_last_n != 0


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Who proposes, and how much. The n-gram bounds are those of prompt lookup; auto sets all this itself."""

    mode: Mode = Mode.PLAIN
    n_draft: int = 4
    p_min: float = 0.0
    ngram_min: int = 4
    ngram_max: int = 6

    def __post_init__(self) -> None:
        _require_within("n_draft", self.n_draft, 0, MAX_DRAFT)
        _require_within("p_min", self.p_min, 0, 1)
        _require(
            1 <= self.ngram_min <= self.ngram_max <= 16,
            f"ngram_min {self.ngram_min} and ngram_max {self.ngram_max} must satisfy 1 <= min <= max <= 16",
        )


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn: role is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to make: a conversation ending in a user's turn, or a raw prompt.

    With ``raw`` the only message's content is the prompt itself: no chat template, special tokens parsed.
    With ``fresh`` nothing that the caches hold is reused.
    """

    messages: tuple[ChatMessage, ...]
    raw: bool = False
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    fresh: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, f"max_tokens {self.max_tokens} must be at least 1")
        _require(all(self.stop), "a stop string must not be empty")


@dataclass(frozen=True, slots=True)
class Scoring:
    """A question to the target alone: what does it rank first after ``prompt_ids + output_ids``?

    The output ids are decoded one a pass from an empty cache, as plain decoding would.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    sampling: SamplingSettings  # its penalties apply

    def __post_init__(self) -> None:
        _require(bool(self.prompt_ids), "the prompt is empty; there is nothing to score")

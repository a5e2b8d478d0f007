"""Answers in this process, as the child makes them: real models, both caches kept from one to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.backend.chat import ChatFormat
from app.backend.context import Context
from app.backend.llama import CancelFlag, never_cancelled
from app.backend.model import Model
from app.core.acceptance import Record
from app.core.conversation import fit
from app.core.costs import Costs, PassCosts
from app.core.sampling import penalise
from app.core.settings import ChatMessage, Mode, Request, SamplingSettings, Scoring, SpeculationSettings
from app.core.stats import Stats
from app.core.tokens import Round, TokenEvent
from app.engine.generate import Answer, Known, Vocabulary
from app.engine.score import top_two

Conversation = Sequence[ChatMessage]


@dataclass(frozen=True)
class Outcome:
    """One finished answer."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish_reason: str
    rounds: tuple[Round, ...]
    tokens: tuple[TokenEvent, ...]
    stats: Stats
    turns_left_out: int


def user(text: str) -> tuple[ChatMessage, ...]:
    """A conversation of one question."""
    return (ChatMessage("user", text),)


class Session:
    """A target, perhaps a draft, and their caches."""

    def __init__(
        self,
        target: Path,
        draft: Path | None = None,
        *,
        n_ctx: int = 512,
        draft_n_ctx: int | None = None,
        n_batch: int = 512,
        threads: int = 1,
        cancel: CancelFlag | None = None,
        cache_type: str = "f16",
    ) -> None:
        cancel = cancel or never_cancelled()
        self.model = Model(target)
        self.context = Context(self.model, n_ctx, n_batch, threads, cancel, cache_type, cache_type)
        self.format = ChatFormat(self.model)
        self.draft_model = Model(draft) if draft else None
        self.draft_context = (
            Context(self.draft_model, draft_n_ctx or n_ctx, n_batch, threads, cancel, cache_type, cache_type)
            if self.draft_model
            else None
        )

    def close(self) -> None:
        """Free everything."""
        for context in (self.context, self.draft_context):
            if context:
                context.close()
        for model in (self.model, self.draft_model):
            if model:
                model.close()

    def forget(self) -> None:
        """Empty both caches, as a fresh session has them."""
        self.context.rewind(0)
        if self.draft_context:
            self.draft_context.rewind(0)

    def ask(
        self,
        prompt: str | Conversation | Sequence[int],
        mode: str = "plain",
        *,
        max_tokens: int = 32,
        stop: Sequence[str] = (),
        on_prefill: Callable[[int, int], None] = lambda done, total: None,
        is_end: Callable[[int], bool] | None = None,
        n_draft: int = 4,
        p_min: float = 0.0,
        ngram_min: int = 2,
        ngram_max: int = 4,
        **sampling: float,
    ) -> Outcome:
        """An answer to a raw text, a conversation, or ids."""
        request = Request(
            messages=(),
            max_tokens=max_tokens,
            stop=tuple(stop),
            sampling=SamplingSettings(**sampling),  # type: ignore[arg-type]
            speculation=SpeculationSettings(Mode(mode), n_draft, p_min, ngram_min, ngram_max),
        )
        left_out = 0
        if isinstance(prompt, str):
            ids = self.format.raw_ids(prompt)
        elif prompt and isinstance(prompt[0], ChatMessage):
            ids, left_out = fit(prompt, self.format.prompt_ids, self.context.n_ctx, max_tokens)  # type: ignore[arg-type]
        else:
            ids = list(prompt)  # type: ignore[arg-type]
        widths = [model.n_vocab for model in (self.model, self.draft_model) if model]
        vocabulary = Vocabulary(self.model.piece, is_end or self.model.is_end, min(widths))
        # Costs at which auto drafts whatever it can.
        known = Known(Costs(PassCosts({1: 1.0, 32: 2.0}), PassCosts({1: 0.1})), Record())
        answer = Answer(self.context, self.draft_context, vocabulary, ids, request, time.perf_counter, known)
        settled = list(answer.settled_rounds(on_prefill))
        self.check_caches((*answer.prompt_ids, *answer.output_ids))
        return Outcome(
            answer.prompt_ids,
            tuple(answer.output_ids),
            answer.text,
            answer.finish_reason,
            tuple(one.round for one in settled),
            tuple(event for one in settled for event in one.tokens),
            answer.stats,
            left_out,
        )

    def check_caches(self, committed: Sequence[int]) -> None:
        """Both caches hold a prefix of what is committed, and lack at least its last id."""
        for context in (self.context, self.draft_context):
            if context and context.ids != list(committed[: len(context.ids)]):
                # A draft that this mode did not use may still hold an earlier conversation.
                assert context is self.draft_context
        assert len(self.context.ids) < len(committed)

    def score(self, ids: Sequence[int], given: int, **sampling: float) -> list[np.ndarray]:
        """The logits, after penalties, from which each of ``ids[given:]`` is chosen, a token at a time."""
        settings = SamplingSettings(**sampling)  # type: ignore[arg-type]
        self.context.rewind(0)
        self.context.extend(ids[: given - 1], lambda done: None)
        rows = []
        for place in range(given, len(ids)):
            logits = self.context.decode([ids[place - 1]], 1)[0].copy()
            rows.append(penalise(logits, settings, ids[:place]))
        return rows


def near_tie_gap(session: Session, plain: Outcome, other: Outcome, **sampling: float) -> float:
    """The gap of logits at the first difference: 0 where there is none.

    Fails where the two tokens are not the top two of the pass over single tokens: that is no near-tie.
    """
    assert plain.prompt_ids == other.prompt_ids
    pairs = list(zip(plain.output_ids, other.output_ids, strict=False))
    place = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if place is None:
        assert len(plain.output_ids) == len(other.output_ids)
        return 0.0
    scoring = Scoring(plain.prompt_ids, plain.output_ids[:place], SamplingSettings(**sampling))  # type: ignore[arg-type]
    ids, logits = top_two(session.context, scoring)
    assert {plain.output_ids[place], other.output_ids[place]} == set(ids), f"at token {place}"
    return logits[0] - logits[1]

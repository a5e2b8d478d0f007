"""One answer from prompt ids: prefill with what both caches already hold, then rounds, then text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.core.acceptance import Record
from app.core.auto import Choice, Policy
from app.core.costs import Costs
from app.core.errors import Cancelled, UsageError
from app.core.settings import MAX_DRAFT, Mode, Request
from app.core.stats import Stats, StatsRecorder
from app.core.text import OutputText
from app.core.tokens import Round, TokenEvent, TokenKind
from app.engine.drafters import (
    AtLeast,
    AutoDrafter,
    LookupDrafter,
    ModelDrafter,
    NoDrafter,
    StoppingRule,
    reusable,
)
from app.engine.protocols import Decoder, Drafter
from app.engine.rounds import rounds


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the engine must know of the target's ids."""

    piece: Callable[[int], bytes]  # an id's bytes, empty for control tokens
    is_end: Callable[[int], bool]  # whether an id ends generation
    n_shared: int  # ids below are known to both models


@dataclass(frozen=True, slots=True)
class Known:
    """What auto goes by: the costs of this pair's passes, and its acceptance so far. Both learn on."""

    costs: Costs
    record: Record


@dataclass(frozen=True, slots=True)
class Settled:
    """A round whose tokens' texts no later token can change; ``t`` in seconds since the start.

    ``choice``: why auto drafted what it did; None in the other modes.
    """

    round: Round
    choice: Choice | None
    tokens: tuple[TokenEvent, ...]
    stats: Stats
    t: float


class Answer:
    """An answer in the making: iterate ``settled_rounds`` once, then read the rest.

    ``finish_reason`` is ``stop``, ``length``, ``context`` or ``cancelled``.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder | None,
        vocabulary: Vocabulary,
        prompt_ids: Sequence[int],
        request: Request,
        clock: Callable[[], float],
        known: Known | None = None,
    ) -> None:
        if len(prompt_ids) > target.n_ctx:
            raise UsageError(
                f"the prompt has {len(prompt_ids)} tokens and the context holds {target.n_ctx}; "
                "shorten the prompt or raise the context"
            )
        if not prompt_ids:
            raise UsageError("the prompt is empty; write something to answer")
        outside = next((token for token in prompt_ids if not 0 <= token < target.n_vocab), None)
        if outside is not None:
            raise UsageError(f"the prompt has token {outside}, and the model knows {target.n_vocab} tokens")
        self.prompt_ids = tuple(prompt_ids)
        self.output_ids: list[int] = []
        self.finish_reason = "cancelled"
        self._target, self._draft = target, draft
        self._vocabulary = vocabulary
        self._request = request
        self._known = known
        self._clock = clock
        self._text = OutputText(request.stop)
        self._texts: list[str] = []
        self._released = 0  # output tokens already yielded
        self._stopped = False
        if request.fresh:
            for decoder in filter(None, (target, draft)):
                decoder.rewind(0)
        self.cached_tokens = reusable(target, prompt_ids[:-1])
        self._stats = StatsRecorder(clock, len(prompt_ids), self.cached_tokens, clock())

    @property
    def text(self) -> str:
        """The settled text."""
        return "".join(self._texts)

    @property
    def stats(self) -> Stats:
        """The figures so far."""
        return self._stats.snapshot()

    def settled_rounds(self, on_prefill: Callable[[int, int], None]) -> Iterator[Settled]:
        """Prefill, decode, and yield each round once its text is settled.

        ``on_prefill`` is told the prompt tokens done and to do, over both models. A Cancelled from a
        decoder ends the iteration with the finish reason ``cancelled``; both caches stay usable.
        """
        speculation = self._request.speculation
        rng = np.random.default_rng(self._request.sampling.seed)
        drafter = self._make_drafter(rng)
        committed = list(self.prompt_ids)
        waiting: deque[tuple[Round, Choice | None]] = deque()
        auto = drafter if isinstance(drafter, AutoDrafter) else None
        try:
            self._prefill(drafter, on_prefill)
            for round_ in rounds(
                self._target,
                drafter,
                committed,
                sampling=self._request.sampling,
                n_draft=MAX_DRAFT if auto else speculation.n_draft,
                max_tokens=self._request.max_tokens,
                rng=rng,
                ends=self._ends,
            ):
                self.output_ids += round_.output
                self._stats.observe(round_)
                self._texts += self._text.take_settled()
                if auto:
                    auto.learn(round_)
                waiting.append((round_, auto.choice if auto else None))
                yield from self._release(waiting)
            self.finish_reason = self._reason()
        except Cancelled:
            self.finish_reason = "cancelled"
        self._text.finish()
        self._texts += self._text.take_settled()
        yield from self._release(waiting)

    def _make_drafter(self, rng: np.random.Generator) -> Drafter:
        speculation = self._request.speculation
        if speculation.mode is Mode.LOOKUP:
            return LookupDrafter(speculation.ngram_min, speculation.ngram_max, self._vocabulary.is_end)
        if speculation.mode is Mode.DRAFT:
            if self._draft is None:
                raise UsageError("mode draft needs a draft model; name one with --draft")
            return self._model_drafter(self._draft, AtLeast(speculation.p_min), rng)
        if speculation.mode is Mode.AUTO:
            assert self._known is not None, "auto needs the costs"
            policy = Policy(self._known.costs, self._known.record, self._request.max_tokens)
            model = self._model_drafter(self._draft, policy, rng) if self._draft else None
            return AutoDrafter(policy, model, self._vocabulary.is_end)
        return NoDrafter()

    def _model_drafter(
        self, decoder: Decoder, stopping: StoppingRule, rng: np.random.Generator
    ) -> ModelDrafter:
        sampling, is_end = self._request.sampling, self._vocabulary.is_end
        return ModelDrafter(decoder, self._vocabulary.n_shared, sampling, stopping, rng, is_end)

    def _prefill(self, drafter: Drafter, on_prefill: Callable[[int, int], None]) -> None:
        """Both caches get all of the prompt but its last id; what they share with it already stays.

        Auto may leave the draft model's for later, or for good.
        """
        prompt = self.prompt_ids[:-1]
        decoders = [self._target]
        if drafter.begin(self.prompt_ids) and self._draft is not None:
            decoders.append(self._draft)
        self._target.rewind(self.cached_tokens)
        unseen = [prompt[len(decoder.ids) :] for decoder in decoders]
        done, total = 0, sum(map(len, unseen))

        def count(chunk: int) -> None:
            nonlocal done
            done += chunk
            on_prefill(done, total)

        for decoder, ids in zip(decoders, unseen, strict=True):
            decoder.extend(ids, count)
        self._stats.end_prefill()

    def _ends(self, token: int) -> bool:
        """Whether this output id is the answer's last; its text is taken in either way."""
        is_end = self._vocabulary.is_end(token)
        completes_stop = self._text.push(b"" if is_end else self._vocabulary.piece(token))
        self._stopped = is_end or completes_stop
        return self._stopped

    def _reason(self) -> str:
        if self._stopped:
            return "stop"
        return "length" if len(self.output_ids) >= self._request.max_tokens else "context"

    def _release(self, waiting: deque[tuple[Round, Choice | None]]) -> Iterator[Settled]:
        """The rounds at the front whose output texts are all settled, as events."""
        while waiting and self._released + len(waiting[0][0].output) <= len(self._texts):
            round_, choice = waiting.popleft()
            texts = self._texts[self._released : self._released + len(round_.output)]
            self._released += len(texts)
            t = self._clock() - self._stats.started_at
            yield Settled(round_, choice, self._events(round_, texts), self.stats, t)

    def _events(self, round_: Round, texts: list[str]) -> tuple[TokenEvent, ...]:
        events = []
        for position, token in enumerate(round_.draft):
            if position < round_.n_accepted:
                kind, text = TokenKind.ACCEPTED, texts[position]
            else:
                rejected = position == round_.n_accepted and round_.next_kind is TokenKind.RECOVERED
                kind = TokenKind.REJECTED if rejected else TokenKind.DISCARDED
                text = self._vocabulary.piece(token).decode("utf-8", "replace")
            events.append(
                TokenEvent(
                    id=token,
                    text=text,
                    kind=kind,
                    round=round_.index,
                    position=position,
                    source=round_.sources[position],
                    target_prob=None if kind is TokenKind.DISCARDED else round_.target_probs[position],
                    draft_prob=round_.draft_probs[position],
                )
            )
        if round_.next_token is not None and round_.next_kind is not None:
            own = TokenEvent(
                round_.next_token,
                texts[-1],
                round_.next_kind,
                round_.index,
                None,
                None,
                round_.target_probs[-1],
                None,
            )
            events.append(own)
        return tuple(events)

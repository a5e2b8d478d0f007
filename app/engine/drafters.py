"""The drafters: nobody, a smaller model, a look-up in the text so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from app.core.auto import Choice, Policy
from app.core.copying import Copier, Proposal
from app.core.lookup import NgramIndex
from app.core.sampling import Draft, choose, softmax_prob
from app.core.settings import SamplingSettings
from app.core.tokens import DraftSource, Round
from app.engine.protocols import Decoder


class NoDrafter:
    """Plain decoding: every round is the target's alone."""

    seconds = 0.0

    def begin(self, prompt: Sequence[int]) -> bool:
        """Nothing to read."""
        return False

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """Nothing."""
        return Draft()

    def accept(self, committed: Sequence[int]) -> None:
        """Nothing to forget."""


class LookupDrafter:
    """Prompt lookup: proposes what followed the last time, up to an id that ends the answer."""

    seconds = 0.0

    def __init__(self, n_min: int, n_max: int, is_end: Callable[[int], bool]) -> None:
        self._index = NgramIndex(n_min, n_max)
        self._is_end = is_end

    def begin(self, prompt: Sequence[int]) -> bool:
        """The prompt is indexed with the first proposal."""
        return False

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """The continuation of the longest suffix that occurred before."""
        self._index.extend(committed)
        ids = _up_to_end(self._index.continuation(committed, n_max), self._is_end)
        nothing = (None,) * len(ids)
        return Draft(ids, (DraftSource.LOOKUP,) * len(ids), nothing, nothing)

    def accept(self, committed: Sequence[int]) -> None:
        """Only committed ids are ever indexed."""


class StoppingRule(Protocol):
    """Decides how long a draft model goes on. It never sees a token that was drawn and not yet proposed."""

    def looks(self, n_drafted: int) -> bool:
        """Whether to compute what would follow ``n_drafted`` ids."""

    def draws(self, n_drafted: int, probability: float) -> bool:
        """Whether to draw an id, now that the largest probability is known."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Stops before an id whose most probable candidate is below ``p_min``."""

    p_min: float

    def looks(self, n_drafted: int) -> bool:
        """Always."""
        return True

    def draws(self, n_drafted: int, probability: float) -> bool:
        """While the candidate is probable enough."""
        return probability >= self.p_min


class ModelDrafter:
    """A draft model. Its cache is a prefix of the committed ids; what it lacks it is fed next round.

    ``n_shared``: ids from there on belong to one of the two models alone (padding) and are never passed
    from one to the other.
    """

    def __init__(
        self,
        decoder: Decoder,
        n_shared: int,
        sampling: SamplingSettings,
        stopping: StoppingRule,
        rng: np.random.Generator,
        is_end: Callable[[int], bool],
    ) -> None:
        self._decoder = decoder
        self._n_shared = n_shared
        self._sampling = sampling
        self._stopping = stopping
        self._rng = rng
        self._is_end = is_end
        self._n_checked = 0  # committed ids that were looked at; each is, once
        self._last_foreign = -1  # place of the last of them that the draft model does not know

    @property
    def seconds(self) -> float:
        """Time the draft model has spent decoding."""
        return self._decoder.seconds

    def n_unseen(self, committed: Sequence[int]) -> int | None:
        """How many of ``committed`` the draft model has still to read; None where it cannot follow them at
        all, in its context or its vocabulary. ``committed`` must only have grown since."""
        for place in range(self._n_checked, len(committed)):
            if committed[place] >= self._n_shared:
                self._last_foreign = place
        self._n_checked = len(committed)
        n_seen = len(self._decoder.ids)
        fits = len(committed) <= self._decoder.n_ctx and self._last_foreign < n_seen
        return len(committed) - n_seen if fits else None

    def begin(self, prompt: Sequence[int]) -> bool:
        """Keep of the cache what is the prompt's; the rest of it is to be read where it can be held."""
        self._decoder.rewind(reusable(self._decoder, prompt[:-1]))
        return self.n_unseen(prompt) is not None

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """Draw up to ``n_max`` ids, as long as the stopping rule goes on."""
        return self.propose_behind(committed, Draft(), n_max)

    def propose_behind(self, committed: Sequence[int], before: Draft, n_max: int) -> Draft:
        """``before`` and up to ``n_max`` ids in all, drawn to follow ``committed`` and ``before``.

        The stopping rule decides by the largest probability, known before the draw: dropping a token for its
        own probability after the draw would change what the target ends up writing.
        """
        n_max = min(n_max, self._decoder.n_ctx - len(committed) + 1)
        is_over = bool(before.ids) and self._is_end(before.ids[-1])
        is_known = self.n_unseen(committed) is not None and all(id_ < self._n_shared for id_ in before.ids)
        if is_over or len(before.ids) >= n_max or not is_known:
            return before
        ids, probs, distributions = list(before.ids), list(before.probs), list(before.distributions)
        unseen = [*committed[len(self._decoder.ids) :], *before.ids]
        history = [*committed, *before.ids] if self._sampling.has_penalties else []
        feed = unseen[-1:]
        caught_up = False
        while len(ids) < n_max and self._stopping.looks(len(ids)):
            if not caught_up:
                self._decoder.extend(unseen[:-1], lambda done: None)
                caught_up = True
            logits = self._decoder.decode(feed, 1)[0][: self._n_shared]
            best = int(logits.argmax())
            best_prob = softmax_prob(logits, best)
            if not self._stopping.draws(len(ids), best_prob):
                break
            token, distribution = choose(logits, self._sampling, history, self._rng)
            ids.append(token)
            probs.append(best_prob * math.exp(float(logits[token] - logits[best])))
            distributions.append(distribution)
            if self._is_end(token):
                break
            feed = [token]
            if self._sampling.has_penalties:
                history.append(token)
        sources = before.sources + (DraftSource.MODEL,) * (len(ids) - len(before.ids))
        return Draft(tuple(ids), sources, tuple(probs), tuple(distributions))

    def accept(self, committed: Sequence[int]) -> None:
        """Drop the cache's tail that was not kept."""
        self._decoder.rewind(len(committed) - 1)


class AutoDrafter:
    """Looks up, drafts with a model, or both, or neither: what ``policy`` expects to pay most in each round.

    ``model``'s stopping rule is the policy; None without a draft model.
    """

    def __init__(self, policy: Policy, model: ModelDrafter | None, is_end: Callable[[int], bool]) -> None:
        self._policy, self._model, self._is_end = policy, model, is_end
        self._copier = Copier()
        self._n_followed = 0
        self._to_read, self._read_from = 0, 0.0  # ids of the prompt, and the draft model's clock before them
        self.choice: Choice | None = None

    @property
    def seconds(self) -> float:
        """Time the draft model has spent decoding."""
        return self._model.seconds if self._model else 0.0

    def begin(self, prompt: Sequence[int]) -> bool:
        """Whether the draft model should read the prompt at once: only if that is expected to pay."""
        if not self._model or not self._model.begin(prompt):
            return False
        self._to_read, self._read_from = self._model.n_unseen(prompt) or 0, self._model.seconds
        return self._policy.reads_prompt(len(prompt), self._to_read)

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """What the policy chooses; the draft model then goes on while it pays."""
        self._follow(committed)
        proposal = self._copier.propose(n_max)
        ids = _up_to_end(proposal.ids, self._is_end)
        proposal = Proposal(ids, proposal.evidence[: len(ids)])
        unseen = self._model.n_unseen(committed) if self._model else None
        self.choice = choice = self._policy.choose(proposal, len(committed) - 1, unseen, n_max)
        looked_up = proposal.ids[: choice.looked_up]
        nothing = (None,) * len(looked_up)
        draft = Draft(looked_up, (DraftSource.LOOKUP,) * len(looked_up), nothing, nothing)
        if self._model and choice.source in ("model", "both"):
            draft = self._model.propose_behind(committed, draft, n_max)
        return draft

    def accept(self, committed: Sequence[int]) -> None:
        """Drop what the draft model's cache holds of what was not kept."""
        if self._model:
            self._model.accept(committed)

    def learn(self, round_: Round) -> None:
        """What became of the draft, and what it took."""
        self._policy.learn(round_)

    def _follow(self, committed: Sequence[int]) -> None:
        """Take in the ids since the last time, and whether each would have been looked up right."""
        if self._n_followed == 0:
            self._copier.read(committed)
            if self.seconds > self._read_from:
                self._policy.learn_reading(self._to_read - 1, self.seconds - self._read_from)
        else:
            for token in committed[self._n_followed :]:
                expected = self._copier.propose(1)
                if expected.ids:
                    self._policy.learn_lookup(expected.evidence[0], expected.ids[0] == token)
                self._copier.follow(token)
        self._n_followed = len(committed)


def _up_to_end(ids: tuple[int, ...], is_end: Callable[[int], bool]) -> tuple[int, ...]:
    """The ids up to the first that ends the answer: nothing is kept behind it."""
    end = next((place for place, token in enumerate(ids) if is_end(token)), len(ids))
    return ids[: end + 1]


def reusable(decoder: Decoder, ids: Sequence[int]) -> int:
    """How many of the leading ids the cache spares decoding."""
    pairs = enumerate(zip(decoder.ids, ids, strict=False))
    shared = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    return decoder.reachable(min(len(decoder.ids), len(ids)) if shared is None else shared)

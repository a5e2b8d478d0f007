"""The drafters: nobody, a smaller model, a look-up in the text so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from app.core.lookup import NgramIndex
from app.core.sampling import Distribution, Draft, choose, softmax_prob
from app.core.settings import SamplingSettings
from app.core.tokens import DraftSource
from app.engine.protocols import Decoder


class NoDrafter:
    """Plain decoding: every round is the target's alone."""

    seconds = 0.0

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """Nothing."""
        return Draft()

    def accept(self, committed: Sequence[int]) -> None:
        """Nothing to forget."""


class LookupDrafter:
    """Prompt lookup: proposes what followed the last time."""

    seconds = 0.0

    def __init__(self, n_min: int, n_max: int) -> None:
        self._index = NgramIndex(n_min, n_max)

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """The continuation of the longest suffix that occurred before."""
        self._index.extend(committed)
        ids = self._index.continuation(committed, n_max)
        nothing = (None,) * len(ids)
        return Draft(ids, (DraftSource.LOOKUP,) * len(ids), nothing, nothing)

    def accept(self, committed: Sequence[int]) -> None:
        """Only committed ids are ever indexed."""


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
        p_min: float,
        rng: np.random.Generator,
        is_end: Callable[[int], bool],
    ) -> None:
        self._decoder = decoder
        self._n_shared = n_shared
        self._sampling = sampling
        self._p_min = p_min
        self._rng = rng
        self._is_end = is_end

    @property
    def seconds(self) -> float:
        """Time the draft model has spent decoding."""
        return self._decoder.seconds

    def can_follow(self, committed: Sequence[int]) -> bool:
        """Whether the draft model can hold ``committed`` at all, in its context and its vocabulary."""
        unseen = committed[len(self._decoder.ids) :]
        return len(committed) <= self._decoder.n_ctx and all(token < self._n_shared for token in unseen)

    def propose(self, committed: Sequence[int], n_max: int) -> Draft:
        """Draw up to ``n_max`` ids; stop before one whose most probable candidate is below ``p_min``.

        Only the largest probability, known before the draw, decides whether to draw: dropping a token
        for its own probability after the draw would change what the target ends up writing.
        """
        n_max = min(n_max, self._decoder.n_ctx - len(committed) + 1)
        if n_max <= 0 or not self.can_follow(committed):
            return Draft()
        ids: list[int] = []
        probs: list[float] = []
        distributions: list[Distribution | None] = []
        unseen = committed[len(self._decoder.ids) :]
        history = list(committed) if self._sampling.has_penalties else []
        self._decoder.extend(unseen[:-1], lambda done: None)
        feed = unseen[-1:]
        for _ in range(n_max):
            logits = self._decoder.decode(feed, 1)[0][: self._n_shared]
            if self._p_min > 0 and softmax_prob(logits, int(logits.argmax())) < self._p_min:
                break
            token, distribution = choose(logits, self._sampling, history, self._rng)
            ids.append(token)
            probs.append(softmax_prob(logits, token))
            distributions.append(distribution)
            if self._is_end(token):
                break
            feed = [token]
            if self._sampling.has_penalties:
                history.append(token)
        return Draft(tuple(ids), (DraftSource.MODEL,) * len(ids), tuple(probs), tuple(distributions))

    def accept(self, committed: Sequence[int]) -> None:
        """Drop the cache's tail that was not kept."""
        self._decoder.rewind(len(committed) - 1)

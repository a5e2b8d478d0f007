"""Auto: what to draft in each round, and how much, so that the answer comes fastest.

A draft is worth its cost while the chance that all of it so far is kept, times the value of a token, exceeds
what the next token costs (optimal stopping). A token's value is the time it takes at the present speed. The
costs come from app.core.costs; the chances are learned here, from every token that is tested and, for
look-ups, from every token at all, since what would have been looked up is known without a pass.

Nothing here sees a drawn token before it decides: the chances rest on what was drawn before and on the draft
model's largest untransformed probability, so the output's distribution stays the target's.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.acceptance import Record
from app.core.copying import Proposal
from app.core.costs import Costs
from app.core.settings import MAX_DRAFT
from app.core.tokens import Round, TokenKind

# Share of its time that a look-up must bring more: the best of many estimates is too good to be true.
_RISK = 0.3
_TEXT_KEEP = 0.99  # the past's weight, a token, in how this text differs from others
_TEXT_WEIGHT = 3.0  # failed look-ups that the other texts count for
# Tokens that an answer is expected to have; one that has become longer is expected to go on for half of that.
_USUAL = 160
_MEMORY = 0.9  # the past's weight, a round, in what the draft model would save
_HOPELESS = 0.02  # a chance that ends the search for a better length
_KEPT_UP = 2  # ids that a draft model in use has still to read: the bonus token and the one before it
# Tokens before a draft model that did not pay is looked at again; each pause is twice as long.
_FIRST_PAUSE = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """What a round drafts, and why.

    ``source``: ``none``, ``lookup``, ``model`` or ``both`` (a look-up that the model continues);
    ``looked_up`` ids come first, and then the model's, as long as each pays. ``considered`` is what the
    numbers are about: the source, or the best that was refused. It was expected to bring ``gain`` tokens
    beyond the round's own for time in which plain decoding writes ``cost`` tokens.
    """

    source: str
    considered: str
    looked_up: int
    gain: float
    cost: float


@dataclass(frozen=True, slots=True)
class _Option:
    """A draft: ``gain`` tokens for ``seconds`` beyond a plain round; ``chance`` that all of it is kept."""

    name: str
    looked_up: int = 0
    gain: float = 0.0
    seconds: float = 0.0
    chance: float = 1.0
    worth: float = float("-inf")


_NOTHING = _Option("none", worth=0.0)


class Policy:
    """Decides round by round within one answer of up to ``max_tokens``, and learns into ``record``."""

    def __init__(self, costs: Costs, record: Record, max_tokens: int) -> None:
        self._costs, self._record = costs, record
        record.fade()
        self._max_tokens, self._written = max_tokens, 0
        self._pause, self._idle = _FIRST_PAUSE, 0
        self._n_past = self._n_max = self._n_unseen = 0
        self._passes = costs.target.table()
        self._step = 0.0  # seconds of the draft model's
        # Seconds that a token is worth, with the draft model and without.
        self._value = self._value_without = self._passes[1]
        self._ahead = (0.0, 0.0)  # how often the draft model will be sure enough, and right when it is
        # What the draft model would have saved, as fading sums of seconds and of tokens.
        self._saved = self._saved_over = 0.0
        # Look-ups that were wrong in this text, and as many as were to be expected.
        self._failed = self._failures = 0.0
        self._reads_again = False  # whether rejected drafts have cost the target more than their pass
        self._chances: list[float] = []  # that 1, 2, … looked-up ids are kept
        self._chance = 1.0  # that the draft so far is kept whole
        self._n_looks = 0  # of the draft model in this round
        self._drawn: list[float] = []  # its largest probability before each id that it drew

    def reads_prompt(self, n_prompt: int, n_unseen: int) -> bool:
        """Whether the draft model should read the prompt, ``n_unseen`` ids of it, before the first round."""
        self._begin(Proposal(), n_prompt, n_unseen, MAX_DRAFT)
        self._note_saving(self._by_model(_NOTHING), _NOTHING)
        return self._pays_to_read(n_unseen)

    def choose(self, proposal: Proposal, n_past: int, n_unseen: int | None, n_max: int) -> Choice:
        """What to draft in this round: at most ``n_max`` ids behind ``n_past`` others.

        ``n_unseen``: how many of these the draft model has still to read; None where there is no draft model.
        """
        self._begin(proposal, n_past, n_unseen, n_max)
        looked_up = self._by_lookup()
        options = [looked_up]
        if n_unseen is not None and self._step:
            # Reading what the draft model has missed is an investment in the rest of the answer.
            with_model = [self._by_model(_NOTHING)]
            if looked_up.worth > 0:
                with_model.append(self._by_model(looked_up))
            self._note_saving(max(with_model, key=_worth), looked_up)
            if n_unseen <= _KEPT_UP or self._pays_to_read(n_unseen):
                options += with_model
        best = max(options, key=_worth)
        seconds = best.seconds + self._reading_again(best)
        risk = _RISK if best.looked_up else 0.0
        pays = best.worth > seconds - best.seconds and best.gain * self._passes[1] > seconds * (1 + risk)
        self._chance = looked_up.chance if best.looked_up else 1.0
        return Choice(
            source=best.name if pays else "none",
            considered=best.name,
            looked_up=best.looked_up if pays else 0,
            gain=best.gain,
            cost=seconds / self._passes[1],
        )

    def looks(self, n_drafted: int) -> bool:
        """Whether the draft model should compute what it would draw after ``n_drafted`` ids."""
        return self._model_worth(n_drafted, self._chance)[0] > 0

    def draws(self, n_drafted: int, probability: float) -> bool:
        """Whether it should draw, now that its largest probability is known."""
        self._n_looks += 1
        self._record.model.see(probability)
        kept = self._chance * self._record.model.chance(probability)
        worth = kept * self._value - (self._passes[n_drafted + 2] - self._passes[n_drafted + 1])
        if worth <= 0 and worth + self._model_worth(n_drafted + 1, kept)[0] <= 0:
            return False
        self._chance = kept
        self._drawn.append(probability)
        return True

    def learn_reading(self, n_read: int, seconds: float) -> None:
        """What it took the draft model to read ``n_read`` ids in one go."""
        if n_read > MAX_DRAFT:
            size = 1 << (n_read.bit_length() - 1)  # few sizes, however long the prompts are
            self._costs.observe_draft(size, self._n_past, seconds * size / n_read)

    def learn_lookup(self, evidence: int, right: bool) -> None:
        """What would have been looked up for a token, and whether it was that token."""
        chance = self._record.lookup[evidence]
        self._failed = self._failed * _TEXT_KEEP + (not right)
        self._failures = self._failures * _TEXT_KEEP + 1 - chance()
        chance.observe(right)

    def learn(self, round_: Round) -> None:
        """What became of the draft, and what it took."""
        n_looked_up = len(round_.draft) - len(self._drawn)
        for place, probability in enumerate(self._drawn, n_looked_up):
            if place < round_.n_accepted:
                self._record.model.observe(probability, True)
            elif place == round_.n_accepted and round_.next_kind is TokenKind.RECOVERED:
                self._record.model.observe(probability, False)
        self._reads_again = self._reads_again or round_.n_again > 0
        self._costs.observe_target(round_.n_passed, self._n_past - round_.n_again, round_.verify_s)
        if self._n_looks and n_looked_up == 0:
            if self._n_unseen <= _KEPT_UP:
                steps = self._n_looks + self._n_unseen - 1
                self._costs.observe_draft(1, self._n_past, round_.draft_s / steps)
            else:
                self.learn_reading(self._n_unseen - 1, round_.draft_s - self._n_looks * self._step)
        self._written += len(round_.output)
        self._idle = 0 if self._n_looks else self._idle + len(round_.output)

    def _lookup_chances(self, proposal: Proposal) -> list[float]:
        """The chance that 1, 2, … looked-up ids are kept."""
        more_failures = (self._failed + _TEXT_WEIGHT) / (self._failures + _TEXT_WEIGHT)
        chances = []
        kept = 1.0
        for evidence in proposal.evidence[: self._n_max]:
            kept *= max(0.0, 1 - more_failures * (1 - self._record.lookup[evidence]()))
            chances.append(kept)
            if kept < _HOPELESS:
                break
        return chances

    def _begin(self, proposal: Proposal, n_past: int, n_unseen: int | None, n_max: int) -> None:
        """Note where the round stands, and what a token is worth here."""
        self._n_past, self._n_unseen, self._n_max = n_past, n_unseen or 0, n_max
        self._n_looks, self._drawn = 0, []
        self._passes = self._costs.target.table(n_past)
        draft = self._costs.draft if n_unseen is not None else None
        self._step = draft(1, n_past) if draft is not None else 0.0
        if self._idle >= self._pause:
            self._record.model.fade()
            self._pause, self._idle = 2 * self._pause, 0
        # The least time a token can be had for by what is known now: rounds like this one, again and again.
        self._value = self._passes[1]
        tokens = 1.0
        self._chances = self._lookup_chances(proposal)
        for length, chance in enumerate(self._chances, 1):
            tokens += chance
            self._value = min(self._value, self._passes[length + 1] / tokens)
        self._value_without = self._value
        if self._step:
            self._value = min(self._value, self._look_ahead())

    def _look_ahead(self) -> float:
        """Choose how sure the draft model must be for the best speed, and return that: seconds a token."""
        best = float("inf")
        for sure, right in self._record.model.thresholds():
            tokens, seconds, reached, kept = 1.0, self._passes[1], 1.0, 1.0
            for length in range(1, self._n_max + 1):
                seconds += reached * self._step
                reached *= sure
                kept *= right
                tokens += reached * kept
                seconds += reached * (self._passes[length + 1] - self._passes[length])
                if seconds / tokens < best:
                    best, self._ahead = seconds / tokens, (sure, right)
                if reached * kept < _HOPELESS:
                    break
        return best

    def _by_lookup(self) -> _Option:
        """The best length of a looked-up draft."""
        best = _Option("lookup")
        gain = 0.0
        for length, chance in enumerate(self._chances, 1):
            gain += chance
            seconds = self._passes[length + 1] - self._passes[1]
            if (worth := gain * self._value - seconds) > best.worth:
                best = _Option("lookup", length, gain, seconds, chance, worth)
        return best

    def _by_model(self, behind: _Option) -> _Option:
        """What the draft model may add to a look-up, or to nothing."""
        worth, gain, seconds = self._model_worth(behind.looked_up, behind.chance)
        if behind.looked_up and self._costs.draft is not None:
            reading = self._costs.draft(behind.looked_up, self._n_past)
            worth, seconds = worth - reading, seconds + reading
        return _Option(
            "both" if behind.looked_up else "model",
            behind.looked_up,
            behind.gain + gain,
            behind.seconds + seconds,
            behind.chance,
            behind.worth + worth,
        )

    def _model_worth(self, n_drafted: int, chance: float) -> tuple[float, float, float]:
        """What drafting on with the model is expected to be worth, in seconds, behind ``n_drafted`` ids that
        are kept with ``chance``; with the tokens it gains and the seconds it takes, at the best length."""
        sure, right = self._ahead
        best = (float("-inf"), 0.0, 0.0)
        gain = seconds = 0.0
        reached = 1.0
        for length in range(n_drafted + 1, self._n_max + 1):
            seconds += reached * self._step
            reached *= sure
            chance *= right
            gain += reached * chance
            seconds += reached * (self._passes[length + 1] - self._passes[length])
            if (worth := gain * self._value - seconds) > best[0]:
                best = (worth, gain, seconds)
            if reached * chance < _HOPELESS:
                break
        return best

    def _reading_again(self, option: _Option) -> float:
        """Seconds by which the next pass may be longer: a target with a running state reads again what it
        kept of a draft that was not kept whole."""
        if not self._reads_again:
            return 0.0
        whole = option.chance if option.name == "lookup" else self._ahead[1] ** max(1.0, option.gain)
        again = min(int(option.gain) + 1, MAX_DRAFT)
        return (1 - whole) * (self._passes[again + 1] - self._passes[1])

    def _note_saving(self, with_model: _Option, without: _Option) -> None:
        """Follow what the draft model would have saved, at the worth of a token without it."""
        saving, otherwise = (
            option.gain * self._value_without - option.seconds for option in (with_model, without)
        )
        self._saved = self._saved * _MEMORY + max(0.0, saving - max(0.0, otherwise))
        self._saved_over = self._saved_over * _MEMORY + 1 + with_model.gain

    def _pays_to_read(self, n_unseen: int) -> bool:
        """Whether the draft model will save, over the rest of the answer, what its reading costs now."""
        if self._costs.draft is None or not self._saved_over:
            return False
        ahead = min(self._max_tokens - self._written, max(_USUAL - self._written, _USUAL // 2))
        saving = self._saved / self._saved_over * ahead
        return saving * self._record.model.trust > self._costs.draft(n_unseen - 1, self._n_past)


def _worth(option: _Option) -> float:
    return option.worth

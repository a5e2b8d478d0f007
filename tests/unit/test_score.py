"""Scoring token by token, and answers from empty caches, on scripted decoders."""

from __future__ import annotations

import numpy as np
import pytest

from app.core.errors import UsageError
from app.core.sampling import penalise
from app.core.settings import Mode, Request, SamplingSettings, Scoring, SpeculationSettings
from app.engine.generate import Answer, Vocabulary
from app.engine.score import top_two
from tests.unit.test_rounds import N_VOCAB, ScriptedDecoder

PROMPT, OUTPUT = (1, 2, 3, 4), (5, 6)


@pytest.mark.parametrize("n_output", [0, 1, 2])
@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(frequency_penalty=9.0)])
def test_the_two_favourites_after_penalties(n_output: int, sampling: SamplingSettings) -> None:
    ids = [*PROMPT, *OUTPUT[:n_output]]
    row = penalise(ScriptedDecoder()._row(ids), sampling, ids)
    expected = sorted(range(N_VOCAB), key=lambda token: -row[token])[:2]
    target = ScriptedDecoder()
    target.decode([9, 9, 9], 1)  # whatever was there before does not count
    top, logits = top_two(target, Scoring(PROMPT, OUTPUT[:n_output], sampling))
    assert list(top) == expected
    assert list(logits) == [float(row[token]) for token in expected]
    assert target.ids == ids


def test_every_output_id_has_a_pass_of_its_own() -> None:
    passes = []

    class Watched(ScriptedDecoder):
        def decode(self, ids: list[int], rows: int) -> np.ndarray:
            passes.append(list(ids))
            return super().decode(ids, rows)

    top_two(Watched(), Scoring(PROMPT, OUTPUT, SamplingSettings()))
    assert passes == [[4], [5], [6]]


def test_what_is_too_long_or_empty_is_refused() -> None:
    with pytest.raises(UsageError, match="6 tokens are to be scored and the context holds 5"):
        top_two(ScriptedDecoder(n_ctx=5), Scoring(PROMPT, OUTPUT, SamplingSettings()))
    with pytest.raises(UsageError, match="the prompt is empty"):
        Scoring((), OUTPUT, SamplingSettings())


@pytest.mark.parametrize("fresh", [False, True])
def test_a_fresh_answer_reuses_nothing(fresh: bool) -> None:
    target, draft = ScriptedDecoder(), ScriptedDecoder()
    for decoder in (target, draft):
        decoder.decode([1, 2, 3], 1)
    request = Request((), max_tokens=2, speculation=SpeculationSettings(Mode.DRAFT), fresh=fresh)
    vocabulary = Vocabulary(lambda token: b"x", lambda token: False, N_VOCAB)
    answer = Answer(target, draft, vocabulary, PROMPT, request, lambda: 0.0)
    assert answer.cached_tokens == (0 if fresh else 3)
    prefilled = []
    list(answer.settled_rounds(lambda done, total: prefilled.append(total)))
    assert prefilled[-1:] == ([6] if fresh else [])

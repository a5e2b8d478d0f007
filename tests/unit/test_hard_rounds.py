"""Whole sessions of random requests on scripted decoders: whatever was asked, cut off or left before, the
answer is plain decoding's, the caches hold what they should, and the figures add up."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from test_rounds import N_VOCAB, Answering, check_answer

from app.core.settings import MAX_DRAFT, Mode
from app.engine.generate import Answer, Settled

# Characters of one to four bytes, cut anywhere; a joined emoji; a combining mark; a control token.
PIECES = (
    b"a", b"b", b"ab", b"\xc3", b"\xa9", b"\xf0\x9f\x91", b"\xa9\xe2\x80\x8d", b"\xf0", b"\x9f\x91\xa7",
    b"e\xcc", b"\x81", b"",
)  # fmt: skip
assert len(PIECES) == N_VOCAB


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    mode: Mode
    n_draft: int
    p_min: float
    stop: list[str]
    max_tokens: int
    ends_on: frozenset[int]
    fresh: bool
    cut: tuple[str, int] | None  # who is cancelled at which call of theirs, or the last round read


tokens = st.integers(0, N_VOCAB - 1)
asked = st.builds(
    Asked,
    prompt=st.lists(tokens, min_size=1, max_size=24),
    mode=st.sampled_from(list(Mode)),
    n_draft=st.sampled_from([0, 1, 2, 3, 5, 8, MAX_DRAFT]),
    p_min=st.sampled_from([0.0, 0.3, 1.0]),
    stop=st.lists(st.sampled_from(["a", "ab", "aba", "abab", "é", "\ufffd", "👩", "never"]), max_size=3),
    max_tokens=st.integers(1, 24),
    ends_on=st.frozensets(tokens, max_size=1),
    fresh=st.booleans(),
    cut=st.none() | st.tuples(st.sampled_from(["target", "draft", "reader"]), st.integers(0, 12)),
)


def start(session: Answering, one: Asked, mode: Mode) -> Answer:
    session.piece = lambda token: PIECES[token]
    session.is_end = one.ends_on.__contains__
    return session.start(
        one.prompt, mode, one.max_tokens, one.stop, one.fresh, n_draft=one.n_draft, p_min=one.p_min,
        ngram_min=1, ngram_max=3,
    )  # fmt: skip


def plain_answer(one: Asked, n_ctx: int) -> tuple[list[int], str, str]:
    session = Answering(n_ctx=n_ctx)
    answer = start(session, one, Mode.PLAIN)
    session.finish(answer)
    return answer.output_ids, answer.text, answer.finish_reason


@given(
    session_of=st.lists(asked, min_size=1, max_size=4),
    likeness=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    n_ctx=st.integers(24, 48),
    n_batch=st.sampled_from([1, 2, 5, 64]),
    continues=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_every_answer_of_a_session_is_plain_decodings(
    session_of: list[Asked], likeness: float, n_ctx: int, n_batch: int, continues: bool
) -> None:
    session = Answering(likeness, n_ctx, n_batch)
    history: list[int] = []
    for one in session_of:
        if continues and len(history) + len(one.prompt) <= n_ctx:
            one.prompt[:0] = history
        answer = start(session, one, one.mode)
        settled: list[Settled] = []
        who, when = one.cut or ("nobody", 0)
        for decoder in (session.target, session.draft):
            decoder.fail_at = None
        if who in ("target", "draft"):
            decoder = getattr(session, who)
            decoder.fail_at = decoder.calls + when
        if who == "reader":
            reading = answer.settled_rounds(lambda done, total: None)
            settled += itertools.islice(reading, when + 1)
            reading.close()
        else:
            settled = session.finish(answer)
        ids, text, reason = plain_answer(one, n_ctx)
        committed = [*one.prompt, *answer.output_ids]
        assert session.target.ids == committed[: len(session.target.ids)]
        assert len(session.target.ids) < len(committed)
        if who != "reader":
            check_answer(answer, settled)
        if answer.finish_reason != "cancelled":
            assert (answer.output_ids, answer.text, answer.finish_reason) == (ids, text, reason)
            assert session.target.ids == committed[:-1]
        else:
            assert answer.output_ids == ids[: len(answer.output_ids)]
        history = committed if len(committed) < n_ctx else []

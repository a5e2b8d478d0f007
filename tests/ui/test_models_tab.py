"""The Models tab: on a hub of the tests and tiny real models, and on a library in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from app.library import catalogue, fetch, folders, presets, removing
from app.library.downloads import DownloadState
from tests.backend.tiny_gguf import TinyModel, sentence_piece
from tests.hub_server import COMMIT, HubServer
from tests.ui.conftest import Served, Visitor
from tests.ui.fake_library import SCRIPT, FakeLibrary, model
from tests.ui.fakes import FakeClient, FakeShelf
from tests.ui.test_looks import COLOURS, contrast, rgb
from tests.ui.test_page import ask, choose, enter, finished, output

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
REPOSITORY, FILE = "someone/tiny-draft-GGUF", "tiny-draft-Q8_0.gguf"
TOKEN = "hf_aVerySecretToken"


def open_models(address: str, visitor: Visitor, **options: object) -> Page:
    page = visitor.open(address, **options)
    page.get_by_role("tab", name="Models").click()
    expect(page.locator(".hs-m-bar")).to_be_visible()
    return page


def row(page: Page, name: str) -> Locator:
    return page.locator(".hs-m-table tbody tr", has=page.get_by_text(name, exact=True))


def shown(page: Page) -> list[str]:
    return page.locator(".hs-m-table tbody tr:visible .hs-m-title").all_inner_texts()


# ---- on tiny models and the tests' hub --------------------------------------------------------------------


@dataclass
class Real:
    address: str
    folder: Path
    hub: HubServer

    def reset(self) -> None:
        """One target in the folder, one draft on the hub, nothing else."""
        for file in self.folder.rglob("*.*"):
            file.unlink()
        TinyModel(n_layer=4).write(self.folder / "target.gguf")
        self.hub.repositories.clear()
        self.hub.add(REPOSITORY, {FILE: self.draft.read_bytes()}, licence="mit", downloads=1234)
        self.hub.bytes_per_s = None
        self.hub.requests.clear()

    @property
    def draft(self) -> Path:
        file = self.folder.parent / FILE
        return file if file.exists() else TinyModel(likeness=0.9, n_layer=1).write(file)

    @property
    def arrived(self) -> Path:
        """Where the draft is once it has come."""
        return self.folder / REPOSITORY / FILE


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """The program's own library, shelf and client on a folder and a hub of the tests."""
    from app.ui import models_disk
    from app.ui.models_library import DiskLibrary
    from app.ui.page import build, serve
    from app.worker.client import WorkerClient

    place = tmp_path_factory.mktemp("place")
    folder = place / "Modelle für alle"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch, HubServer() as hub:
        for module in (catalogue, fetch, folders, removing, models_disk):
            patch.setattr(module, "models_dir", lambda: folder)
        for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE"))]:
            patch.delenv(name)
        patch.setenv("HF_ENDPOINT", hub.address)
        patch.setenv("HF_HOME", str(place / "hf"))
        patch.setenv("HEADSTART_HOME", str(place / "home"))
        client, library = WorkerClient(), DiskLibrary()
        page = build(client, library=library)
        yield Real(serve(page, None), folder, hub)
        library.close()
        client.close()
        page.server.force_exit = True
        page.close(verbose=False)


@pytest.fixture
def real(served: Real) -> Real:
    served.reset()
    return served


def find(page: Page, words: str) -> Locator:
    """The files of the only repository that the words find."""
    page.click("[data-show=find]")
    page.fill(".hs-m-words [type=search]", words)
    page.keyboard.press("Enter")
    expect(page.locator(".hs-m-found")).to_have_text("1 repository")
    page.click(".hs-m-repository summary")
    return page.locator(".hs-m-repository .hs-m-files li")


def test_from_search_to_a_pair_that_answers(real: Real, visitor: Visitor) -> None:
    real.hub.bytes_per_s = real.draft.stat().st_size // 10
    page = visitor.open(real.address)
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".hs-c-target option")).to_have_count(1)
    page.get_by_role("tab", name="Models").click()
    files = find(page, "tiny draft")
    expect(files).to_have_count(1)
    expect(files).to_contain_text("Q8_0")
    expect(files).to_contain_text("fits this machine")
    files.get_by_role("button", name=f"Download {FILE}").click()
    expect(page.locator(".hs-m-badge")).to_have_text("1")
    page.click("[data-show=queue]")
    entry = page.locator(".hs-m-entry")
    expect(entry.locator("b")).to_have_text(f"{REPOSITORY}: tiny-draft-Q8_0")
    meter = "document.querySelector('.hs-m-entry progress').value"
    page.wait_for_function(f"{meter} > 0.1")
    page.wait_for_function(f"before => {meter} > before", arg=page.evaluate(meter))
    assert page.evaluate(meter) < 1
    expect(entry.locator(".hs-m-moved")).to_contain_text("/s")
    entry.get_by_role("button", name="Cancel").click()
    expect(entry.locator(".hs-m-step")).to_have_text("Cancelled")
    expect(page.locator(".hs-m-badge")).to_be_hidden()
    assert not real.arrived.exists()

    real.hub.bytes_per_s = None
    entry.get_by_role("button", name="Retry").click()
    expect(entry.locator(".hs-m-step")).to_have_text("Done")
    assert real.arrived.read_bytes() == real.draft.read_bytes()
    expect(page.locator("#target option")).to_have_count(2)
    expect(page.locator(".hs-c-target option")).to_have_count(2)
    page.click("[data-show=find]")
    expect(page.locator(".hs-m-repository .hs-m-fetch")).to_have_text("Here")

    page.click("[data-show=disk]")
    row(page, "target").get_by_role("button", name="Drafts for it").click()
    expect(page.locator(".hs-m-target")).to_have_value(str(real.folder / "target.gguf"))
    best = page.locator(".hs-m-draft").first
    expect(best).to_contain_text("tiny-draft-Q8_0")
    expect(best.locator("input")).to_be_checked()
    expect(page.locator(".hs-m-memory")).to_contain_text("MB draft")
    page.fill(".hs-m-memory input", "1024")
    page.click(".hs-m-use")
    expect(page.locator("#draft")).to_have_value(str(real.arrived))
    expect(page.locator("#target")).to_have_value(str(real.folder / "target.gguf"))
    page.click(".hs-settings-toggle")
    page.click("#loading button")
    expect(page.locator("#n_ctx input")).to_have_value("1024")
    enter(page, "#max_tokens input", "12")
    page.keyboard.press("Escape")
    page.click("#mode label:has-text('Draft')")
    ask(page, "Hello")
    finished(page)
    assert output(page)
    expect(page.locator(".hs-summary")).to_contain_text("accepted")


def test_a_download_goes_on_when_the_page_is_reloaded(real: Real, visitor: Visitor) -> None:
    real.hub.bytes_per_s = real.draft.stat().st_size // 10
    page = open_models(real.address, visitor)
    page.click("[data-show=find]")
    page.fill(".hs-m-direct input", f"{real.hub.address}/{REPOSITORY}/resolve/main/{FILE}")
    page.click(".hs-m-direct button")
    expect(page.locator(".hs-m-entry[data-state=running]")).to_be_visible()
    page.reload()
    page.get_by_role("tab", name="Models").click()
    expect(page.locator(".hs-m-badge")).to_have_text("1")
    real.hub.bytes_per_s = None
    page.click("[data-show=queue]")
    entry = page.locator(".hs-m-entry")
    expect(entry).to_have_attribute("data-state", "running")
    expect(entry).to_have_attribute("data-state", "done")
    entry.get_by_role("button", name="Use as target").click()
    expect(page.locator("#target")).to_have_value(str(real.arrived))
    page.get_by_role("tab", name="Models").click()
    entry.get_by_role("button", name="Forget").click()
    expect(page.locator(".hs-m-queue")).to_contain_text("Nothing has been downloaded yet.")
    assert real.arrived.exists()


@pytest.fixture
def preset(real: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset of the file on the hub, "Tiny", and no other."""
    data = real.draft.read_bytes()
    tmp_path.joinpath("models.yaml").write_text(
        f"tiny-draft-Q8_0:\n  size: {len(data)}\n  sha256: {hashlib.sha256(data).hexdigest()}\n"
        f"  licence: mit\n  hub:\n    repository: {REPOSITORY}\n    revision: {COMMIT}\n    file: {FILE}\n"
    )
    tmp_path.joinpath("tiny.yaml").write_text(
        "name: tiny\ntitle: Tiny\nsummary: Small.\ntarget: tiny-draft-Q8_0\nmode: lookup\n"
        "n_draft: 4\ncontext: 512\n"
    )
    monkeypatch.setattr(presets, "presets_dir", lambda: tmp_path)


@pytest.mark.usefixtures("preset")
def test_what_generate_fetches_is_in_the_list_of_downloads(real: Real, visitor: Visitor) -> None:
    real.hub.bytes_per_s = real.draft.stat().st_size // 10
    page = visitor.open(real.address)
    choose(page, "#preset", "Tiny")
    card = page.locator(".hs-card")
    expect(card).to_contain_text("Tiny is not on this machine yet")
    card.locator(".hs-fetch").click()
    expect(card).to_contain_text(f"fetching from {REPOSITORY}")
    page.wait_for_function("document.querySelector('.hs-card progress').value > 0.1")
    page.get_by_role("tab", name="Models").click()
    expect(page.locator(".hs-m-badge")).to_have_text("1")
    page.click("[data-show=queue]")
    entry = page.locator(".hs-m-entry")
    expect(entry.locator("b")).to_have_text(f"{REPOSITORY}: tiny-draft-Q8_0")
    entry.get_by_role("button", name="Cancel").click()
    expect(entry.locator(".hs-m-step")).to_have_text("Cancelled")

    page.get_by_role("tab", name="Generate").click()
    card.locator(".hs-fetch").click()
    page.click(".hs-cancel")
    expect(card.locator(".hs-fetch")).to_be_visible()
    real.hub.bytes_per_s = None
    card.locator(".hs-fetch").click()
    expect(page.locator("#target")).to_have_value(str(real.folder / FILE))
    expect(card).to_be_hidden()
    assert (real.folder / FILE).read_bytes() == real.draft.read_bytes()
    page.get_by_role("tab", name="Models").click()
    expect(entry.locator(".hs-m-step")).to_have_text("Done")

    page.click("[data-show=disk]")  # what is removed can be had again
    row(page, "tiny-draft-Q8_0").get_by_role("button", name="Remove").click()
    page.click(".hs-m-drop")
    find(page, "tiny draft").get_by_role("button", name=f"Download {FILE}").click()
    page.click("[data-show=queue]")
    expect(entry.locator(".hs-m-step")).to_have_text("Done")
    assert (real.folder / FILE).read_bytes() == real.draft.read_bytes()
    expect(page.locator("#target option")).to_have_count(2)
    page.get_by_role("tab", name="Generate").click()
    choose(page, "#preset", "Tiny")
    expect(page.locator("#target")).to_have_value(str(real.folder / FILE))
    page.get_by_role("tab", name="Models").click()
    entry.get_by_role("button", name="Forget").click()
    expect(entry).to_have_count(0)


def test_filters_of_the_search(real: Real, visitor: Visitor) -> None:
    real.hub.repositories[REPOSITORY].parameters = 3_000_000_000
    real.hub.add("b/tiny-GGUF", {FILE: b"x"}, licence="apache-2.0", gated="auto", parameters=500_000_000)
    page = open_models(real.address, visitor)
    page.click("[data-show=find]")
    page.select_option("[name=licence]", "mit")  # nothing has been searched for yet
    page.fill(".hs-m-words [type=search]", "tiny")
    page.keyboard.press("Enter")
    found = page.locator(".hs-m-repositories b")
    expect(found).to_have_text([REPOSITORY])
    page.select_option("[name=licence]", "")
    expect(found).to_have_text([REPOSITORY, "b/tiny-GGUF"])
    page.select_option("[name=size]", "1B")
    expect(found).to_have_text(["b/tiny-GGUF"])
    page.select_option("[name=size]", "fits")
    expect(found).to_have_text([REPOSITORY, "b/tiny-GGUF"])
    page.get_by_label("without gated ones").check()
    expect(found).to_have_text([REPOSITORY])
    page.select_option("[name=size]", "1B")
    expect(page.locator(".hs-m-found")).to_contain_text("Fewer words or filters find more")


def test_a_refused_download_says_why(real: Real, visitor: Visitor) -> None:
    real.hub.add(REPOSITORY, {FILE: b"x"}, gated="manual")
    page = open_models(real.address, visitor)
    find(page, "tiny draft").locator("button").click()
    expect(page.locator(".hs-m-repository .hs-m-kind")).to_have_text("gated")
    page.click("[data-show=queue]")
    entry = page.locator(".hs-m-entry")
    expect(entry.locator(".hs-m-reason")).to_contain_text(f"{real.hub.address}/{REPOSITORY}")
    entry.get_by_role("button", name="Forget").click()
    expect(page.locator(".hs-m-entry")).to_have_count(0)
    page.click("[data-show=find]")
    page.fill(".hs-m-direct input", "no such preset")
    page.click(".hs-m-direct button")
    expect(page.locator(".hs-m-problem")).to_contain_text("no preset or model 'no such preset'")
    expect(page.locator(".hs-m-direct input")).to_have_value("no such preset")


def test_a_token_is_sent_to_the_hub_and_shown_nowhere(real: Real, visitor: Visitor) -> None:
    page = open_models(real.address, visitor)
    page.click("[data-show=find]")
    page.click(".hs-m-token summary")
    field = page.locator(".hs-m-token input")
    expect(field).to_have_attribute("type", "password")
    field.fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".hs-m-source")).to_have_text("In use: the token saved on the Models page.")
    find(page, "tiny draft")
    assert f"Bearer {TOKEN}" in {request.token for request in real.hub.requests}
    fields = "[...document.querySelectorAll('input, textarea')].map(field => field.value).join()"
    for _ in range(2):
        assert TOKEN not in page.content()
        assert TOKEN not in page.evaluate(fields)
        page.reload()
        page.get_by_role("tab", name="Models").click()
        page.click("[data-show=find]")
        page.click(".hs-m-token summary")
        expect(page.locator(".hs-m-source")).to_have_text("In use: the token saved on the Models page.")
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator(".hs-m-source")).to_have_text("None is in use.")


def test_removing_asks_first(real: Real, visitor: Visitor) -> None:
    spare = TinyModel(n_layer=1).write(real.folder / "spare.gguf")
    page = open_models(real.address, visitor)
    remove = row(page, "spare").get_by_role("button", name="Remove")
    remove.click()
    expect(page.locator(".hs-m-remove p")).to_contain_text(str(spare))
    page.click(".hs-m-keep")
    assert spare.exists()
    remove.click()
    page.click(".hs-m-drop")
    expect(row(page, "spare")).to_have_count(0)
    assert not spare.exists()
    assert shown(page) == ["target"]


def test_a_draft_that_does_not_fit_says_why(real: Real, visitor: Visitor) -> None:
    TinyModel(n_layer=1).write(real.folder / "fits.gguf")
    TinyModel(n_layer=1, vocabulary=sentence_piece()).write(real.folder / "other-words.gguf")
    TinyModel(n_layer=8).write(real.folder / "larger.gguf")
    page = open_models(real.address, visitor)
    row(page, "target").get_by_role("button", name="Drafts for it").click()
    expect(page.locator(".hs-m-draft")).to_have_count(4)
    first, none, *others = page.locator(".hs-m-draft").all()
    expect(first).to_contain_text("fits")
    expect(none).to_contain_text("No draft")
    assert len(others) == 2
    for other in others:
        expect(other.locator("input")).to_be_disabled()
    misfits = page.locator(".hs-m-misfit")
    expect(misfits.filter(has_text="larger")).to_contain_text("larger than the target")
    expect(misfits.filter(has_text="other-words").locator("small")).to_contain_text("tokens")


def test_folders_come_and_go(real: Real, visitor: Visitor, tmp_path: Path) -> None:
    more = tmp_path / "größere Modelle"
    more.mkdir()
    file = TinyModel(n_layer=1).write(more / "elsewhere.gguf")
    page = open_models(real.address, visitor)
    page.fill(".hs-m-places input", str(tmp_path / "nowhere"))
    page.click(".hs-m-places form button")
    expect(page.locator(".hs-m-problem")).to_contain_text("nowhere")
    page.fill(".hs-m-places input", str(more))
    page.click(".hs-m-places form button")
    expect(row(page, "elsewhere").locator(".hs-m-where")).to_have_text("folder größere Modelle · mit")
    expect(page.locator(".hs-m-problem")).to_be_hidden()
    expect(row(page, "elsewhere").get_by_role("button", name="Remove")).to_have_count(0)
    page.get_by_role("button", name="Forget the folder").click()
    expect(row(page, "elsewhere")).to_have_count(0)
    assert file.exists()


# ---- on a library in memory -------------------------------------------------------------------------------


@dataclass
class Imagined:
    address: str
    library: FakeLibrary


@pytest.fixture(scope="module")
def imagining() -> Iterator[Imagined]:
    from app.ui.page import build, serve

    client, library = FakeClient(), FakeLibrary()
    page = build(client, FakeShelf(), library=library)
    yield Imagined(serve(page, None), library)
    client.close()
    page.server.force_exit = True
    page.close(verbose=False)


@pytest.fixture
def imagined(imagining: Imagined) -> Imagined:
    imagining.library.reset()
    return imagining


def test_every_file_is_shown_as_what_it_is(imagined: Imagined, visitor: Visitor) -> None:
    page = open_models(imagined.address, visitor)
    expect(page.locator(".hs-m-count")).to_have_text("5 models")
    cells = row(page, "target").locator("td").all_inner_texts()
    assert cells[:-1] == ["llama", "1.5 B", "Q4_K_M", "8,192", "49,152", "yes", "1.5 GB"]
    expect(row(page, "target").locator(".hs-m-where")).to_have_text("models folder · mit")
    expect(page.locator("tr", has_text="cut-short").locator(".hs-m-kind")).to_have_text("broken")
    expect(page.locator("tr", has_text="cut-short")).to_contain_text("the file is cut short")
    expect(page.locator("tr", has_text="encoder")).to_contain_text("does not write text")
    assert page.get_by_role("button", name="Use as target: cut-short").count() == 0


def test_many_can_be_searched_and_sorted(imagined: Imagined, visitor: Visitor) -> None:
    imagined.library.files += [model(f"number {place:03}", 10_000_000 * place) for place in range(1, 301)]
    page = open_models(imagined.address, visitor)
    expect(page.locator(".hs-m-count")).to_have_text("305 models")
    page.fill(".hs-m-filter", "NUMBER 29 llama")
    fitting = [name for place in range(1, 301) if "29" in (name := f"number {place:03}")]
    assert shown(page) == fitting
    expect(page.locator(".hs-m-count")).to_have_text("13 of 305 models")
    size = page.get_by_role("columnheader", name="Size")
    size.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert shown(page) == fitting[::-1]
    expect(size).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    assert shown(page) == fitting
    expect(page.locator("[aria-sort]")).to_have_count(1)
    page.fill(".hs-m-filter", "nothing like it")
    expect(page.locator(".hs-m-count")).to_have_text("0 of 305 models")


def test_a_first_reading_shows_how_far_it_is(imagined: Imagined, visitor: Visitor) -> None:
    imagined.library.slow_files = 3
    page = open_models(imagined.address, visitor)
    words = page.locator(".hs-m-reading span")
    expect(words).to_have_text("Looking for model files")
    imagined.library.read_one.release()
    expect(words).to_have_text("Reading new model files: 1 of 3")
    imagined.library.read_one.release(2)
    expect(page.locator(".hs-m-count")).to_have_text("5 models")
    expect(page.locator(".hs-m-reading")).to_be_hidden()


def test_markup_stays_text(imagined: Imagined, visitor: Visitor) -> None:
    imagined.library.downloads.entries.append(
        DownloadState("1", SCRIPT, "failed", 5, 10, None, None, "", f"no {SCRIPT}", None)
    )
    page = open_models(imagined.address, visitor)
    expect(row(page, SCRIPT).locator(".hs-m-where")).to_have_text("folder <b>own · <i>licence</i>")
    row(page, "target").get_by_role("button", name="Drafts for it").click()
    expect(page.locator(".hs-m-misfit small")).to_contain_text(SCRIPT)
    expect(page.locator(".hs-m-siblings")).to_contain_text("some/<b>one</b>")
    files = find(page, "anything")
    expect(page.locator(".hs-m-repository summary b")).to_have_text(f"some/{SCRIPT}")
    expect(files.nth(1)).to_contain_text(SCRIPT)
    page.click("[data-show=queue]")
    expect(page.locator(".hs-m-entry .hs-m-reason")).to_have_text(f"no {SCRIPT}")
    assert page.query_selector(".hs-models :is(img, script, i:not(.hs-m-memory i))") is None


def test_files_are_grouped_and_marked(imagined: Imagined, visitor: Visitor) -> None:
    page = open_models(imagined.address, visitor)
    files = find(page, "anything")
    expect(files).to_have_count(3)
    assert files.locator(".hs-m-type").all_inner_texts() == ["Q4_K_M", "", "F16"]
    for place, words in enumerate(["fits this machine", "tight here", "3 files"]):
        expect(files.nth(place)).to_contain_text(words)
    expect(files.nth(2)).to_contain_text("too large for this machine")
    expect(page.locator(".hs-m-repository summary")).to_contain_text("1.2 M downloads · 1 like")
    expect(page.locator(".hs-m-body .hs-m-reason")).to_contain_text("terms must be accepted")
    page.fill(".hs-m-words [type=search]", "down")
    page.keyboard.press("Enter")
    expect(page.locator(".hs-m-problem")).to_contain_text("The hub can't be reached (no network)")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator(".hs-m-problem")).to_be_hidden()


def test_a_pair_is_weighed_and_used(imagined: Imagined, visitor: Visitor) -> None:
    page = open_models(imagined.address, visitor)
    row(page, "target").get_by_role("button", name="Drafts for it").click()
    memory = page.locator(".hs-m-memory")
    expect(memory).to_contain_text("500 MB")
    page.locator(".hs-m-draft", has_text="No draft").click()
    expect(memory).not_to_contain_text("500 MB")
    expect(page.locator(".hs-m-use")).to_have_text("Use without a draft")
    page.fill(".hs-m-memory input", "100000")
    expect(memory).to_contain_text("context of 2048 fits", ignore_case=True)
    page.fill(".hs-m-memory input", "")
    expect(page.locator(".hs-m-problem")).to_contain_text("context must be a whole number")
    page.fill(".hs-m-memory input", "512")
    expect(page.locator(".hs-m-problem")).to_be_hidden()
    page.locator(".hs-m-draft input").first.focus()
    page.keyboard.press("Space")
    page.click(".hs-m-use")
    expect(page.get_by_role("tab", name="Generate")).to_have_attribute("aria-selected", "true")
    page.click(".hs-settings-toggle")
    page.click("#loading button")
    expect(page.locator("#n_ctx input")).to_have_value("512")


def test_what_auto_may_gain_with_a_pair(imagined: Imagined, visitor: Visitor) -> None:
    page = open_models(imagined.address, visitor)
    row(page, "target").get_by_role("button", name="Drafts for it").click()
    speed = page.locator(".hs-m-outlook")
    expect(speed.locator("> p")).to_have_text("Auto here: 1.1x to 1.8x plain, by kind of task (est.)")
    expect(speed.locator("tr").last).to_have_text("Editing1.84x est.1.72x measured")
    page.locator(".hs-m-draft", has_text="No draft").click()
    expect(speed.locator("> p")).to_contain_text("is told after its first answer")
    expect(speed.locator("tr")).to_have_count(0)


def pick(page: Page, *picks: dict[str, str]) -> None:
    """One after the other, with no time for an answer between them."""
    page.evaluate(
        """all => all.forEach(picks =>
            document.dispatchEvent(new CustomEvent("headstart-pick", {detail: {picks, values: {}}})))""",
        list(picks),
    )


def test_a_pick_counts_while_an_older_one_is_answered(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    wanted = FakeShelf.path("small-draft")
    pick(page, {}, {"preset": "", "target": wanted, "mode": "plain"})
    ask(page, "Hello")
    finished(page)
    assert str(fake.client.runs[0].load.target) == wanted
    expect(page.locator(".hs-pair-words")).to_be_empty()
    expect(page.locator("#target")).to_have_value(wanted)


def test_a_preset_counts_though_its_mode_is_changed_before_its_answer(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    pick(page, {"preset": "", "target": FakeShelf.path("small-draft")})
    expect(page.locator(".hs-pair-words")).to_be_empty()
    pick(page, {"preset": "starter"}, {"preset": "", "mode": "plain"})
    expect(page.locator("#target")).to_have_value(FakeShelf.path("starter"))
    expect(page.locator("#mode input[value=plain]")).to_be_checked()


def test_picks_go_one_after_the_other_and_none_is_lost(fake: Served, visitor: Visitor) -> None:
    page = visitor.open(fake.address)
    questions: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if is_question := "unanswered" in (route.request.post_data or ""):
            questions.append(route)
        if not is_question or len(questions) > 1:
            route.continue_()

    page.route("**/queue/join**", hold_the_first)
    pick(
        page,
        {"preset": "starter"},
        {"preset": "", "target": FakeShelf.path("small-draft")},
        {"mode": "plain"},
    )
    while not questions:
        page.wait_for_timeout(20)
    expect(page.locator("#target")).to_have_value(FakeShelf.path("small-draft"))
    questions[0].continue_()
    expect(page.locator(".hs-pair-words")).to_be_empty()
    expect(page.locator("#target")).to_have_value(FakeShelf.path("small-draft"))
    expect(page.locator("#mode input[value=plain]")).to_be_checked()
    asked = [question.request.post_data_json["event_data"]["unanswered"] for question in questions]
    assert [[step["picks"].get("mode") for step in steps] for steps in asked] == [[None], [None, "plain"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_and_readable_in_both_themes(imagined: Imagined, visitor: Visitor, theme: str) -> None:
    imagined.library.downloads.entries.append(
        DownloadState("1", "a" * 99, "running", 5, 10, 1e6, 5.0, "fetching", None, None)
    )
    address = f"{imagined.address}?__theme={theme}"
    page = open_models(address, visitor, viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    expect(page.locator(".hs-m-count")).to_have_text("5 models")

    def check(*selectors: str) -> None:
        assert page.evaluate(OVERFLOW) <= 0
        for selector in selectors:
            colour, fill = page.locator(selector).first.evaluate(COLOURS)
            shares = 255 if fill.startswith("color(") else 1  # a mixed colour is told in shares of 1
            assert contrast(rgb(colour), tuple(part * shares for part in rgb(fill))) >= 4.5, selector

    check(
        ".hs-m-title", ".hs-m-where", ".hs-m-reason", ".hs-m-kind", ".hs-m-table td", ".hs-m-table .hs-link"
    )
    page.click("[data-show=pairs]")
    page.select_option(".hs-m-target", label="target")
    expect(page.locator(".hs-m-misfit")).to_be_visible()
    check(".hs-m-draft b", ".hs-m-draft small", ".hs-m-misfit b", ".hs-m-use", ".hs-m-file small")
    find(page, "anything")
    check(
        ".hs-m-is-tight", ".hs-m-is-large", ".hs-m-is-fits", ".hs-m-file small", ".hs-m-fetch", ".hs-c-hint"
    )
    page.click("[data-show=queue]")
    check(".hs-m-step", ".hs-m-moved", ".hs-m-badge")

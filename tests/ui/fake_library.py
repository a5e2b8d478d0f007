"""A library in memory, for what the Models tab shows and no test needs on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from app.compare.outlook import Expectation
from app.core.errors import HeadstartError
from app.core.memory import RAM, DeviceNeed, MemoryEstimate, MemoryPart
from app.core.models import ModelFacts
from app.core.settings import LoadSettings
from app.library.catalogue import ModelFile
from app.library.downloads import DownloadState
from app.library.folders import Place
from app.library.pairs import Candidate, Sibling
from app.library.presets import Preset
from app.library.search import HubFile, HubFiles, HubRepository
from tests.ui.fakes import expectations

MODELS, ADDED = Path("/models"), Path("/more/<b>own")
SCRIPT = "<img src=x onerror=alert(1)>"


def model(name: str, parameters: int, folder: Path = MODELS, licence: str | None = "mit") -> ModelFile:
    facts = ModelFacts(
        kind="model", architecture="llama", name=None, parameters=parameters, quantization="Q4_K_M",
        n_ctx_train=8192, n_vocab=49152, vocab_type="BPE", n_layer=30, has_chat_template=True,
        licence=licence,
    )  # fmt: skip
    source = "models" if folder == MODELS else "added"
    return ModelFile(name, folder / f"{name}.gguf", parameters, "model", facts, source=source)


@dataclass
class FakeQueue:
    """Downloads that stand still."""

    entries: list[DownloadState] = field(default_factory=list)

    def states(self) -> list[DownloadState]:
        return list(self.entries)


@dataclass
class FakeLibrary:
    """Three models, one broken, one encoder; a hub whose every text is markup."""

    files: list[ModelFile] = field(default_factory=list)
    slow_files: int = 0  # that the next look reads one by one, each after `read_one`
    read_one: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    downloads: FakeQueue = field(default_factory=FakeQueue)
    free: int = 8_000_000_000

    def reset(self) -> None:
        self.files = [
            model("target", 1_500_000_000),
            model("draft", 135_000_000),
            model(SCRIPT, 500_000_000, ADDED, "<i>licence</i>"),
            ModelFile("cut-short", MODELS / "cut-short.gguf", 10, "broken", problem="the file is cut short"),
            ModelFile("words", MODELS / "words.gguf", 3_000_000, "encoder"),
        ]
        self.slow_files = 0
        self.downloads.entries.clear()
        self.free = 8_000_000_000

    def models(self, on_read: Callable[[int, int], None] | None = None) -> list[ModelFile]:
        for done in range(self.slow_files):
            self.read_one.acquire(timeout=30)
            assert on_read
            on_read(done + 1, self.slow_files)
        return list(self.files)

    def places(self) -> list[Place]:
        return [Place(MODELS, "models", "models"), Place(ADDED, "added", ADDED.name)]

    def rank_drafts(self, target: Path) -> list[Candidate]:
        reasons = ("the vocabularies have 49152 and 32000 tokens", f"token 17 is '{SCRIPT}' in one")
        usable = {file.name: file for file in self.files if file.is_usable}
        return [
            Candidate(usable["draft"], True, (), "same family, 11x smaller"),
            Candidate(usable["target"], True, (), "the target itself"),
            Candidate(usable[SCRIPT], False, reasons, ""),
        ]

    def siblings(self, target: ModelFile) -> list[Sibling]:
        return [Sibling("some/<b>one</b>", "small-Q8_0.gguf", 100, 140_000_000, "https://example.org")]

    def estimate(self, load: LoadSettings) -> MemoryEstimate:
        parts = [MemoryPart("target", "weights", RAM, 1_000_000_000)]
        parts.append(MemoryPart("target", "cache", RAM, 100_000 * load.n_ctx))
        if load.draft:
            parts.append(MemoryPart("draft", "weights", RAM, 500_000_000))
        need = sum(part.bytes for part in parts)
        fits = need <= self.free
        advice = () if fits else ("a context of 2048 fits",)
        return MemoryEstimate(tuple(parts), (DeviceNeed(RAM, need, self.free, 16_000_000_000),), fits, advice)

    def outlook(self, load: LoadSettings) -> list[Expectation]:
        return expectations(load)

    def fit(self, n_bytes: int) -> str:
        return "fits" if n_bytes < 1e9 else "tight" if n_bytes < 1e10 else "large"

    def presets(self) -> list[Preset]:
        return []

    def search(self, words: str, sort: str, size: str, licence: str, no_gated: bool) -> list[HubRepository]:
        if words == "down":
            raise HeadstartError("the hub can't be reached (no network)", "connect and repeat it")
        return [HubRepository(f"some/{SCRIPT}", 1_234_567, 1, "2025-01-31", "manual", "<i>licence</i>")]

    def files_of(self, repository: str) -> HubFiles:
        files = (
            HubFile("a-Q4_K_M.gguf", "Q4_K_M", 400_000_000, None, ("a-Q4_K_M.gguf",)),
            HubFile(f"{SCRIPT}-Q4_K_M.gguf", "Q4_K_M", 4_000_000_000, None, ("one",)),
            HubFile("b-00001-of-00003.gguf", "F16", 40_000_000_000, None, ("one", "two", "three")),
            HubFile("mmproj-a.gguf", "mmproj", 4_000, None, ("mmproj-a.gguf",)),
        )
        return HubFiles(repository, "c" * 40, "mit", "manual", files)

    def token_source(self) -> str:
        return ""

    def queue(self) -> FakeQueue:
        return self.downloads

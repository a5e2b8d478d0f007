"""What every test may use: a browser, the real models, and a user-data folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.paths import PROJECT, models_dir
from app.library import folders

# A browser and a model share the cores here. Threads that wait by spinning, llama.cpp's default, then make a
# pass up to forty times as long; sleeping ones at most twice. Set before any child starts.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

REQUIRE_ALL = os.environ.get("HEADSTART_REQUIRE_ALL") == "1"

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe",
)


@pytest.fixture(scope="session", autouse=True)
def headstart_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user-data folder for this session, so that a test never touches a person's own."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_other_programs() -> Iterator[None]:
    """No model files of other programs, so that a person's own never show through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "PROGRAMS", ())
        yield


def _missing(reason: str) -> None:
    """Skip, or fail where everything is required."""
    if REQUIRE_ALL:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The Chromium or Chrome to test the page with; HEADSTART_CHROMIUM names one."""
    for name in filter(None, (os.environ.get("HEADSTART_CHROMIUM"), *_BROWSERS)):
        if found := shutil.which(name):
            return found
    _missing("no Chromium or Chrome was found; install one, or name it in HEADSTART_CHROMIUM")
    raise AssertionError


def _model(preset: str, file_name: str) -> Path:
    path = models_dir() / file_name
    if not path.exists():
        done = subprocess.run(
            [sys.executable, "-m", "app", "models", "get", preset],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode or not path.exists():
            _missing(f"{file_name} is missing and could not be fetched: {done.stderr.strip()[-300:]}")
    return path


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """SmolLM2-135M, the model that the first start fetches."""
    return _model("starter", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def coder_target() -> Path:
    """Qwen2.5-Coder 1.5B, the target of the coder pair."""
    return _model("coder", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")


@pytest.fixture(scope="session")
def coder_draft() -> Path:
    """Qwen2.5-Coder 0.5B, the draft of the coder pair."""
    return _model("coder", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")

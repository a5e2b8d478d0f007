"""launch.py: the whole set-up with made-up packages and no network."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.core.paths import PROJECT
from app.setup.venv import VENV, VENV_PYTHON


def test_python_3_8_can_read_launch_to_say_that_it_is_too_old() -> None:
    ast.parse((PROJECT / "launch.py").read_text("utf-8"), feature_version=(3, 8))


def write_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel with one module that says its version."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        sum_ = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={sum_},{len(text)}\n"
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


class Checkout:
    """A project with launch.py and a program that says how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "Hübsches Programm"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        for name, version in (("llama-cpp-python", "1.0"), ("apple", "1.0"), ("apple", "2.0")):
            write_wheel(self.wheels, name, version)
        app = PROJECT / "app"
        core = [app / "core" / name for name in ("__init__.py", "paths.py", "pins.py")]
        for file in (PROJECT / "launch.py", app / "__init__.py", *core, *(app / "setup").glob("*.py")):
            copy = self.folder / file.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        (self.folder / "app" / "backend").mkdir()
        (self.folder / "app" / "backend" / "__init__.py").touch()
        (self.folder / "app" / "backend" / "selfcheck.py").write_text("import llama_cpp_python\n")
        (self.folder / "app" / "__main__.py").write_text(
            "import apple, json, os, sys\n"
            "print(json.dumps([sys.argv[1:], os.getcwd(), apple.version]))\n"
            "sys.exit(7)\n"
        )
        plans = self.folder / "app" / "setup" / "plans.py"
        text = plans.read_text("utf-8")
        index = '"https://abetlen.github.io/llama-cpp-python/whl"'
        assert index in text
        plans.write_text(text.replace(index, '"http://127.0.0.1:9"'), "utf-8")
        self.pin("apple==1.0")

    def pin(self, apple: str) -> None:
        text = f'dependencies = [\n    "{apple}",\n    "llama-cpp-python==1.0",\n]\n'
        (self.folder / "pyproject.toml").write_text(text)

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / VENV_PYTHON.relative_to(VENV)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        return subprocess.run(
            [sys.executable, str(self.folder / "launch.py"), *arguments],
            cwd=cwd or self.folder,
            env={
                **env,
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.wheels),
                "PIP_CONFIG_FILE": os.devnull,
                "PYTHONUTF8": "1",
                "PYTHONPATH": str(self.wheels),  # not for the program's own Python
                "CXX": sys.executable,  # any compiler will do
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
        )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout that has been set up by its first start."""
    checkout = Checkout(tmp_path_factory.mktemp("launch"))
    done = checkout.run("generate", "--json")
    assert json.loads(done.stdout) == [["generate", "--json"], str(checkout.folder), "1.0"], done.stderr
    assert re.findall(r"^[A-Z][a-z]+", done.stderr, re.MULTILINE) == [
        "Making",
        "Installing",
        "Not",
        "Building",
        "Checking",
    ]
    assert done.returncode == 7
    return checkout


def test_a_second_start_does_nothing_but_run(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('the wrong app')")
    done = checkout.run("generate", "--prompt", "a b ü", "", cwd=tmp_path)
    assert json.loads(done.stdout) == [["generate", "--prompt", "a b ü", ""], str(tmp_path), "1.0"]
    assert (done.stderr, done.returncode) == ("", 7)


def test_a_start_that_stays_passes_the_same_on(checkout: Checkout) -> None:
    done = checkout.run("--pause-on-error", "models", "list")
    assert "Press Enter to close this window." in done.stdout
    assert json.loads(done.stdout.splitlines()[0])[0] == ["models", "list"]
    assert done.returncode == 7


def test_a_moved_checkout_works(checkout: Checkout) -> None:
    moved = checkout.folder.with_name("anderswo")
    checkout.folder.rename(moved)
    before, checkout.folder = checkout.folder, moved
    try:
        done = checkout.run("doctor")
    finally:
        checkout.folder = moved.rename(before)
    assert json.loads(done.stdout)[0] == ["doctor"]
    assert done.stderr == ""


def test_a_changed_pin_is_installed(checkout: Checkout) -> None:
    checkout.pin("apple==2.0")
    done = checkout.run("doctor")
    assert json.loads(done.stdout)[2] == "2.0"
    assert re.findall(r"^[A-Z][a-z]+.*", done.stderr, re.MULTILINE) == [
        "Installing the packages (about a minute, 150 MB to download)"
    ]


def test_a_package_that_cannot_be_had_is_named_in_one_line(checkout: Checkout) -> None:
    checkout.pin("apple==3.0")
    done = checkout.run("doctor")
    checkout.pin("apple==2.0")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search(
        r"^error: the packages .* no package index offers apple==3\.0 for", done.stderr, re.MULTILINE
    )
    assert "Traceback" not in done.stderr
    assert checkout.run("doctor").returncode == 7


@pytest.mark.parametrize("fault", ["half installed", "broken Python", "no stamp"])
def test_a_broken_venv_is_made_anew(checkout: Checkout, fault: str) -> None:
    stamp = checkout.venv / "headstart.json"
    if fault == "half installed":
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "installing": True}))
    elif fault == "no stamp":
        stamp.unlink()
    else:
        checkout.python.unlink()
        checkout.python.symlink_to(checkout.folder / "gone")
    leftover = checkout.venv / "leftover"
    leftover.touch()
    done = checkout.run("doctor")
    assert "Making" in done.stderr
    assert json.loads(done.stdout)[0] == ["doctor"]
    assert not leftover.exists()


def test_a_build_that_does_not_run_is_refused(checkout: Checkout) -> None:
    check = checkout.folder / "app" / "backend" / "selfcheck.py"
    good = check.read_text()
    check.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    done = checkout.run("--backend", "cpu", "doctor")
    check.write_text(good)
    assert done.returncode == 1
    assert "error: llama.cpp could not be installed" in done.stderr
    assert "instructions that this processor lacks" in done.stderr
    again = checkout.run("doctor")
    assert "Checking that llama.cpp runs here" in again.stderr
    assert again.returncode == 7

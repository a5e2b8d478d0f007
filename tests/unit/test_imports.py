"""Imports go one way: ui, __main__ -> library -> worker -> core; in the child worker -> engine, backend."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.paths import PROJECT
from app.core.pins import pinned

# The rooms of app that each room may import besides itself.
ALLOWED = {
    "core": set(),
    "setup": {"core"},
    "backend": {"core"},
    "engine": {"core"},
    "worker": {"core", "engine", "backend"},
    "library": {"core", "worker"},
    "compare": {"core", "worker", "library", "doctor", "generate"},
    "drafts": {"core", "worker", "library", "compare"},
    "ui": {"core", "worker", "library", "compare", "drafts"},
    "doctor": {"core", "worker"},
    "generate": {"core", "worker", "library"},
    "__main__": {"core", "worker", "library", "compare", "drafts", "ui", "doctor", "generate"},
}
# What of worker runs in the main process, which never loads llama.cpp.
MAIN_PROCESS_SIDE = {
    "app.worker.client",
    "app.worker.tasks",
    "app.worker.messages",
    "app.worker.kept_costs",
    "app.worker.machine",
    "app.worker.store",
}
OUTSIDERS = {"llama_cpp": "backend", "gradio": "ui"}
SOURCES = sorted((PROJECT / "app").rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The full names of what a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            # "from app.worker import tasks" may name a module or a thing in one.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    parts = path.relative_to(PROJECT / "app").parts
    return parts[0] if len(parts) > 1 else path.stem


def module_path(name: str) -> Path | None:
    """The file of a module of app; None for what is none."""
    base = PROJECT.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        if name.startswith("app."):
            there = name.split(".")[1]
            assert there == here or there in ALLOWED.get(here, set()), f"{here} imports {name}"
        outsider = name.partition(".")[0]
        assert OUTSIDERS.get(outsider, here) == here, f"{here} imports {name}"


@pytest.mark.parametrize("path", sorted((PROJECT / "app" / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_needs_numpy_and_the_standard_library_alone(path: Path) -> None:
    for name in imports(path):
        top = name.partition(".")[0]
        assert top in {"app", "numpy"} or top in sys.stdlib_module_names, name


def test_launch_and_setup_need_the_standard_library_alone() -> None:
    pending, seen = [PROJECT / "launch.py", *(PROJECT / "app" / "setup").glob("*.py")], set[Path]()
    while pending:
        path = pending.pop()
        seen.add(path)
        for name in imports(path):
            if name.startswith("app."):
                assert name.startswith(("app.core.", "app.setup.")), name
                found = module_path(name) or module_path(name.rpartition(".")[0])
                assert found, name
                pending += {found} - seen
            else:
                assert name.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if room(path) not in {"core", "setup", "backend", "engine", "worker"}],
    ids=lambda path: str(path.relative_to(PROJECT)),
)
def test_the_main_process_uses_the_outside_of_the_worker(path: Path) -> None:
    for name in imports(path):
        if name.startswith("app.worker."):
            module = ".".join(name.split(".")[:3])
            assert module in MAIN_PROCESS_SIDE, name


def test_the_main_process_does_not_load_llama_cpp() -> None:
    names = [".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in SOURCES]
    rooms = {"library", "compare", "drafts", "ui", "doctor", "generate", "__main__"}
    ours = [n.removesuffix(".__init__") for n in names if n in MAIN_PROCESS_SIDE or n.split(".")[1] in rooms]
    assert {"app.worker.client", "app.ui"} <= set(ours)
    code = f"import sys, {', '.join(ours)}; sys.exit('llama_cpp' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


def test_what_the_program_imports_is_pinned() -> None:
    pins = {re.split("[=;]", pin)[0] for pin in pinned((PROJECT / "pyproject.toml").read_text("utf-8"))}
    tops = {name.partition(".")[0] for path in SOURCES for name in imports(path)}
    providers = importlib.metadata.packages_distributions()
    for top in tops - {"app"} - sys.stdlib_module_names:
        names = {re.sub("[-_.]+", "-", name).lower() for name in providers[top]}
        assert names & pins, f"{top} comes from {names}, which pyproject.toml does not pin"


def test_python_3_10_understands_every_file() -> None:
    for path in [*SOURCES, PROJECT / "launch.py"]:
        ast.parse(path.read_text("utf-8"), feature_version=(3, 10))

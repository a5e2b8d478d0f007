"""The parts of the set-up: its choices as tables, the page that runs, the shortcuts."""

from __future__ import annotations

import ast
import http.server
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.paths import PROJECT
from app.setup import SetupError, page, plans
from app.setup.locks import try_lock
from app.setup.plans import Machine, build_plans, compiler_remedy, parse_nvidia_smi
from app.setup.requirements import llama_pin, package_pins, pins
from app.setup.shortcut import shortcut, write_shortcut
from app.setup.steps import pip_failure

LINUX = Machine("Linux", "x86_64")
NVIDIA = Machine("Linux", "x86_64", cuda=(12, 4), compute=(8, 6))


# The pins


def test_pins_are_the_lists_of_pyproject() -> None:
    project = pytest.importorskip("tomllib").loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    assert pins() == project["dependencies"]
    for extra, requirements in project["optional-dependencies"].items():
        assert pins(extra) == requirements


def test_every_pin_is_exact() -> None:
    for group in ("dependencies", "test", "cuda11", "cuda12", "cuda13"):
        for pin in pins(group):
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+(\.post\d)?(; python_version (<|>=) '3\.11')?", pin), pin


def test_llama_cpp_is_set_apart_from_the_other_packages() -> None:
    assert llama_pin() in pins()
    assert sorted([llama_pin(), *package_pins()]) == sorted(pins())


# The build of llama.cpp


@pytest.mark.parametrize(
    ("machine", "backend", "names"),
    [
        (LINUX, "auto", ["CPU wheel", "CPU build"]),
        (Machine("Linux", "aarch64"), "auto", ["CPU wheel", "CPU build"]),
        (Machine("Linux", "ppc64le"), "auto", ["CPU build"]),
        (Machine("Windows", "AMD64"), "auto", ["CPU wheel", "CPU build"]),
        (Machine("Windows", "ARM64"), "auto", ["CPU build"]),
        (Machine("Darwin", "x86_64"), "auto", ["CPU build"]),
        (
            Machine("Darwin", "arm64"),
            "auto",
            ["Metal wheel", "Metal build", "CPU wheel", "CPU build"],
        ),
        (NVIDIA, "auto", ["CUDA 12.4 wheel", "CUDA 11.8 wheel", "CPU wheel", "CPU build"]),
        (
            Machine("Linux", "x86_64", (13, 1), (8, 9), nvcc=True),
            "auto",
            [
                "CUDA 13.0 wheel",
                "CUDA 12.5 wheel",
                "CUDA 11.8 wheel",
                "CUDA build",
                "CPU wheel",
                "CPU build",
            ],
        ),
        (
            Machine("Windows", "AMD64", (13, 2), (12, 0)),
            "cuda",
            ["CUDA 13.2 wheel", "CUDA 12.5 wheel", "CUDA 11.8 wheel"],
        ),
        # CUDA 13 has nothing for GPUs before Turing, though their last driver runs it.
        (Machine("Linux", "x86_64", (13, 0), (6, 1)), "cuda", ["CUDA 12.5 wheel", "CUDA 11.8 wheel"]),
        (Machine("Windows", "AMD64", (12, 2), (8, 6)), "cuda", ["CUDA 11.8 wheel"]),
        (Machine("Linux", "x86_64", (11, 4), (7, 0)), "auto", ["CPU wheel", "CPU build"]),
        (
            Machine("Linux", "aarch64", (12, 6), (8, 7), nvcc=True),
            "auto",
            ["CUDA build", "CPU wheel", "CPU build"],
        ),
        (NVIDIA, "cpu", ["CPU wheel", "CPU build"]),
        (NVIDIA, "vulkan", ["Vulkan wheel", "Vulkan build"]),
        (Machine("Linux", "aarch64"), "vulkan", ["Vulkan build"]),
        (Machine("Darwin", "arm64"), "metal", ["Metal wheel", "Metal build"]),
        (Machine("Darwin", "x86_64"), "metal", ["Metal build"]),
        (LINUX, "cuda", []),
        (LINUX, "metal", []),
    ],
)
def test_build_plans(machine: Machine, backend: str, names: list[str]) -> None:
    found = build_plans(machine, backend)
    assert [plan.name for plan in found] == names
    for plan in found:
        assert plan.gpu == (not plan.name.startswith("CPU"))
        assert bool(plan.index) == plan.name.endswith("wheel")


def test_a_cuda_wheel_brings_the_libraries_of_its_own_major_version() -> None:
    found = build_plans(Machine("Linux", "x86_64", (13, 2), (9, 0)), "cuda")
    assert [(plan.index, plan.libraries) for plan in found] == [
        ("cu132", "cuda13"),
        ("cu125", "cuda12"),
        ("cu118", "cuda11"),
    ]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |", (12, 4)),
        ("| NVIDIA-SMI 595.10  KMD Version: 595.10  CUDA UMD Version: 13.2 |", (13, 2)),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
        ("| CUDA Version: N/A |", None),
    ],
)
def test_the_cuda_version_of_the_driver(text: str, version: tuple[int, int] | None) -> None:
    assert parse_nvidia_smi(text) == version


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("Linux", "ID=debian\n", "apt install build-essential"),
        ("Linux", 'NAME=Mint\nID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt install build-essential"),
        ("Linux", 'ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install gcc-c++ make"),
        ("Linux", "ID=void\n", "install a C++ compiler"),
        ("Darwin", "", "xcode-select --install"),
        ("Windows", "", "Visual Studio Build Tools"),
    ],
)
def test_what_to_install_for_a_compiler(system: str, release: str, command: str) -> None:
    assert command in compiler_remedy(system, release)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError('...')'\n"
            "ERROR: No matching distribution found for gradio==6.31.0",
            "the package index cannot be reached (gradio==6.31.0 is missing)",
        ),
        ("ERROR: No matching distribution found for numpy==2.4.6", "no package index offers numpy==2.4.6"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full"),
        (
            "  x.cpp:1: error: odd\n  ninja: stopped\nERROR: Failed building wheel\nbye",
            "x.cpp:1: error: odd (all",
        ),
        (
            "  CMake Error at a/CMakeLists.txt:17 (find_package):\n    Could NOT find Vulkan\n\n"
            "  error: subprocess-exited-with-error\nERROR: Failed building wheel",
            "CMake Error at a/CMakeLists.txt:17 (find_package): Could NOT find Vulkan (all",
        ),
        (
            "  error: subprocess-exited-with-error\nERROR: Failed to build 'x'",
            "ERROR: Failed to build 'x' (all",
        ),
        ("", "pip said nothing"),
    ],
)
def test_why_pip_failed(output: str, reason: str) -> None:
    answer = pip_failure(output.splitlines())
    assert reason in answer
    assert "\n" not in answer


# A server to ask


class Server:
    """A page at ``address`` that says what it is told to, and counts how often."""

    def __init__(self, body: bytes = b"", status: int = 200) -> None:
        self.requests: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._httpd.server_address[1]
        self._thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*arguments: object) -> Server:
        servers.append(Server(*arguments))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.close()


LISTING = b'<a href="x#sha256=1">llama_cpp_python-0.3.36-py3-none-manylinux_2_17_x86_64.whl</a>'


@pytest.mark.parametrize(
    ("body", "status", "version", "offers"),
    [
        (LISTING, 200, "0.3.36", True),
        (LISTING, 200, "0.3.3", False),
        (LISTING, 200, "0.3.37", False),
        (b"not found", 404, "0.3.36", False),
    ],
)
def test_an_index_is_asked_for_the_version(
    serve: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    status: int,
    version: str,
    offers: bool,
) -> None:
    server = serve(body, status)
    monkeypatch.setattr(plans, "WHEEL_INDEX", f"http://127.0.0.1:{server.port}/whl")
    assert plans.index_offers("cu124", version) is offers
    assert server.requests == ["/whl/cu124/llama-cpp-python/"]


def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "INDEX_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(plans, "WHEEL_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/whl")
        assert plans.index_offers("cpu", "0.3.36") is None
    assert plans.index_offers("cpu", "0.3.36") is None  # now the connection is refused


# The running page and the port


@pytest.fixture
def note_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("HEADSTART_HOME", str(tmp_path))

    def note(port: int, project: Path = PROJECT) -> None:
        text = json.dumps({"pid": os.getpid(), "port": port, "project": str(project)})
        (tmp_path / "running.json").write_text(text, "utf-8")

    return note


def test_a_running_page_is_found_whatever_the_proxy(
    serve: Callable[..., Server], note_page: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server = serve(b"<title>Headstart</title>")
    assert page.running_page() is None
    note_page(server.port)
    assert page.running_page() == f"http://127.0.0.1:{server.port}/"


def test_what_is_no_running_page(
    serve: Callable[..., Server], note_page: Callable[..., None], tmp_path: Path
) -> None:
    ours, other = serve(b"Headstart"), serve(b"Jupyter")
    note_page(ours.port, project=tmp_path)
    assert page.running_page() is None
    note_page(other.port)
    assert page.running_page() is None
    ours.close()
    note_page(ours.port)
    assert page.running_page() is None
    (tmp_path / "running.json").write_text("[]", "utf-8")
    assert page.running_page() is None
    (tmp_path / "running.json").write_text("{broken", "utf-8")
    assert page.running_page() is None


def test_the_first_free_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        monkeypatch.setattr(page, "FIRST_PORT", port)
        assert port < page.choose_port(None) < port + 100
        with pytest.raises(SetupError, match=f"port {port} is in use; choose another with --port"):
            page.choose_port(port)
    assert page.choose_port(port) == port


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    first = try_lock(path)
    assert first
    assert try_lock(path) is None
    first.close()
    second = try_lock(path)
    assert second
    second.close()


# Shortcuts


def test_the_linux_shortcut_quotes_twice() -> None:
    name, text = shortcut("Linux", "/usr/bin/python3", '/home/m/Größe 100% "$x" \\y/launch.py')
    script = r'"/home/m/Größe 100%% \\"\\$x\\" \\\\y/launch.py"'
    assert name == "headstart.desktop"
    assert f'Exec="/usr/bin/python3" {script} --pause-on-error\n' in text
    assert "Terminal=true\n" in text


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_the_mac_shortcut_runs(tmp_path: Path) -> None:
    script = tmp_path / "it's a $HOME größe.py"
    script.write_text("import sys; print(sys.argv)", "utf-8")
    name, text = shortcut("Darwin", sys.executable, str(script))
    made = tmp_path / name
    made.write_text(text, "utf-8")
    made.chmod(0o755)
    assert name == "Headstart.command"
    done = subprocess.run([str(made)], capture_output=True, encoding="utf-8", check=True)
    assert ast.literal_eval(done.stdout) == [str(script), "--pause-on-error"]


def test_the_windows_shortcut_doubles_percent_signs() -> None:
    name, text = shortcut("Windows", r"C:\Program Files\Python\python.exe", r"D:\100% ü\launch.py")
    assert name == "Headstart.bat"
    assert text.splitlines()[-1] == (
        r'"C:\Program Files\Python\python.exe" "D:\100%% ü\launch.py" --pause-on-error'
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the desktop folder of XDG")
def test_the_shortcut_lies_on_the_desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert write_shortcut().parent == tmp_path
    (tmp_path / "Desktop").mkdir()
    assert write_shortcut().parent == tmp_path / "Desktop"
    (tmp_path / ".config").mkdir()
    (tmp_path / "Schreibtisch").mkdir()
    (tmp_path / ".config" / "user-dirs.dirs").write_text('XDG_DESKTOP_DIR="$HOME/Schreibtisch"\n', "utf-8")
    path = write_shortcut()
    assert path == tmp_path / "Schreibtisch" / "headstart.desktop"
    assert os.access(path, os.X_OK)
    assert shlex.quote(str(PROJECT / "launch.py")) in path.read_text("utf-8")

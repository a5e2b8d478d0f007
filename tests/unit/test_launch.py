"""launch.py: its choices as tables, and the whole set-up with made-up packages and no network."""

from __future__ import annotations

import ast
import base64
import hashlib
import http.server
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import launch
from app.core.paths import PROJECT
from launch import Machine, SetupError, build_plans

LINUX = Machine("Linux", "x86_64")
NVIDIA = Machine("Linux", "x86_64", cuda=(12, 4), compute=(8, 6))


# The pins


def test_python_3_8_can_read_launch_to_say_that_it_is_too_old() -> None:
    ast.parse((PROJECT / "launch.py").read_text("utf-8"), feature_version=(3, 8))


def test_pins_are_the_lists_of_pyproject() -> None:
    project = pytest.importorskip("tomllib").loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    assert launch.pins() == project["dependencies"]
    for extra, requirements in project["optional-dependencies"].items():
        assert launch.pins(extra) == requirements


def test_every_pin_is_exact() -> None:
    for group in ("dependencies", "test", "cuda11", "cuda12", "cuda13"):
        for pin in launch.pins(group):
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+(\.post\d)?(; python_version (<|>=) '3\.11')?", pin), pin


def test_llama_cpp_is_set_apart_from_the_other_packages() -> None:
    assert launch.llama_pin() in launch.pins()
    assert sorted([launch.llama_pin(), *launch.package_pins()]) == sorted(launch.pins())


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
    plans = build_plans(machine, backend)
    assert [plan.name for plan in plans] == names
    for plan in plans:
        assert plan.gpu == (not plan.name.startswith("CPU"))
        assert bool(plan.index) == plan.name.endswith("wheel")


def test_a_cuda_wheel_brings_the_libraries_of_its_own_major_version() -> None:
    plans = build_plans(Machine("Linux", "x86_64", (13, 2), (9, 0)), "cuda")
    assert [(plan.index, plan.libraries) for plan in plans] == [
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
    assert launch.parse_nvidia_smi(text) == version


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
    assert command in launch.compiler_remedy(system, release)


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
    answer = launch.pip_failure(output.splitlines())
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
    monkeypatch.setattr(launch, "WHEEL_INDEX", f"http://127.0.0.1:{server.port}/whl")
    assert launch.index_offers("cu124", version) is offers
    assert server.requests == ["/whl/cu124/llama-cpp-python/"]


def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INDEX_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(launch, "WHEEL_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/whl")
        assert launch.index_offers("cpu", "0.3.36") is None
    assert launch.index_offers("cpu", "0.3.36") is None  # now the connection is refused


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
    assert launch.running_page() is None
    note_page(server.port)
    assert launch.running_page() == f"http://127.0.0.1:{server.port}/"


def test_what_is_no_running_page(
    serve: Callable[..., Server], note_page: Callable[..., None], tmp_path: Path
) -> None:
    ours, other = serve(b"Headstart"), serve(b"Jupyter")
    note_page(ours.port, project=tmp_path)
    assert launch.running_page() is None
    note_page(other.port)
    assert launch.running_page() is None
    ours.close()
    note_page(ours.port)
    assert launch.running_page() is None
    (tmp_path / "running.json").write_text("[]", "utf-8")
    assert launch.running_page() is None
    (tmp_path / "running.json").write_text("{broken", "utf-8")
    assert launch.running_page() is None


def test_the_first_free_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        monkeypatch.setattr(launch, "FIRST_PORT", port)
        assert port < launch.choose_port(None) < port + 100
        with pytest.raises(SetupError, match=f"port {port} is in use; choose another with --port"):
            launch.choose_port(port)
    assert launch.choose_port(port) == port


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    first = launch.try_lock(path)
    assert first
    assert launch.try_lock(path) is None
    first.close()
    second = launch.try_lock(path)
    assert second
    second.close()


# Shortcuts


def test_the_linux_shortcut_quotes_twice() -> None:
    name, text = launch.shortcut("Linux", "/usr/bin/python3", '/home/m/Größe 100% "$x" \\y/launch.py')
    script = r'"/home/m/Größe 100%% \\"\\$x\\" \\\\y/launch.py"'
    assert name == "headstart.desktop"
    assert f'Exec="/usr/bin/python3" {script} --pause-on-error\n' in text
    assert "Terminal=true\n" in text


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_the_mac_shortcut_runs(tmp_path: Path) -> None:
    script = tmp_path / "it's a $HOME größe.py"
    script.write_text("import sys; print(sys.argv)", "utf-8")
    name, text = launch.shortcut("Darwin", sys.executable, str(script))
    shortcut = tmp_path / name
    shortcut.write_text(text, "utf-8")
    shortcut.chmod(0o755)
    assert name == "Headstart.command"
    done = subprocess.run([str(shortcut)], capture_output=True, encoding="utf-8", check=True)
    assert ast.literal_eval(done.stdout) == [str(script), "--pause-on-error"]


def test_the_windows_shortcut_doubles_percent_signs() -> None:
    name, text = launch.shortcut("Windows", r"C:\Program Files\Python\python.exe", r"D:\100% ü\launch.py")
    assert name == "Headstart.bat"
    assert text.splitlines()[-1] == (
        r'"C:\Program Files\Python\python.exe" "D:\100%% ü\launch.py" --pause-on-error'
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the desktop folder of XDG")
def test_the_shortcut_lies_on_the_desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert launch.write_shortcut().parent == tmp_path
    (tmp_path / "Desktop").mkdir()
    assert launch.write_shortcut().parent == tmp_path / "Desktop"
    (tmp_path / ".config").mkdir()
    (tmp_path / "Schreibtisch").mkdir()
    (tmp_path / ".config" / "user-dirs.dirs").write_text('XDG_DESKTOP_DIR="$HOME/Schreibtisch"\n', "utf-8")
    path = launch.write_shortcut()
    assert path == tmp_path / "Schreibtisch" / "headstart.desktop"
    assert os.access(path, os.X_OK)
    assert shlex.quote(str(PROJECT / "launch.py")) in path.read_text("utf-8")


# The whole set-up, with made-up packages


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
        for file in ("__init__.py", "core/__init__.py", "core/paths.py", "core/pins.py"):
            copy = self.folder / "app" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / "app" / file, copy)
        (self.folder / "app" / "backend").mkdir()
        (self.folder / "app" / "backend" / "__init__.py").touch()
        (self.folder / "app" / "backend" / "selfcheck.py").write_text("import llama_cpp_python\n")
        (self.folder / "app" / "__main__.py").write_text(
            "import apple, json, os, sys\n"
            "print(json.dumps([sys.argv[1:], os.getcwd(), apple.version]))\n"
            "sys.exit(7)\n"
        )
        text = (PROJECT / "launch.py").read_text("utf-8")
        index = '"https://abetlen.github.io/llama-cpp-python/whl"'
        assert index in text
        (self.folder / "launch.py").write_text(text.replace(index, '"http://127.0.0.1:9"'), "utf-8")
        self.pin("apple==1.0")

    def pin(self, apple: str) -> None:
        text = f'dependencies = [\n    "{apple}",\n    "llama-cpp-python==1.0",\n]\n'
        (self.folder / "pyproject.toml").write_text(text)

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / launch.VENV_PYTHON.relative_to(launch.VENV)

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

"""What doctor says of packages, devices and problems."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from app import doctor
from app.core.errors import HeadstartError
from app.core.models import Device, LlamaFacts

CPU = Device("CPU", "Some CPU", "cpu", 2**34, 2**35)
GPU = Device("CUDA0", "Some GPU", "gpu", 3 * 2**30, 2**33)
FACTS = LlamaFacts("0.3.36", "AVX2 = 1", (CPU,))


def test_packages_are_compared_with_their_pins() -> None:
    psutil, numpy = version("psutil"), version("numpy")
    requirements = [f"psutil=={psutil}", "pyyaml==0.1", "no-such-package==1.0"]
    good, other, missing = doctor.installed_packages(requirements)
    assert (good.installed, good.pinned) == (psutil, psutil)
    assert other.installed not in (None, "0.1")
    assert missing.installed is None
    for pins in ([f"numpy=={numpy}", "numpy==0.1"], ["numpy==0.1", f"numpy=={numpy}"]):
        (package,) = doctor.installed_packages([f"{pin}; python_version < '3.11'" for pin in pins])
        assert package == doctor.Package("numpy", numpy, numpy)


@pytest.mark.parametrize(
    ("devices", "driver", "words"),
    [
        ((CPU,), False, "all to the CPU"),
        ((CPU,), True, "--backend cuda"),
        ((CPU, GPU), True, "to CUDA0 as far as they fit (3.0 GiB free)"),
    ],
)
def test_where_the_layers_go(devices: tuple[Device, ...], driver: bool, words: str) -> None:
    assert words in doctor.where_layers_go(LlamaFacts("1", "", devices), driver)


def test_the_json_has_what_scripts_rely_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "llama_cpp_facts", lambda: FACTS)
    monkeypatch.setattr(doctor, "pinned", lambda text: [])
    assert doctor.main(json_output=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["problems"]) == (True, [])
    assert report["llama_cpp"]["devices"][0]["memory_total"] == 2**35
    assert {"python", "os", "cpu", "ram_bytes", "models_dir", "free_disk_bytes"} <= report.keys()


def test_what_is_broken_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> LlamaFacts:
        raise HeadstartError("it crashed")

    monkeypatch.setattr(doctor, "llama_cpp_facts", fail)
    monkeypatch.setattr(doctor, "pinned", lambda text: ["no-such-package==1.0"])
    assert doctor.main(json_output=False) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Problem")]
    assert len(problems) == 2
    assert "no-such-package is missing, not 1.0; remove" in problems[0]
    assert "llama.cpp does not run: it crashed; remove" in problems[1]

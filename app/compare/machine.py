"""The facts of this machine and of the models, kept with every comparison."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from app.compare.record import Column
from app.core.models import ModelFacts
from app.core.split import model_name, parts
from app.doctor import cpu_name
from app.library import cache, catalogue
from app.worker import tasks
from app.worker.machine import usable_cores


def facts(columns: Sequence[Column]) -> dict[str, Any]:
    """Processor, memory, devices, llama.cpp, threads, and each model with its hash where that is known.

    Memory in bytes; ``threads`` is what the first column runs on. A second or two, in helper processes.
    """
    llama = tasks.llama_cpp_facts()
    return {
        "os": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "logical_cores": os.cpu_count() or 1,
        "ram_bytes": psutil.virtual_memory().total,
        "threads": columns[0].load.threads or usable_cores(),
        "llama_cpp": {"version": llama.version, "features": llama.features},
        "devices": [dataclasses.asdict(device) for device in llama.devices],
        "models": _models(columns),
    }


def _models(columns: Sequence[Column]) -> list[dict[str, Any]]:
    paths = [column.load.target for column in columns[:1]]
    paths += dict.fromkeys(column.load.draft for column in columns if column.load.draft)
    paths = list(dict.fromkeys(paths))
    listed = {file.path: file for file in catalogue.list_models()}
    unknown = [path for path in paths if path not in listed]
    read = tasks.inspect_models(unknown) if unknown else {}
    return [
        _model(listed[path].name, path, listed[path].facts)
        if path in listed
        else _model(model_name(path), path, read[path])
        for path in paths
    ]


def _model(name: str, path: Path, known: ModelFacts | str | None) -> dict[str, Any]:
    model = known if isinstance(known, ModelFacts) else None
    return {
        "name": name,
        "path": str(path),
        "size_bytes": sum(part.stat().st_size for part in parts(path)),
        "architecture": model.architecture if model else None,
        "parameters": model.parameters if model else None,
        "quantization": model.quantization if model else None,
        "sha256": cache.recall(path, "sha256"),
    }

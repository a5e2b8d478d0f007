"""Made-up comparisons for the tests of app.compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.compare.record import Audit, Column, Comparison, Prompt, Row
from app.core.settings import LoadSettings, Mode, Request, SamplingSettings, SpeculationSettings
from app.core.stats import Stats

TARGET, DRAFT = Path("/models/target.gguf"), Path("/models/draft.gguf")
MACHINE: dict[str, Any] = {
    "os": "an OS",
    "cpu": "a processor",
    "threads": 2,
    "ram_bytes": 8 * 2**30,
    "devices": [],
    "llama_cpp": {"version": "1.2.3", "features": ""},
    "models": [
        {"name": "target", "path": str(TARGET), "quantization": "Q4_K_M", "parameters": 1_540_000_000},
        {"name": "draft", "path": str(DRAFT), "quantization": "Q4_K_M", "parameters": 494_000_000},
    ],
}


def column(
    name: str = "plain",
    mode: Mode = Mode.PLAIN,
    draft: Path | None = None,
    sampling: SamplingSettings | None = None,
    load: dict[str, Any] | None = None,
    max_tokens: int = 128,
    **speculation: Any,
) -> Column:
    return Column(
        name,
        LoadSettings(TARGET, draft, **load or {}),
        Request(
            (),
            max_tokens=max_tokens,
            sampling=sampling or SamplingSettings(),
            speculation=SpeculationSettings(mode, **speculation),
        ),
    )


PLAIN = column()
K4 = column("k4", Mode.DRAFT, DRAFT, n_draft=4)
LOOKUP = column("lk", Mode.LOOKUP, n_draft=10)
PROMPTS = (Prompt("c1", "code", "Write."), Prompt("e1", "edit", "Change."))


def comparison(
    columns: tuple[Column, ...] = (PLAIN, K4, LOOKUP),
    prompts: tuple[Prompt, ...] = PROMPTS,
    repeats: int = 1,
    runs: list[Row] | None = None,
) -> Comparison:
    return Comparison(
        "20260131-120000", "2026-01-31T12:00:00", MACHINE, columns, prompts, repeats, list(runs or ())
    )


def row(
    of: str = "plain",
    prompt: Prompt = PROMPTS[0],
    repeat: int = 0,
    speed: float | None = 10.0,
    verdict: str | None = None,
    **figures: Any,
) -> Row:
    return Row(
        of,
        prompt.id,
        prompt.category,
        repeat,
        output_ids=(1, 2),
        finish_reason="length",
        stats=Stats(tokens_per_s=speed, **figures),
        audit=Audit(verdict) if verdict else None,
        replay=((0.1, (("a", "accepted"), ("b", "rejected"))),),
    )

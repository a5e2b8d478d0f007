"""Counts in recorded traces how drafts fare by kind of task, for app/compare/acceptances.json.

    python tests/record_acceptances.py TRACES.jsonl.gz > app/compare/acceptances.json

Each answer is gone through twice in rounds: with the draft model's proposals, and with look-ups, always of
the same length. A round goes on behind the first token that is not the answer's own, as decoding does.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.core.lookup import NgramIndex
from app.core.settings import SpeculationSettings

DRAFTED, LOOKED_UP = 12, 31
WHAT = (
    "How drafts fared on the built-in workload with Qwen2.5-Coder 1.5B as the target and its 0.5B as the "
    "draft (both Q4_K_M, greedy): share of the rounds in which something was proposed, and how often the "
    "first, the first two, ... proposed tokens were all kept. 'draft': the 0.5B's; 'lookup': look-ups."
)


def record(traces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The file's content."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for trace in traces:
        kinds.setdefault(trace["category"], []).append(trace)
    return {
        "what": WHAT,
        **{
            source: {kind: _acceptance(rounds, group, length) for kind, group in kinds.items()}
            for source, rounds, length in (("draft", _drafted, DRAFTED), ("lookup", _looked_up, LOOKED_UP))
        },
    }


def _acceptance(
    rounds: Callable[[dict[str, Any]], Iterator[tuple[int, int]]],
    traces: Sequence[dict[str, Any]],
    length: int,
) -> dict[str, Any]:
    """From each round's proposed and kept tokens."""
    made = [one for trace in traces for one in rounds(trace)]
    drafts = [(proposed, kept) for proposed, kept in made if proposed]
    kept_at = [
        (sum(kept >= place for _, kept in drafts), sum(proposed >= place for proposed, _ in drafts))
        for place in range(1, length + 1)
    ]
    return {
        "share": round(len(drafts) / len(made), 2),
        "kept": [round(kept / proposed, 2) for kept, proposed in kept_at if proposed],
    }


def _drafted(trace: dict[str, Any]) -> Iterator[tuple[int, int]]:
    output, draft = trace["output"], [token for token, _ in trace["draft"]]
    place = 0
    while place < len(output):
        proposed = min(DRAFTED, len(output) - place - 1)
        kept = _agreeing(draft[place : place + proposed], output[place:])
        yield proposed, kept
        place += kept + 1


def _looked_up(trace: dict[str, Any]) -> Iterator[tuple[int, int]]:
    usual = SpeculationSettings()
    index = NgramIndex(usual.ngram_min, usual.ngram_max)
    text, output = list(trace["prompt"]), trace["output"]
    place = 0
    while place < len(output):
        index.extend(text)
        proposed = index.continuation(text, min(LOOKED_UP, len(output) - place - 1))
        kept = _agreeing(proposed, output[place:])
        yield len(proposed), kept
        text += output[place : place + kept + 1]
        place += kept + 1


def _agreeing(proposed: Sequence[int], output: Sequence[int]) -> int:
    pairs = enumerate(zip(proposed, output, strict=False))
    return next((place for place, (ours, right) in pairs if ours != right), len(proposed))


if __name__ == "__main__":
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
        found = record(map(json.loads, file))
    lists_on_one_line = re.sub(
        r"\[[^\]]*\]", lambda match: " ".join(match[0].split()), json.dumps(found, indent=1)
    )
    print(lists_on_one_line)

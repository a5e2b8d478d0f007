"""Prints how auto does against plain decoding, every fixed setting, hindsight, and the limit; not a test.

    python tests/benchmark_auto.py live q4|f16 [--kinds K ...] [--temperature 0] [--max-tokens 128]
    python tests/benchmark_auto.py replayed

Run it with .venv's Python on a machine that does nothing else. ``live`` runs one prompt a kind with some
settings, interleaved, in one child with the models loaded once; a row whose ``limit`` is far below 1 was
disturbed. ``replayed`` plays the recorded answers of all prompts (tests/traces) under costs measured now for
both targets, and under those of other machines. The F16 target is made by
``python launch.py models requantize qwen2.5-coder-1.5b-instruct-q4_k_m --type F16``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.backend.context import Context
from app.backend.llama import never_cancelled
from app.backend.model import Model
from app.compare.workloads import workload
from app.core.acceptance import Record
from app.core.costs import Costs, PassCosts
from app.core.paths import models_dir
from app.core.settings import (
    ChatMessage,
    LoadSettings,
    Mode,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from app.core.stats import Stats
from app.core.tokens import DraftSource
from app.worker.client import WorkerClient
from app.worker.machine import usable_cores
from app.worker.measured import measure
from app.worker.messages import Failed, Finished, RoundDone
from tests.simulator import MAX_TOKENS, TRACES, Replay, Setting, Trace, read, replay

DRAFT = models_dir() / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
TARGETS = {
    "q4": models_dir() / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "f16": models_dir() / "qwen2.5-coder-1.5b-instruct-f16.gguf",
}
PLAIN, AUTO = Setting("plain"), Setting("auto")
FIXED = (
    PLAIN,
    *(Setting("draft", k, p_min) for k in (2, 4, 8) for p_min in (0.0, 0.6)),
    *(Setting("lookup", k) for k in (4, 10, 31)),
)
# Live, every setting would take hours.
LIVE = (PLAIN, Setting("draft", 4), Setting("draft", 8, 0.6), Setting("lookup", 10), AUTO)


@dataclass
class Run:
    """One answer. Times in seconds."""

    tokens: int
    decode_s: float
    total_s: float
    other_s: float = 0.0  # of decode_s, in no pass and no draft
    rounds: list[tuple[int, int, int, float, float]] = field(default_factory=list)

    def observe(self, drafted: int, kept: int, by_model: int, draft_s: float, verify_s: float) -> None:
        """Add a round: drafted and kept ids, how many the model drafted, and what it took."""
        self.rounds.append((drafted, kept, by_model, draft_s, verify_s))

    def limit(self) -> float:
        """The speed reached, over what the same passes and steps allow at their usual time in this run."""
        times = defaultdict(list)
        for drafted, _, _, _, verify_s in self.rounds:
            times[drafted].append(verify_s)
        usual = {drafted: statistics.median(values) for drafted, values in times.items()}
        steps = [draft_s / by_model for _, _, by_model, draft_s, _ in self.rounds if by_model]
        step = statistics.median(steps) if steps else 0.0
        return (
            sum(usual[drafted] + step * by_model for drafted, _, by_model, *_ in self.rounds) / self.decode_s
        )

    def hindsight(self, costs: Costs) -> float:
        """The speed reached, over that of the same rounds, had each drafted what was kept, or nothing."""
        step = costs.draft(1) if costs.draft else 0.0
        taken = best = 0.0
        for drafted, kept, by_model, *_ in self.rounds:
            taken += costs.target(drafted + 1) + step * by_model
            kept_of_model = max(0, kept - (drafted - by_model))
            best += min(costs.target(kept + 1) + step * kept_of_model, (kept + 1) * costs.target(1))
        return best / taken


def report(title: str, runs: Mapping[tuple[str, str], Sequence[Run]], costs: Costs) -> None:
    """A line a kind, a column a setting; runs are paired by their place in the lists."""
    kinds = list(dict.fromkeys(kind for kind, _ in runs))
    names = [str(setting) for setting in (*FIXED, AUTO) if any(name == str(setting) for _, name in runs)]
    print(f"\n{title}\n{'decode speed / plain':20}" + "".join(f"{name:>13}" for name in names), end="")
    print(f"{'/ best':>9}{'total':>8}{'/ best':>8}{'lowest':>8}{'hindsight':>11}{'limit':>7}")

    def ratios(kind: str, name: str, part: str) -> list[float]:
        pairs = zip(runs[kind, "plain"], runs[kind, name], strict=True)
        return [
            (getattr(plain, part) / plain.tokens) / (getattr(run, part) / run.tokens) for plain, run in pairs
        ]

    def mean(kind: str, name: str, part: str = "decode_s") -> float:
        return statistics.geometric_mean(ratios(kind, name, part))

    for kind in kinds:
        speeds = [mean(kind, name) for name in names]
        totals = [mean(kind, name, "total_s") for name in names]
        auto = runs[kind, "auto"]
        lowest = min(ratios(kind, "auto", "decode_s") + ratios(kind, "auto", "total_s"))
        print(f"{kind:20}" + "".join(f"{speed:13.2f}" for speed in speeds), end="")
        print(
            f"{speeds[-1] / max(speeds[:-1]):9.2f}{totals[-1]:8.2f}{totals[-1] / max(totals[:-1]):8.2f}",
            end="",
        )
        print(f"{lowest:8.2f}{statistics.median(run.hindsight(costs) for run in auto):11.2f}", end="")
        print(f"{statistics.median(run.limit() for run in auto):7.2f}")
    everything = [
        statistics.geometric_mean(r for kind in kinds for r in ratios(kind, name, "decode_s"))
        for name in names
    ]
    totals = [
        statistics.geometric_mean(r for kind in kinds for r in ratios(kind, name, "total_s"))
        for name in names
    ]
    print(f"{'geometric mean':20}" + "".join(f"{value:13.2f}" for value in everything), end="")
    print(
        f"{everything[-1] / max(everything[:-1]):9.2f}{totals[-1]:8.2f}{totals[-1] / max(totals[:-1]):8.2f}",
        flush=True,
    )


def live(target: str, kinds: Sequence[str], temperature: float, max_tokens: int) -> None:
    """One prompt a kind, run with a few settings."""
    costs = Costs(costs_of(TARGETS[target], "target")[0], costs_of(DRAFT, "draft")[0])
    client = WorkerClient()
    load = LoadSettings(TARGETS[target], DRAFT)
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    try:
        answer(client, load, "Hello", AUTO, temperature, 16)  # loads, and measures the costs
        for prompt in workload("mixed"):
            if kinds and prompt.category not in kinds:
                continue
            for setting in LIVE:
                run = answer(client, load, prompt.prompt, setting, temperature, max_tokens)
                runs[prompt.category, str(setting)].append(run)
                print(f"{prompt.id} {setting}: {run.tokens / run.decode_s:.1f} tokens/s", file=sys.stderr)
    finally:
        client.close()
    report(
        f"{TARGETS[target].stem}, temperature {temperature:g}, up to {max_tokens} tokens, live", runs, costs
    )
    for name in (str(PLAIN), str(AUTO)):
        made = [run for (_, setting), some in runs.items() if setting == name for run in some]
        own = [1e3 * run.other_s / len(run.rounds) for run in made]
        spread = f"{min(own):.2f} to {max(own):.2f}"
        print(f"{name}: {statistics.median(own):.2f} ms a round outside of the models ({spread})")


def answer(
    client: WorkerClient,
    load: LoadSettings,
    prompt: str,
    setting: Setting,
    temperature: float,
    max_tokens: int,
) -> Run:
    """One answer of the child's, from empty caches."""
    request = Request(
        (ChatMessage("user", prompt),),
        max_tokens=max_tokens,
        fresh=True,
        sampling=SamplingSettings(temperature=temperature, seed=1),
        speculation=SpeculationSettings(Mode(setting.mode), setting.n_draft, setting.p_min),
    )
    run = Run(0, 0.0, 0.0)
    before = Stats()
    for batch in client.submit(load, request).batches(0.5):
        for message in batch:
            if isinstance(message, Failed):
                sys.exit(f"error: {message.what}")
            if isinstance(message, RoundDone):
                now = message.stats
                by_model = sum(token.source is DraftSource.MODEL for token in message.tokens)
                drafted, kept = now.drafted - before.drafted, now.accepted - before.accepted
                run.observe(
                    drafted, kept, by_model, now.draft_s - before.draft_s, now.verify_s - before.verify_s
                )
                before = now
            if isinstance(message, Finished):
                stats = message.stats
                run.tokens = stats.output_tokens
                run.decode_s, run.total_s = stats.decode_s or 0.0, stats.total_s or 0.0
                run.other_s = stats.other_s or 0.0
    return run


def replayed() -> None:
    """All recorded answers under this machine's costs and under others'."""
    traces = read(TRACES / "coder-greedy.jsonl.gz")
    draft, _ = costs_of(DRAFT, "draft")
    for target in TARGETS.values():
        if target.exists():
            measured, token_s = costs_of(target, "target")
            replay_all(
                f"{target.stem}, replayed under the costs measured now", traces, measured, draft, token_s
            )
    for c in (0.05, 0.1, 0.15):
        flat = PassCosts({1: 1.0, 16: 1.02, 32: 1.8})
        step = PassCosts({1: c, 32: 1.3 * c, 512: 4 * c})
        replay_all(f"like a GPU: flat to 16, a draft step {c:g}", traces, flat, step, 0.02)


def costs_of(path: Path, role: str) -> tuple[PassCosts, float]:
    """A model's costs, and the seconds that reading a prompt takes it a token."""
    model = Model(path)
    context = Context(model, 1024, 512, usable_cores(), never_cancelled())
    try:
        costs = measure(context, role)
        before = context.seconds
        context.extend([0] * 512, lambda done: None)
        print(path.stem, {n: f"{seconds * 1e3:.1f} ms" for n, seconds in sorted(costs.measured().items())})
        return costs, (context.seconds - before) / 512
    finally:
        context.close()
        model.close()


def replay_all(
    title: str, traces: Sequence[Trace], target: PassCosts, draft: PassCosts, token_s: float
) -> None:
    """Report every setting on every trace."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for setting in (*FIXED, AUTO):
        record = Record()
        for trace in traces:
            done: Replay = replay(trace, setting, Costs(target, draft), record)
            total = done.decode_s + done.prefill_s + token_s * len(trace.prompt)
            run = Run(len(trace.output), done.decode_s, total)
            for round_ in done.rounds:
                by_model = sum(source is DraftSource.MODEL for source in round_.sources)
                run.observe(len(round_.draft), round_.n_accepted, by_model, round_.draft_s, round_.verify_s)
            runs[trace.category, str(setting)].append(run)
    report(f"{title}; {len(traces)} answers of up to {MAX_TOKENS} tokens", runs, Costs(target, draft))


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("live", "replayed"))
    parser.add_argument("target", nargs="?", choices=TARGETS, default="q4")
    parser.add_argument("--kinds", nargs="*", default=(), help="of the workload; by default all")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    if args.what == "live":
        live(args.target, args.kinds, args.temperature, args.max_tokens)
    else:
        replayed()


if __name__ == "__main__":
    main()

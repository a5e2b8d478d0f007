"""Prints the figures that the README and the design promise; a script, not a test, since time is noisy.

    python tests/benchmark.py overhead|speed|memory|lookup|rollback [--repeats 3]

Run it with .venv's Python. Runs are interleaved in one process with the models loaded once, so a busy
machine slows both sides of a ratio alike. The F16 target is made by
``python launch.py models requantize qwen2.5-coder-1.5b-instruct-q4_k_m --type F16``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
from app.worker.client import WorkerClient
from app.worker.machine import usable_cores
from app.worker.messages import Failed, Finished

SMOL = models_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"
DRAFT = models_dir() / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
TARGET = models_dir() / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
TARGET_F16 = models_dir() / "qwen2.5-coder-1.5b-instruct-f16.gguf"

WRITE_CODE = (
    "Write a Python function that merges two sorted lists into one sorted list, with a docstring.",
    "Write a Python class for a bank account with deposit, withdraw and a history of transactions.",
    "Write a JavaScript function that validates an e-mail address and returns a clear message.",
    "Write a Python script that reads a CSV file and prints the average of every numeric column.",
)
STORE = '''class Store:
    """Keeps the items of a small shop."""

    def __init__(self, name, currency="EUR"):
        self.name = name
        self.currency = currency
        self.items = {}

    def add(self, item, price, count=1):
        """Add an item, or more of it."""
        if price < 0:
            raise ValueError("a price must not be negative")
        known_price, known_count = self.items.get(item, (price, 0))
        self.items[item] = (price, known_count + count)

    def remove(self, item, count=1):
        """Take an item out; the last one removes its line."""
        price, known_count = self.items[item]
        if count > known_count:
            raise ValueError("there are not that many")
        if count == known_count:
            del self.items[item]
        else:
            self.items[item] = (price, known_count - count)

    def total(self):
        """The value of everything in the shop."""
        return sum(price * count for price, count in self.items.values())

    def report(self):
        """One line an item, dearest first."""
        lines = []
        for item, (price, count) in sorted(self.items.items(), key=lambda entry: -entry[1][0]):
            lines.append(f"{item}: {count} x {price} {self.currency}")
        return "\\n".join(lines)
'''
CODE_ALONE = "and change nothing else. Answer with the code alone."
COPY_EDIT = (
    f"Rename the attribute `items` to `stock` everywhere {CODE_ALONE}\n\n{STORE}",
    f"Add type hints to every method {CODE_ALONE}\n\n{STORE}",
)


def answer(client: WorkerClient, load: LoadSettings, prompt: str, speculation: SpeculationSettings,
           sampling: SamplingSettings | None = None, max_tokens: int = 128) -> Stats:  # fmt: skip
    """The figures of one answer."""
    request = Request(
        (ChatMessage("user", prompt),),
        max_tokens=max_tokens,
        sampling=sampling or SamplingSettings(),
        speculation=speculation,
    )
    for batch in client.submit(load, request).batches(0.5):
        for message in batch:
            if isinstance(message, Failed):
                sys.exit(f"error: {message.what}")
            if isinstance(message, Finished):
                return message.stats
    raise AssertionError


def overhead(client: WorkerClient, repeats: int) -> None:
    """Time outside llama_decode, as a share of the decode time."""
    sampled = SamplingSettings(temperature=0.8, top_k=40)
    for name, load, modes in (
        ("1.5B Q4_K_M", LoadSettings(TARGET, DRAFT), (Mode.PLAIN, Mode.DRAFT, Mode.LOOKUP)),
        ("SmolLM2", LoadSettings(SMOL), (Mode.PLAIN, Mode.LOOKUP)),
    ):
        for label, sampling in (("greedy", SamplingSettings()), ("sampled top_k 40", sampled)):
            for mode in modes:
                stats = [
                    answer(
                        client, load, WRITE_CODE[turn % len(WRITE_CODE)], SpeculationSettings(mode), sampling
                    )
                    for turn in range(repeats)
                ]
                share = sum(run.other_s or 0 for run in stats) / sum(run.decode_s or 0 for run in stats)
                print(f"{name:12} {label:16} {mode.value:7} outside llama_decode {share:.1%}", flush=True)


def ratios(
    client: WorkerClient,
    load: LoadSettings,
    prompts: tuple[str, ...],
    columns: dict[str, SpeculationSettings],
    repeats: int,
    max_tokens: int,
) -> None:
    """Speed of each column over plain, paired by prompt and repeat."""
    speedups: dict[str, list[float]] = {name: [] for name in columns}
    passes: dict[str, list[float]] = {name: [] for name in columns}
    lengths: dict[str, list[float]] = {name: [] for name in columns}
    plain = SpeculationSettings()
    answer(client, load, prompts[0], plain, max_tokens=8)
    for _ in range(repeats):
        for prompt in prompts:
            base = answer(client, load, prompt, plain, max_tokens=max_tokens)
            for name, speculation in columns.items():
                stats = answer(client, load, prompt, speculation, max_tokens=max_tokens)
                speedups[name].append((stats.tokens_per_s or 0) / (base.tokens_per_s or 1))
                passes[name].append(stats.tokens_per_pass or 0)
                lengths[name].append(stats.mean_acceptance_length or 1)
    for name, values in speedups.items():
        print(
            f"{load.target.stem:36} {name:24} {statistics.median(values):.2f}x plain "
            f"({min(values):.2f} to {max(values):.2f}), {statistics.mean(passes[name]):.2f} tokens per pass, "
            f"mean acceptance length {statistics.mean(lengths[name]):.2f}",
            flush=True,
        )


def speed(client: WorkerClient, repeats: int) -> None:
    """The draft pair on code, with the quantised and with the F16 target."""
    columns = {f"draft K={k}": SpeculationSettings(Mode.DRAFT, k) for k in (2, 4, 8)}
    for target in (TARGET_F16, TARGET):
        ratios(client, LoadSettings(target, DRAFT), WRITE_CODE, columns, repeats, 128)


def lookup(client: WorkerClient, repeats: int) -> None:
    """Lookup on editing and on writing code, for several n-gram bounds and draft lengths."""
    columns = {
        f"lookup n={low}..{high} K={k}": SpeculationSettings(Mode.LOOKUP, k, 0.0, low, high)
        for low, high, k in ((1, 3, 10), (2, 4, 4), (2, 4, 10), (3, 5, 10), (3, 5, 20), (4, 6, 10))
    }
    for prompts in (COPY_EDIT, WRITE_CODE):
        ratios(client, LoadSettings(TARGET), prompts, columns, repeats, 256)


def memory(client: WorkerClient, repeats: int) -> None:
    """Peak resident memory of the child over what it holds once both models are loaded."""
    load = LoadSettings(TARGET, DRAFT)
    speculation = SpeculationSettings(Mode.DRAFT)
    answer(client, load, "Hello", speculation, max_tokens=1)
    child = psutil.Process(client.child_pid)
    loaded = peak = child.memory_info().rss
    prompt = "Summarise this code.\n\n" + STORE * 5
    request = Request((ChatMessage("user", prompt),), max_tokens=256, speculation=speculation)
    for batch in client.submit(load, request).batches(0.05):
        peak = max(peak, child.memory_info().rss)
        for message in batch:
            if isinstance(message, Finished):
                print(
                    f"{message.stats.prompt_tokens} prompt and {message.stats.output_tokens} output tokens: ",
                    end="",
                )
    print(f"loaded {loaded / 1e6:.0f} MB, peak {(peak - loaded) / 1e6:+.0f} MB")


def rollback(client: WorkerClient, repeats: int) -> None:
    """A checkpoint of a running state and a restore, beside passes of the same model of random weights."""
    sys.path.insert(0, str(Path(__file__).parent / "backend"))
    from tiny_gguf import TinyModel

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for architecture, n_embd, n_layer in (("mamba", 768, 24), ("jamba", 1024, 16), ("qwen35", 1024, 24)):
            TinyModel(architecture=architecture, n_embd=n_embd, n_layer=n_layer).write(path)
            time_rollback(path, architecture, repeats)


def time_rollback(path: Path, name: str, repeats: int) -> None:
    """Print one model's times."""
    from app.backend.context import Context
    from app.backend.llama import never_cancelled
    from app.backend.model import Model

    model = Model(path)
    context = Context(model, 1024, 512, usable_cores(), never_cancelled())
    context.extend(range(200), lambda done: None)
    steps = {
        "pass of 1": lambda: context.decode([1], 1),
        "checkpoint": lambda: context._memory.expect(32, len(context.ids)),
        "pass of 5": lambda: context.decode([1, 2, 3, 4, 5], 5),
        "restore": lambda: context.rewind(len(context.ids) - 5),
    }
    seconds: dict[str, list[float]] = {step: [] for step in steps}
    for _ in range(5 * repeats):
        for step, work in steps.items():
            started = time.perf_counter()
            work()
            seconds[step].append(time.perf_counter() - started)
    state = len(context._memory._before_draft.data)
    context.close()
    model.close()
    times = ", ".join(f"{step} {1e3 * statistics.median(taken):.2f} ms" for step, taken in seconds.items())
    print(f"{name} of {path.stat().st_size / 1e6:.0f} MB, state {state / 1e6:.1f} MB: {times}", flush=True)


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements = {function.__name__: function for function in (overhead, speed, memory, lookup, rollback)}
    parser.add_argument("what", choices=measurements)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    client = WorkerClient()
    started = time.perf_counter()
    try:
        measurements[args.what](client, args.repeats)
    finally:
        client.close()
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()

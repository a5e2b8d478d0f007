"""Records what a draft model would have proposed along real answers, for the simulator of Auto.

    python tests/record_traces.py TARGET DRAFT OUTPUT.jsonl.gz [--prompts F.jsonl] [--temperature 0]

Run it with .venv's Python; it takes some minutes. A line a prompt: ``prompt`` and ``output`` ids of a plain
run; ``draft`` has, for each output position, the id that the draft model proposes there and its largest
untransformed probability; ``astray`` has, for each position where that id is not the output's, the draft
model's own continuation behind it. With a temperature the draft's id is the output's with the chance that
speculative sampling would have kept it (the sum of the smaller of both probabilities).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.backend.chat import ChatFormat
from app.backend.context import Context
from app.backend.llama import never_cancelled
from app.backend.model import Model
from app.compare.record import Prompt
from app.compare.workloads import read_prompts, workload
from app.core.sampling import Distribution, softmax_prob, transform
from app.core.settings import ChatMessage, Request, SamplingSettings
from app.engine.generate import Answer, Vocabulary
from app.worker.machine import usable_cores

ASTRAY_LENGTH = 8
ROWS = 32


def main() -> None:
    """Record every prompt's line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=192)
    args = parser.parse_args()
    sampling = SamplingSettings(temperature=args.temperature, seed=1)
    recorder = Recorder(args.target, args.draft, sampling, args.max_tokens)
    prompts = read_prompts(args.prompts) if args.prompts else workload("all")
    with gzip.open(args.output, "wt", encoding="utf-8") as file:
        for number, prompt in enumerate(prompts, 1):
            started = time.perf_counter()
            trace = recorder.record(prompt)
            file.write(json.dumps(trace, separators=(",", ":")) + "\n")
            kept = sum(
                proposed[0] == token for proposed, token in zip(trace["draft"], trace["output"], strict=True)
            )
            print(
                f"{number}/{len(prompts)} {prompt.id}: {kept} of {len(trace['output'])} agree, "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )


class Recorder:
    """Both models, each with a cache of its own."""

    def __init__(self, target: Path, draft: Path, sampling: SamplingSettings, max_tokens: int) -> None:
        self._sampling, self._max_tokens = sampling, max_tokens
        self._rng = np.random.default_rng(7)
        self._target_model, self._draft_model = Model(target), Model(draft)
        self._format = ChatFormat(self._target_model)
        self._target, self._draft = (
            Context(model, 4096, 512, usable_cores(), never_cancelled())
            for model in (self._target_model, self._draft_model)
        )
        self._n_shared = min(self._target_model.n_vocab, self._draft_model.n_vocab)

    def record(self, prompt: Prompt) -> dict[str, Any]:
        """One prompt's line."""
        ids = self._format.prompt_ids((ChatMessage("user", prompt.prompt),))
        vocabulary = Vocabulary(self._target_model.piece, self._target_model.is_end, self._n_shared)
        request = Request((), max_tokens=self._max_tokens, sampling=self._sampling, fresh=True)
        answer = Answer(self._target, None, vocabulary, ids, request, time.perf_counter)
        for _ in answer.settled_rounds(lambda done, total: None):
            pass
        output = answer.output_ids
        drafts = self._along(self._draft, ids, output)
        if self._sampling.temperature:
            targets = self._along(self._target, ids, output)
            for place, (ours, theirs) in enumerate(zip(drafts, targets, strict=True)):
                if self._rng.random() < overlap(ours[2], theirs[2]):
                    drafts[place] = (output[place], ours[1], None)
                elif ours[0] == output[place]:
                    others = ours[2].ids[ours[2].ids != output[place]]
                    drafts[place] = (int(others[0]) if len(others) else -1, ours[1], None)
        astray = {
            place: self._continuation([*ids, *output[:place], proposed])
            for place, (proposed, *_) in enumerate(drafts)
            if proposed not in (output[place], -1) and not self._target_model.is_end(proposed)
        }
        return {
            "id": prompt.id,
            "category": prompt.category,
            "prompt": list(ids),
            "output": list(output),
            "draft": [(token, round(prob, 3)) for token, prob, _ in drafts],
            "astray": astray,
        }

    def _along(self, context: Context, prompt: Any, output: list[int]) -> list[tuple[int, float, Any]]:
        """For each output position the model's choice, its largest probability, and its distribution."""
        context.rewind(0)
        context.extend(prompt[:-1], lambda done: None)
        found: list[tuple[int, float, Any]] = []
        feed = [prompt[-1], *output[:-1]]
        for start in range(0, len(feed), ROWS):
            chunk = feed[start : start + ROWS]
            for row in context.decode(chunk, len(chunk)):
                row = row[: self._n_shared]
                best = int(row.argmax())
                spread = transform(row, self._sampling, ()) if self._sampling.temperature else None
                token = spread.draw(self._rng) if spread else best
                found.append((token, softmax_prob(row, best), spread))
        return found

    def _continuation(self, ids: list[int]) -> list[tuple[int, float]]:
        """What the draft model goes on with, off the target's path."""
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self._draft.ids, ids, strict=False))
        self._draft.rewind(min(sum(1 for _ in shared), len(ids) - 1))
        feed = ids[len(self._draft.ids) :]
        found = []
        for _ in range(ASTRAY_LENGTH):
            if len(feed) > 1:
                self._draft.extend(feed[:-1], lambda done: None)
            row = self._draft.decode(feed[-1:], 1)[0][: self._n_shared]
            best = int(row.argmax())
            found.append((best, round(softmax_prob(row, best), 3)))
            feed = [best]
        return found


def overlap(ours: Distribution, theirs: Distribution) -> float:
    """The chance that a token drawn from one distribution is kept by the other's acceptance rule."""
    pairs = zip(ours.ids, ours.probs, strict=True)
    return float(sum(min(prob, theirs.prob(int(token))) for token, prob in pairs))


if __name__ == "__main__":
    main()

"""``generate``: one answer on the command line, as coloured text, as events, or as one JSON object."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from app.core.errors import HeadstartError, UsageError
from app.core.settings import (
    KV_TYPES,
    ChatMessage,
    LoadSettings,
    Mode,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from app.core.split import parts
from app.core.text import harmless
from app.core.tokens import TokenEvent, TokenKind, round_source, sources_in_words
from app.library import catalogue, memory
from app.worker.client import Run, WorkerClient
from app.worker.messages import Failed, Finished, Loading, Measuring, Message, RoundDone, Started

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

INTERRUPTED = 130
POLL_S = 0.2
# As on the page: a colour and a second sign each.
COLOURS = {
    TokenKind.ACCEPTED: "\x1b[32m",
    TokenKind.RECOVERED: "\x1b[34;4m",
    TokenKind.BONUS: "\x1b[34m",
    TokenKind.REJECTED: "\x1b[31;9m",
    TokenKind.DISCARDED: "\x1b[90;9m",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add ``generate`` to the command line."""
    parser = subparsers.add_parser("generate", help="answer one prompt")
    parser.add_argument("--target", required=True, help="a GGUF file, or a name that `models list` shows")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="the prompt")
    prompt.add_argument("--prompt-file", type=Path, help="a text file (UTF-8) with the prompt")
    parser.add_argument("--system", help="a system prompt")
    parser.add_argument("--raw", action="store_true", help="no chat template; special tokens are parsed")
    add_run_arguments(parser)
    modes = [mode.value for mode in Mode]
    parser.add_argument(
        "--mode",
        choices=modes,
        help="default: draft with --draft, else plain; auto chooses in each round between all of these, by "
        "what passes cost here and how drafts fare",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    output.add_argument("--events", action="store_true", help="print a JSON event a line as it happens")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say how to answer, with the defaults of core.settings."""
    speculation, sampling, load = SpeculationSettings(), SamplingSettings(), LoadSettings(Path())
    group = parser.add_argument_group("speculation")
    group.add_argument("--draft", help="the draft model, as --target, for modes draft and auto")
    group.add_argument(
        "--n-draft", type=int, default=speculation.n_draft, help="tokens proposed a round (auto decides)"
    )
    group.add_argument(
        "--p-min", type=float, default=speculation.p_min, help="mode draft stops below this probability"
    )
    group.add_argument(
        "--ngram-min", type=int, default=speculation.ngram_min, help="shortest n-gram of mode lookup"
    )
    group.add_argument(
        "--ngram-max", type=int, default=speculation.ngram_max, help="longest n-gram of mode lookup"
    )
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, default=256)
    group.add_argument(
        "--stop", action="append", default=[], help="end the answer before this text; repeatable"
    )
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
                 "frequency_penalty", "repeat_last_n", "seed"):  # fmt: skip
        default = getattr(sampling, name)
        group.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    group = parser.add_argument_group("loading")
    group.add_argument("--n-ctx", type=int, default=load.n_ctx, help="context in tokens")
    group.add_argument("--n-batch", type=int, default=load.n_batch, help="prompt tokens a pass")
    group.add_argument("--threads", type=int, help="default: the physical cores this process may use")
    group.add_argument("--gpu-layers", type=int, help="default: all that fit")
    group.add_argument("--draft-gpu-layers", type=int, help="default: all that fit")
    for role in ("", "draft-"):
        for part in "kv":
            group.add_argument(f"--{role}cache-type-{part}", choices=KV_TYPES, default="f16")


def load_settings(args: argparse.Namespace) -> LoadSettings:
    """The models that the arguments name, resolved. Raises HeadstartError where one cannot be found."""
    mode = chosen_mode(args)
    if mode is Mode.DRAFT and not args.draft:
        raise UsageError("mode draft needs a draft model; name one with --draft")
    fields = {field.name for field in dataclasses.fields(LoadSettings)} - {"target", "draft"}
    return LoadSettings(
        target=catalogue.resolve(args.target),
        draft=catalogue.resolve(args.draft) if args.draft and mode in (Mode.DRAFT, Mode.AUTO) else None,
        **{name: getattr(args, name) for name in fields},
    )


def chosen_mode(args: argparse.Namespace) -> Mode:
    """The mode asked for, or the one that the arguments imply."""
    return Mode(args.mode) if args.mode else Mode.DRAFT if args.draft else Mode.PLAIN


def build_request(args: argparse.Namespace, messages: Sequence[ChatMessage]) -> Request:
    """The request that the arguments describe. Raises UsageError for a value out of range."""
    sampling = {field.name: getattr(args, field.name) for field in dataclasses.fields(SamplingSettings)}
    return Request(
        messages=tuple(messages),
        raw=args.raw,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
        sampling=SamplingSettings(**sampling),
        speculation=SpeculationSettings(
            chosen_mode(args), args.n_draft, args.p_min, args.ngram_min, args.ngram_max
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Answer the prompt. Returns the exit status; raises HeadstartError where it cannot be answered."""
    if args.raw and args.system:
        raise UsageError("a raw prompt has no system prompt; leave out --system, or --raw")
    system = [ChatMessage("system", args.system)] if args.system else []
    request = build_request(args, [*system, ChatMessage("user", _prompt(args))])
    load = load_settings(args)
    memory.warn(load)
    show: _Text | _Events = _Text() if not (args.json or args.events) else _Events(print_each=args.events)
    client = WorkerClient()
    try:
        answer = client.submit(load, request)
        _cancel_on_ctrl_c(answer)
        finished = _follow(answer, show)
    except HeadstartError:
        if args.debug:
            print(harmless(client.log_tail()), file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # closing is quick, and must not be cut short
        client.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(show, _Text):
        show.end(finished)
    else:
        result = _result(args, load, request, finished, show.tokens)
        _print_json({"event": "end", **result} if args.events else result)
    return INTERRUPTED if finished.finish_reason == "cancelled" else 0


def _cancel_on_ctrl_c(answer: Run) -> None:
    """The first one ends the answer, a second one the program."""

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        answer.cancel()

    signal.signal(signal.SIGINT, cancel)


def _follow(answer: Run, show: _Text | _Events) -> Finished:
    """Show each message as it comes and return the last."""
    is_told = False
    for batch in answer.batches(POLL_S):
        if answer.silence and not is_told:
            print(f"\n{answer.silence}", file=sys.stderr)
        is_told = bool(answer.silence)
        for message in batch:
            show.take(message)
            if isinstance(message, Finished):
                return message
            if isinstance(message, Failed):
                _raise(message)
    raise HeadstartError("the run ended without a result", "try again")


def _raise(failed: Failed) -> None:
    kind = UsageError if failed.usage else HeadstartError
    remedy = "try again, or see llama.cpp's log with --debug" if failed.child_died else failed.remedy
    raise kind(failed.what, remedy)


class _Text:
    """Streams the answer's text; coloured, with the rejected tokens where they fell, on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._colours = self._terminal and not os.environ.get("NO_COLOR")
        self._status = sys.stderr.isatty()
        self._progress = ""
        self._sources: Counter[str] = Counter()  # of auto's rounds

    def take(self, message: Message) -> None:
        """Show one message."""
        if self._status:
            progress = ""
            if isinstance(message, Loading):
                progress = f"loading {message.name} {message.fraction:4.0%}"
            if isinstance(message, Measuring):
                progress = f"measuring how fast {message.name} is here, once"
            if progress != self._progress:
                print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
            self._progress = progress
        if isinstance(message, RoundDone):
            if message.choice:
                self._sources[round_source(message.tokens)] += 1
            print("".join(self._coloured(token) for token in message.tokens), end="", flush=True)

    def end(self, finished: Finished) -> None:
        """The answer is over: a line of figures on a terminal."""
        print(flush=True)
        stats = finished.stats
        if not self._status or not stats.tokens_per_s:
            return
        parts = [f"{stats.output_tokens} tokens", f"{stats.tokens_per_s:.1f} tokens/s"]
        if finished.plain_tokens_per_s and stats.drafted:
            parts.append(f"{stats.tokens_per_s / finished.plain_tokens_per_s:.2f}x plain (estimate)")
        if stats.acceptance_rate is not None:
            parts.append(f"{stats.acceptance_rate:.0%} accepted")
        if self._sources:
            parts.append(f"rounds: {sources_in_words(self._sources)}")
        if stats.cached_tokens:
            parts.append(f"{stats.cached_tokens} prompt tokens from the cache")
        print(" · ".join(parts), file=sys.stderr)

    def _coloured(self, token: TokenEvent) -> str:
        if not self._colours and not token.kind.is_output:
            return ""
        text = harmless(token.text) if self._terminal else token.text
        if not token.kind.is_output:
            text = text.replace("\n", "\u21b5")
        colour = COLOURS.get(token.kind, "") if self._colours else ""
        return f"{colour}{text}\x1b[0m" if colour and text else text


class _Events:
    """Keeps the tokens, and prints an event a line when asked to."""

    def __init__(self, print_each: bool) -> None:
        self.tokens: list[TokenEvent] = []
        self._print_each = print_each

    def take(self, message: Message) -> None:
        """Keep one message's tokens, and print its event."""
        if isinstance(message, RoundDone):
            self.tokens += message.tokens
        if not self._print_each:
            return
        if isinstance(message, Started):
            _print_json(
                {"event": "start", "prompt_ids": message.prompt_ids, "cached_tokens": message.cached_tokens}
            )
        if isinstance(message, RoundDone):
            tokens = [dataclasses.asdict(token) for token in message.tokens]
            _print_json({"event": "round", "round": message.round, "tokens": tokens, "t": message.t})


def _result(
    args: argparse.Namespace,
    load: LoadSettings,
    request: Request,
    finished: Finished,
    tokens: Sequence[TokenEvent],
) -> dict[str, Any]:
    """The --json object."""
    hidden = ("command", "json", "events", "debug", "prompt", "prompt_file")
    settings = {name: value for name, value in vars(args).items() if name not in hidden}
    mode = request.speculation.mode
    return {
        "schema": 1,
        "mode": mode,
        "target": _model(load.target),
        "draft": _model(load.draft) if load.draft else None,
        "settings": {**settings, "mode": mode},
        "prompt_ids": finished.prompt_ids,
        "output_ids": finished.output_ids,
        "text": finished.text,
        "finish_reason": finished.finish_reason,
        "tokens": [dataclasses.asdict(token) for token in tokens],
        "stats": dataclasses.asdict(finished.stats),
    }


def _model(path: Path) -> dict[str, Any]:
    size = sum(part.stat().st_size for part in parts(path))
    return {"name": catalogue.name_of(path), "path": str(path), "size_bytes": size}


def _print_json(value: dict[str, Any]) -> None:
    # A terminal could be steered by characters that JSON leaves as they are.
    print(json.dumps(value, ensure_ascii=sys.stdout.isatty(), default=str), flush=True)


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return str(args.prompt)
    try:
        return str(args.prompt_file.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read the prompt file {args.prompt_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the prompt file {args.prompt_file} is not UTF-8 text; save it as UTF-8") from None

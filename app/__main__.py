"""The command line: ``python -m app [gui|generate|compare|models|doctor] …``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from app.core.errors import HeadstartError, UsageError

FAILED, WRONG_USAGE = 1, 2
TEXTS = ("--prompt", "--system", "--stop")  # whatever follows is a text, even where it looks like a flag


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see '{self.prog} --help'")


def parser() -> argparse.ArgumentParser:
    """The whole command line. A command's modules are imported only when it runs or asks for help."""
    from app import generate
    from app.compare import commands as compare
    from app.drafts import commands as drafts
    from app.library import commands

    top = _Parser(
        prog="launch.py", description="Speculative decoding on your own machine, shown token by token."
    )
    top.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers: Any = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    gui = subparsers.add_parser("gui", help="the page in the browser (the default)")
    gui.add_argument("--port", type=int, default=7860)
    gui.add_argument("--no-browser", action="store_true", help="do not open a browser")
    generate.add_parser(subparsers)
    compare.add_parser(subparsers)
    drafts.add_parsers(commands.add_parser(subparsers))
    doctor = subparsers.add_parser("doctor", help="what this machine has, and what is broken")
    doctor.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return top


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if args.command == "generate":
        from app import generate

        return generate.run(args)
    if args.command == "compare":
        from app.compare import commands as compare

        return compare.run(args)
    if args.command == "models":
        from app.drafts import commands as drafts
        from app.library import commands

        return drafts.run(args) if args.models_command in drafts.COMMANDS else commands.run(args)
    if args.command == "doctor":
        from app import doctor

        return doctor.main(args.json)
    from app import ui

    return ui.main(args.port, not args.no_browser)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn every failure into one line on standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a redirected Windows console writes another encoding
            stream.reconfigure(encoding="utf-8", errors="replace")
    arguments = _texts_joined(arguments)
    debug = "--debug" in arguments
    try:
        rest = [argument for argument in arguments if argument != "--debug"]
        return run(parser().parse_args(rest or ["gui"], argparse.Namespace(debug=debug)))
    except HeadstartError as error:
        if debug:
            raise
        _print_error(str(error))
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        _print_error(f"{type(error).__name__}: {error}; run again with --debug for details")
        return FAILED


def _texts_joined(arguments: list[str]) -> list[str]:
    """The arguments with each text in one with its flag."""
    joined: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        text = next(rest, None) if argument in TEXTS else None
        joined.append(argument if text is None else f"{argument}={text}")
    return joined


def _print_error(text: str) -> None:
    """One line, whatever the text; a part of it may come from a stranger's model file."""
    print("error:", "".join(c if c.isprintable() else " " for c in text), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

"""The ``distgnn`` command: each command is a module with ``HELP``, ``add_arguments(parser)``, ``run(args)``.

Commands import MPI and NumPy inside ``run``, so that ``--help`` answers at once and, alone, without MPI.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import IO, Any, NoReturn

from distgnn import __version__, terminal
from distgnn.cli import completion, config, in_force, output, suggest
from distgnn.cli.values import AddedUp
from distgnn.comm import launch
from distgnn.errors import UserError
from distgnn.terminal import printable

#: In the order in which ``--help`` shows them.
COMMANDS = (
    "demo", "generate", "prepare", "info", "plan", "train", "predict", "export", "report", "calibrate",
    "compile", "bench", "algorithms",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command on every rank of the job, once all ranks agree on what that is.

    Returns:
        0 done, 1 failed or not printed (a closed pipe), 2 bad usage or input, of which rank 0 printed one
        line, 75 for a training that was asked to stop. Any other exception is a bug; the abort hook then ends
        all ranks with exit code 1.

    Raises:
        SystemExit(0): after ``--help`` and ``--version``.
    """
    launch.begin()
    origins = config.Origins()
    try:
        launch.check_start()
        args = agreed(sys.argv[1:] if argv is None else argv, origins)
        with output.opened(args):
            code = command_module(args.command).run(args)
        return code or int(terminal.lost())
    except UserError as error:
        words = sys.argv[1:] if argv is None else argv
        own = command_parser(words[0]) if words and words[0] in COMMANDS else None
        return launch.leave(origins.explain(error, map(command_parser, COMMANDS), own))
    except RuntimeError as error:
        if not launch.no_library(error):
            raise
        return launch.leave(UserError(launch.NO_LIBRARY))


def agreed(argv: Sequence[str], origins: config.Origins) -> argparse.Namespace:
    """Run :func:`parse` so that all ranks of the job have the same outcome: settings, help, or an error.

    Collective. Raises on every rank: DisagreementError where ranks differ in what is compared here, in their
    code or in their environment. Else prints help, warns, and raises as `parse` does.
    """
    outcome: argparse.Namespace | Help | UserError
    try:
        outcome = parse(argv, origins)
    except (Help, UserError) as error:
        outcome = error
    world = launch.ranks()
    if world is not None:
        from distgnn.comm.agree import agree
        from distgnn.comm.facts import process
        from distgnn.comm.watched import watched

        sources = {f"--{name}": by for name, by in origins.sources.items()}
        agree(watched(world), process() | facts(outcome), sources)
    if launch.is_first():
        if isinstance(outcome, Help):
            terminal.show(outcome.text.removesuffix("\n"))
        for line in origins.warnings:
            terminal.show(f"distgnn: warning: {printable(line)}", error=True)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def facts(outcome: argparse.Namespace | Help | UserError) -> dict[str, Any]:
    """Return the facts of a command line that ranks compare."""
    if isinstance(outcome, Help):
        return {"the command": f"{outcome}"}
    if isinstance(outcome, UserError):
        return {"the command": f"refused ({outcome})"}
    facts_of_command, module = {"the command": outcome.command}, command_module(outcome.command)
    inputs = module.inputs(outcome) if hasattr(module, "inputs") else {}
    return facts_of_command | config.facts(command_parser(outcome.command), outcome) | inputs


def parse(argv: Sequence[str], origins: config.Origins | None = None) -> argparse.Namespace:
    """Parse the command line with environment and ``--config`` file filled in.

    ``.command`` is the command's name.

    Puts into `origins` where settings come from, and warnings of what is not taken from there.

    Raises:
        UserError: bad usage. Help: the text that ``--help`` or ``--version`` asks for.
    """
    if not argv or argv[0] not in COMMANDS:
        return overview().parse_args(argv)  # help, version, completion, or a complaint
    name, words = argv[0], argv[1:]
    parser = command_parser(name)
    applied = config.apply(parser, name, words, os.environ, COMMANDS)
    if "--print-config" in words:
        return printed(parser, name, words, applied)
    args = parser.parse_args(words, argparse.Namespace(command=name))
    if origins is not None:
        origins.sources = applied.sources
        unknown = config.unknown_variables(os.environ, map(command_parser, COMMANDS))
        origins.warnings = [*unknown, *applied.warnings]
    return args


def printed(parser: Parser, name: str, words: Sequence[str], applied: config.Origins) -> NoReturn:
    """Raise the text of the settings in force, for which nothing need be given, as Help."""
    for action in parser._actions:
        action.required = False
        action.nargs = action.nargs if action.option_strings else "?"
    args, module = parser.parse_args(words, argparse.Namespace(command=name)), command_module(name)
    filled = vars(module.settings(args)) if hasattr(module, "settings") else {}
    sources = dict.fromkeys(applied.given, "command line") | applied.sources
    text = in_force.written(parser, vars(args), filled, sources, config.not_in_files(name))
    head = f"# {parser.prog}: what is not given follows from other settings, the store or the ranks"
    raise Help(f"the settings of {parser.prog}", f"{head}\n{text}")


def command_parser(name: str) -> Parser:
    """Make the parser of one command, with its defaults."""
    return completed(Parser(prog=f"distgnn {name}", description=command_module(name).HELP), name)


def completed(parser: Parser, name: str) -> Parser:
    """Give a parser the arguments of a command."""
    command_module(name).add_arguments(parser)
    output.add_options(parser)
    config.add_option(parser)
    return parser


def overview() -> Parser:
    """Make the parser that knows all commands by name, for ``distgnn --help``."""
    about = "Train graph neural networks over MPI with interchangeable distributed sparse products."
    order = "Flags win over environment variables (DISTGNN_WEIGHT_DECAY for --weight-decay), those over the "
    codes = "--config file. Exit codes: 0 done, 2 bad usage or input, 1 failed, 75 training asked to stop."
    parser = Parser(prog="distgnn", description=about, epilog=order + codes)
    parser.add_argument("--version", action="version", version=f"distgnn {__version__}")
    text = "print a script for bash, zsh, fish or another shell that completes flags, and end"
    parser.add_argument("--print-completion", action=Completion, metavar="SHELL", help=text)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        commands.add_parser(name, help=command_module(name).HELP)
    return parser


class Completion(argparse.Action):
    """The flag that prints a script of completion."""

    def __call__(self, parser: Any, namespace: Any, shell: Any, flag: Any = None) -> NoReturn:
        if shell not in completion.shells():
            parser.error(f"{flag} {shell}: expected one of {', '.join(completion.shells())}")
        commands = next(action for action in parser._actions if isinstance(action.choices, dict))
        for name, command in commands.choices.items():
            completed(command, name)
        raise Help(parser.prog, completion.script(parser, shell))


def command_module(name: str) -> ModuleType:
    """Return the module of a command."""
    return importlib.import_module(f"distgnn.cli.{name}")


class Formatter(argparse.HelpFormatter):
    """Appends a flag's default to its help, and leaves lines of longer texts as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text.strip() if "\n" in text else super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, value = action.help, action.default
        switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
        untold = value is None or value is False or value in (argparse.SUPPRESS, [])
        if text is None or not action.option_strings or "default" in text or switch or untold:
            return text
        return f"{text} (default: {_as_typed(action, value).replace('%', '%%')})"


def _as_typed(action: argparse.Action, value: Any) -> str:
    """Write a value as on the command line."""
    if isinstance(value, (list, tuple)):
        return (" " if action.nargs else ",").join(_as_typed(action, part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


class Help(SystemExit):
    """The text that a command line asks for with ``--help`` or ``--version``; exit code 0."""

    def __init__(self, prog: str, text: str) -> None:
        super().__init__(0)
        self.prog, self.text = prog, text

    def __str__(self) -> str:
        return f"help on {self.prog}"


class Parser(argparse.ArgumentParser):
    """Raises UserErrors, and Help where it would print that."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **settings)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -3,2 is a value, which its flag refuses

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; a flag given twice is refused, unless it adds up."""
        given: list[argparse.Action] = []
        words = [*(args or ())]
        for word in words[: [*words, "--"].index("--")]:
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is None or isinstance(action, AddedUp | argparse._CountAction):
                continue
            if action in given:
                self.error(f"{word.partition('=')[0]} is given twice")
            given.append(action)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}{suggest.hint(self, message)}; see {self.prog} --help")

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:  # type: ignore[override]
        raise Help(self.prog, message)

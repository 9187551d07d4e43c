"""Settings of a command: a flag wins over ``DISTGNN_FLAG_NAME``, that over a TOML file, that over a default.

A file names no output, and neither it nor the environment lets one be replaced (``--force``).

A value from the environment or the file goes through the flag's own type and choices and becomes its default.
An unknown name is an error in a file and a warning in the environment, which other programs use too.
"""

from __future__ import annotations

import copy
import re
from argparse import SUPPRESS, Action, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distgnn.cli.values import SWITCH
from distgnn.errors import ArgumentError, DisagreementError, UserError, did_you_mean
from distgnn.files.text import read_toml

#: Variables DISTGNN_NAME that are read beside those of the flags: for kernels, MPI and tests.
_NAMES = ("backend", "config", "cuda-aware", "emulation-cache", "host-isa", "init-timeout", "nccl", "spmm",
          "spmm-tune", "stall", "transport")  # fmt: skip

#: Settings for some algorithms only: these, or (none) the one that was chosen where they are set.
_HOME = {"grid": (), "replication": ("1.5d",), "sparsity-aware": ("1d", "1.5d", "rdm"),
         "block-rows": ("1.5d", "3d")}  # fmt: skip

#: Settings for the command line alone: files come from strangers, and an environment outlives its purpose.
_ALONE = ("force",)
#: Files that a command writes or replaces, for the command line and the environment, by command or for all.
_OUTPUTS = {"train": ("checkpoint", "log", "resume", "trace"), "report": ("figure", "out", "table"),
            "plan": ("out", "svg"), "": ("log-dir", "out")}  # fmt: skip

Words = Sequence[str]
Layer = dict[str, tuple[Any, str]]  # flag name -> value, file or variable that says it


#: Settings in which ranks may differ. All others must be the same everywhere, or ranks wait for each other,
#: or compute something that was not asked for.
MAY_DIFFER = {
    "config": "what the files say is compared, and a node may have its own",
    "store": "a node may have its own copy; training compares what the manifests say, info asks one rank",
    "quiet": "one rank prints",
    "verbose": "one rank prints",
    "log_dir": "each rank writes a file of its own",
}


def facts(parser: ArgumentParser, args: Namespace) -> dict[str, str]:
    """Return the settings that all ranks must share, by flag."""
    named: dict[str, str] = {}
    for action in parser._actions:
        if action.dest not in ("help", "print_config", *MAY_DIFFER) and action.dest not in named:
            flag = next((option for option in action.option_strings if option.startswith("--")), None)
            named[action.dest] = flag or str(action.metavar or action.dest)
    return {name: _shown(getattr(args, dest)) for dest, name in named.items()}


def _shown(value: Any) -> str:
    """Write a setting for an error: the word for a switch, the typed text for others."""
    words = {None: "not given", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else flag_text(value)


def add_option(parser: ArgumentParser) -> None:
    """Give a command its ``--config FILE``."""
    text = "TOML file with settings named like the flags, at top level or in a table named like the command"
    parser.add_argument("--config", metavar="FILE", help=text)
    text = "print the settings in force and where each comes from, as a file for --config, and end"
    parser.add_argument("--print-config", action="store_true", default=SUPPRESS, help=text)


def apply(
    parser: ArgumentParser, command: str, argv: Words, environ: Mapping[str, str], commands: Words
) -> Origins:
    """Make what the ``--config`` file and the environment say the defaults of `parser`.

    Args:
        command: the parser's, one of `commands`; the file's tables for the others are left alone.
        argv: the words after the command.

    Raises:
        UserError: unreadable file, unknown key, or a value that the flag refuses; names the file or variable.
    """
    flags = settable(parser)
    given = _given(parser, flags, argv)
    path = given.pop("config", environ.get("DISTGNN_CONFIG"))
    from_file = _read(path, command, commands, flags) if path else {}
    for name in sorted(from_file.keys() & not_in_files(command)):
        problem = f"a file can't say what is written or replaced; give --{name} on the command line"
        raise UserError(f"{path}: {name}: {problem}")
    for variable in (_variable(name) for name in _ALONE if name in flags):
        if variable in environ:
            raise UserError(f"{variable}: is for the command line alone; unset it, and give --force there")
    variables = {name: _variable(name) for name in flags if _variable(name) in environ}
    layers = [from_file, {name: (environ[variable], variable) for name, variable in variables.items()}]
    origins = Origins(warnings=_leave_out_other_algorithms(layers, given))
    origins.given = {name for name, action in flags.items() if action.dest in given}
    for layer in layers:
        said: dict[str, str] = {}
        for name, (value, source) in layer.items():
            action = flags[name]
            if (other := said.setdefault(action.dest, name)) != name:
                raise UserError(f"{source}: {other} and {name} are one setting; give one of them")
            parser.set_defaults(**{action.dest: _convert(parser, action, value, source)})
            action.required = False
            if action.dest not in given:
                origins.sources[name] = source
    return origins


def not_in_files(command: str) -> set[str]:
    """Return the flags of a command that a file may not have."""
    return {*_ALONE, *_OUTPUTS[""], *_OUTPUTS.get(command, ())}


@dataclass
class Origins:
    """Sources of settings.

    Attributes:
        sources: flag name -> file or variable that set it. given: flags of the command line.
        warnings: a line about each setting that was not taken.
    """

    sources: dict[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def explain(
        self, error: UserError, parsers: Iterable[ArgumentParser] = (), own: ArgumentParser | None = None
    ) -> UserError:
        """Rewrite an error in the words of the command line, with the source of a setting that is no flag.

        Arguments become flags, also in advice such as ``force=True``, where they are flags of `parsers`;
        those that the command of the parser `own` takes by place have no dashes.
        """
        names: dict[str, str] = {}
        for flags in map(settable, parsers):
            names = {action.dest: name for name, action in reversed(flags.items())} | names

        def flag(match: re.Match[str]) -> str:
            name, value = match[1], match[2]
            return typed(names[name], value) if name in names else match[0]

        if not isinstance(error, ArgumentError) or isinstance(error, DisagreementError):
            return UserError(_ADVICE.sub(flag, str(error)))
        name = names.get(error.argument, error.argument.replace("_", "-"))
        places = [] if own is None else [action for action in own._actions if not action.option_strings]
        place = next((action.metavar for action in places if action.dest == error.argument), None)
        setting = typed(name, error.value) if place is None else f"{place} {error.value}"
        text = f"{setting}:{_ADVICE.sub(flag, f' {error.problem}')}"
        source = self.sources.get(name)
        return UserError(text if source is None else f"{text} (--{name} is set by {source})")


#: A setting within the text of an error, but not within a path.
_ADVICE = re.compile(r"(?<=[\s(])([a-z_]+)=([^\s;()]*[^\s;(),.:])")


def typed(name: str, value: Any) -> str:
    """Write a setting as on the command line."""
    if str(value) in ("True", "None"):  # words, where the error comes from another rank
        return f"--{name}"
    return f"--no-{name.removeprefix('no-')}" if str(value) == "False" else f"--{name} {flag_text(value)}"


def unknown_variables(environ: Mapping[str, str], parsers: Iterable[ArgumentParser]) -> list[str]:
    """Write a line about each DISTGNN_ variable that neither a flag of a command nor anything else reads."""
    known = {*map(_variable, _NAMES), *(_variable(name) for parser in parsers for name in settable(parser))}
    unknown = sorted(name for name in environ if name.startswith("DISTGNN_") and name not in known)
    hints = {name: did_you_mean(name, known) for name in unknown}
    return [f"{name}: no command has a flag of this name{hint}" for name, hint in hints.items()]


def _leave_out_other_algorithms(layers: list[Layer], given: Mapping[str, Any]) -> list[str]:
    """Drop from file and environment what is for another algorithm than the one chosen in a place above them;
    returns a line about each.
    """
    samplers = [given.get("sampler"), *(layer["sampler"][0] for layer in layers if "sampler" in layer)]
    chosen = ["1.5d" if set(samplers) - {None, "none", "vertices"} else "1d"]  # train's default
    for layer in layers:
        chosen.append(layer["algorithm"][0] if "algorithm" in layer else chosen[-1])
    final, lines = given.get("algorithm", chosen[-1]), []
    for index, layer in enumerate(layers):
        above = "algorithm" in given or any("algorithm" in other for other in layers[index + 1 :])
        for name in [name for name in _HOME if above and name in layer]:
            homes = _HOME[name] or (chosen[index + 1],)
            if final not in homes:
                _, source = layer.pop(name)
                left_out = f"is for algorithm {' and '.join(homes)} and is left out, as {final} was chosen"
                lines += [f"{source}: {name} {left_out}"] if name not in given else []
    return lines


def _given(parser: ArgumentParser, flags: Mapping[str, Action], argv: Words) -> dict[str, Any]:
    """Return the settings of the command line itself, the file of settings included: dest -> value."""
    finder = _bare(parser, () if {"-h", "--help"} & set(argv) else flags.values())
    finder.add_argument("--config", default=SUPPRESS)
    return vars(finder.parse_known_args(list(argv))[0])


def _bare(parser: ArgumentParser, actions: Iterable[Action]) -> ArgumentParser:
    """Make a parser of the same kind with some of its flags, none of them required or with a default."""
    bare = type(parser)(prog=parser.prog, add_help=False)
    for action in map(copy.copy, actions):
        action.default, action.required = SUPPRESS, False
        bare._add_action(action)
    return bare


def _variable(name: str) -> str:
    return "DISTGNN_" + name.upper().replace("-", "_")


def settable(parser: ArgumentParser) -> dict[str, Action]:
    """Return the settable flags by their long name without dashes."""
    flags = {}
    for action in parser._actions:
        names = [option[2:] for option in action.option_strings if option.startswith("--")]
        if names and names[0] not in ("help", "version", "config", "print-config"):
            flags[names[0]] = action
    return flags


def _read(path: str, command: str, commands: Words, flags: Iterable[str]) -> Layer:
    """Read the file's settings for a command."""
    try:
        content = read_toml(path)
    except OSError as error:
        raise UserError(f"--config {path}: cannot read it ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"--config {path}: not valid TOML: {error}") from error
    tables = {key for key, value in content.items() if isinstance(value, dict) and _dashed(key) not in flags}
    for name in sorted(tables.difference(commands)):
        hint = did_you_mean(name, commands, "[{}]")
        known = f"tables are named like the commands: {', '.join(sorted(commands))}"
        raise UserError(f"{path}: unknown table [{name}]{hint}; {known}")
    layer: Layer = {}
    top = {name: value for name, value in content.items() if name not in tables}
    for table in (top, content[command] if command in tables else {}):
        for name, value in table.items():
            if "_" in name and _dashed(name) in table:
                raise UserError(f"{path}: {_dashed(name)} and {name} are the same setting; give one of them")
            if _dashed(name) not in flags:
                hint = did_you_mean(name, flags)
                known = ", ".join(sorted(flags))
                raise UserError(f"{path}: unknown key {name!r} for {command}{hint}; known keys: {known}")
            layer[_dashed(name)] = value, path
    return layer


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _convert(parser: ArgumentParser, action: Action, value: Any, source: str) -> Any:
    """Convert `value` as `action` would have stored it, had it been given as a flag."""
    flag = action.option_strings[-1] if value is False else action.option_strings[0]
    if action.nargs == 0:
        switch = SWITCH.get(str(value).lower())
        if switch is None or not isinstance(value, (bool, str)):
            raise UserError(f"{source}: {action.option_strings[0]} is a switch: true or false, not {value!r}")
        if not isinstance(action, BooleanOptionalAction):
            return action.const if switch else not action.const
        words = [next(name for name in action.option_strings if name.startswith("--no-") != switch)]
    elif action.nargs is None or action.nargs == "?":
        words = [f"{flag}={flag_text(value)}"]
    else:
        words = [flag, *(value.split() if isinstance(value, str) else map(flag_text, value))]
    try:
        return getattr(_bare(parser, [action]).parse_args(words), action.dest)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def flag_text(value: Any) -> str:
    """Write a value as a flag: [15, 10] is ``15,10``, {rows = 4, reps = 2} is ``rows=4,reps=2``."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={flag_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(flag_text, value))
    return str(value)

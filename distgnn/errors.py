"""The exceptions that mean "the input is wrong", as opposed to "the program is wrong"."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: the message names the file or argument, what is wrong, and what would be right, in one line.

    The command line prints it on rank 0 and every rank exits with code 2. What it quotes from a file stays in
    the line: characters that do not print are escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message)))


class ArgumentError(UserError):
    """An argument whose value can't be taken; the message is ``argument=value: problem``.

    The command line says ``--argument value: problem`` instead. The problem says what would be right, and
    speaks of arguments, never of flags.
    """

    def __init__(self, argument: str, value: object, problem: str) -> None:
        super().__init__(f"{argument}={value}: {problem}")
        self.argument, self.value, self.problem = argument, value, problem

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str, str]]:
        return type(self), (self.argument, str(self.value), self.problem)

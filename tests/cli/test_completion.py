"""The script of ``--print-completion`` in the shells that are here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from distgnn import cli
from distgnn.errors import UserError


def completed(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of the words."""
    program = (
        f'source {script}; COMP_WORDS=(distgnn "$@"); COMP_CWORD=$#; _shtab_distgnn distgnn; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = ["bash", "-c", program, "bash", *words]
    return {*subprocess.run(bash, capture_output=True, text=True, check=True, timeout=60).stdout.split()}


def test_bash_completes_commands_flags_choices_and_files(tmp_path: Path) -> None:
    with pytest.raises(cli.Help) as shown:
        cli.parse(["--print-completion", "bash"])
    script = tmp_path / "completion"
    script.write_text(shown.value.text)
    (tmp_path / "graph.dg").mkdir()
    assert completed(script, "") >= {*cli.COMMANDS}
    assert completed(script, "train", "--batch") == {"--batch-size", "--batches-per-update"}
    assert completed(script, "train", "--sampler", "s") == {"sage", "saint", "shadow"}
    assert completed(script, "train", f"{tmp_path}/") == {f"{tmp_path}/graph.dg"}  # a directory, and no file
    assert str(script) in completed(script, "train", "--log", f"{tmp_path}/")


def test_another_shell_is_refused() -> None:
    with pytest.raises(UserError, match="--print-completion ksh: expected one of bash, zsh"):
        cli.parse(["--print-completion", "ksh"])

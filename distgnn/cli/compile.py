"""``distgnn compile``: compile all kernels for the GPU here, before the first training needs them."""

from __future__ import annotations

import argparse
import time

from distgnn.errors import UserError
from distgnn.terminal import printable, show

HELP = "compile all CUDA kernels for this machine's GPU, before a training does one after another"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = "of these files of kernels alone, as csr_spmm.cu (default: of all)"
    parser.add_argument("files", metavar="KERNELS", nargs="*", help=files)


def run(args: argparse.Namespace) -> int:
    """Compile the kernels on rank 0 alone. Returns 1 on every rank if one does not compile, else 0.

    UserError: no GPU can be used here, compiled kernels would not be kept, or there is no such file.
    """
    from distgnn.cli.first_rank import on_first_rank

    return on_first_rank(lambda: compiled(args.files))


def compiled(files: list[str]) -> int:
    """Compile the kernels of these files, or all, and say where they are kept; see :func:`run`."""
    from distgnn.arrays import backend as backends
    from distgnn.local.cuda import ahead
    from distgnn.local.cuda.compiling import folder

    if problem := backends.missing():
        raise UserError(f"compile: {problem}")
    if (kept := folder()) is None:
        raise UserError("compile: CUPY_CACHE_IN_MEMORY=1 keeps no kernel for another process; unset it")
    started, on = time.monotonic(), backends.get("cupy")
    wanted = ahead.names(on.xp, files)
    problems = ahead.compile_all(wanted)
    for problem in problems:
        show(printable(problem), error=True)
    done = f"compiled {len(wanted) - len(problems)} of {len(wanted)} kernels for {on.device_name()}"
    how = f"in {ahead.processes(len(wanted))} processes, {time.monotonic() - started:.1f} s"
    show(printable(f"{done} {how}; they are kept in {kept}"))
    return int(bool(problems))

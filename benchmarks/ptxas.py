"""Registers, spills and PTX of the CUDA kernels by architecture, from nvcc and ptxas. Needs no GPU.

    python benchmarks/ptxas.py --out benchmarks/results/registers.md

The program prints those of all kernels of products.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from distgnn.local.cuda import csr, launch

#: What clusters have: Ampere, Hopper, Blackwell.
ARCHITECTURES = (80, 90, 100)
FLAGS = ("-std=c++17", "-Werror", "all-warnings", "-diag-suppress", "177")

_ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*\n.*\n[ptxas .:info]*(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers"
)


class Use(NamedTuple):
    """Resources of a kernel: 32-bit registers of a thread; bytes of its stack, and of spilled registers."""

    registers: int
    stack: int
    spilled: int


def nvcc() -> str | None:
    """Return the path of nvcc (``NVCC`` names another one), or None."""
    return os.environ.get("NVCC") or shutil.which("nvcc")


def run(*arguments: str) -> str:
    """Run nvcc and return what it prints; RuntimeError where it fails."""
    done = subprocess.run([str(nvcc()), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc {' '.join(arguments)}:\n{done.stderr[:4000]}")
    return done.stdout + done.stderr


@functools.cache
def version() -> str:
    """Return what nvcc says of itself."""
    return run("--version")


def unit(file: str, names: Sequence[str]) -> str:
    """Return a source with these instances of its templates; its other kernels are there anyway."""
    instances = (f"template __global__ decltype({name}) {name};" for name in names if "<" in name)
    return launch.source(file) + "\n".join(instances) + "\n"


def compiled(source: str, architecture: int, *flags: str) -> tuple[str, bytes]:
    """Compile a source for an architecture; return the compiler's report and what it made."""
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "kernels.cu"), Path(folder, "made")
        text.write_text(source)
        report = run(*FLAGS, *flags, f"-arch=sm_{architecture}", str(text), "-o", str(made))
        return report, made.read_bytes()


def report(source: str, architecture: int) -> str:
    """Return ptxas' report on the kernels of a source."""
    return compiled(source, architecture, "-cubin", "-Xptxas", "-v")[0]


def ptx(source: str, architecture: int) -> str:
    """Return the PTX of a source."""
    return compiled(source, architecture, "-ptx")[1].decode()


def uses(report: str) -> dict[str, Use]:
    """Return what each kernel of a report takes, by its mangled name; ValueError: one is not understood."""
    entries = _ENTRY.findall(report)
    found = {name: Use(int(used), int(stack), int(out)) for name, stack, out, _, used in entries}
    if len(found) != report.count("Compiling entry function") or not found:
        raise ValueError(f"{len(found)} kernels understood in a report of ptxas:\n{report[:2000]}")
    return found


def mangled(name: str) -> str:
    """Return how the mangled name of an instance begins: _Z4spmmIfiLi4ELb1EE for spmm<float,int,4,true>."""
    base, _, rest = name.rstrip(">").partition("<")
    codes = {"float": "f", "double": "d", "int": "i", "int64": "x", "true": "Lb1E", "false": "Lb0E"}
    codes |= {"Bfloat16": "8Bfloat16", "Float16": "7Float16"}
    types = "".join(codes.get(part) or f"Li{part}E" for part in rest.split(",")) if rest else ""
    return f"_Z{len(base)}{base}" + (f"I{types}E" if rest else "")


def main() -> None:
    """Print registers and spilled bytes of all kernels of products, by architecture."""
    import table  # of this folder; the compile test loads this file from elsewhere

    args = table.arguments(__doc__).parse_args()
    names = csr.kernel_names()
    source = unit(csr.FILE, names)
    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(lambda architecture: report(source, architecture), ARCHITECTURES))
    found = [uses(text) for text in reports]
    heads = (f"sm_{architecture}: registers, bytes spilled" for architecture in ARCHITECTURES)
    lines = table.columns("kernel", *heads)
    for name in names:
        of = [next(use for known, use in each.items() if known.startswith(mangled(name))) for each in found]
        lines.append(f"| `{name}` | {' | '.join(f'{use.registers}, {use.spilled}' for use in of)} |")
    table.publish(args, "\n".join([table.heading(args), "", version().splitlines()[-1], "", *lines]))


if __name__ == "__main__":
    main()

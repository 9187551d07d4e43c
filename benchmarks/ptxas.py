"""Registers, spills, PTX and SASS of the CUDA kernels, from nvcc, ptxas and nvdisasm. Needs no GPU.

    python benchmarks/ptxas.py --out benchmarks/results/registers.md

The program prints registers and spills of all kernels of products, and instructions of their loops.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from distgnn.local.cuda import csr, launch

#: What clusters have: Ampere, Hopper, Blackwell.
ARCHITECTURES = (80, 90, 100)
FLAGS = ("-std=c++17", "-Werror", "all-warnings", "-diag-suppress", "177")

#: Beneath the table.
LEGEND = """Instructions are those of a turn, which gathers U rows of B and adds them up. Those that read
the entries of the next turns are left out.

At most 16 a non-zero: float with 32-bit indices, 1 or 2 columns of float with 64-bit ones, 1 column of
double. Others need more. A 64-bit index is exchanged in two halves, and its address takes an instruction
more. Two columns of double have two non-zeros in a turn, which share what every turn does, and their weights
are exchanged and selected in halves. 16 bits are widened, by an instruction for each column."""

Found = TypeVar("Found")

_ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*\n.*\n[ptxas .:info]*(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers"
)


_LABEL, _INSTRUCTION = re.compile(r"(\.L_\w+):"), re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(\S.*?) *;")
_JUMP = re.compile(r"BRA.*`\((\.L_\w+)\)")


class Use(NamedTuple):
    """Resources of a kernel: 32-bit registers of a thread; bytes of its stack, and of spilled registers."""

    registers: int
    stack: int
    spilled: int


def nvcc() -> str | None:
    """Return the path of nvcc (``NVCC`` names another one), or None."""
    return os.environ.get("NVCC") or shutil.which("nvcc")


def nvdisasm() -> str | None:
    """Return the path of nvdisasm (``NVDISASM`` names another one), if need be of its wheel, or None."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    wheel = (str(file.locate()) for file in files if file.name == "nvdisasm")
    return os.environ.get("NVDISASM") or shutil.which("nvdisasm") or next(wheel, None)


def run(*arguments: str, program: str | None = None) -> str:
    """Run nvcc, or another program, and return what it prints; RuntimeError where it fails."""
    program = program or str(nvcc())
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{program} {' '.join(arguments)}:\n{done.stderr[:4000]}")
    return done.stdout + done.stderr


@functools.cache
def version() -> str:
    """Return what nvcc says of itself."""
    return run("--version")


def unit(file: str, names: Sequence[str]) -> str:
    """Return a source with these instances of its templates; its other kernels are there anyway."""
    instances = (f"template __global__ decltype({name}) {name};" for name in names if "<" in name)
    return launch.source(file) + "\n".join(instances) + "\n"


def compiled(source: str, architecture: int | str, flags: Sequence[str]) -> tuple[str, bytes]:
    """Compile a source for an architecture, 90 or "90a"; return the compiler's report and what it made."""
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "kernels.cu"), Path(folder, "made")
        text.write_text(source)
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        report = run(*FLAGS, *flags, target, str(text), "-o", str(made))
        return report, made.read_bytes()


def report(source: str, architecture: int) -> str:
    """Return ptxas' report on the kernels of a source."""
    return compiled(source, architecture, ("-cubin", "-Xptxas", "-v"))[0]


def sass(cubin: bytes) -> dict[str, list[str]]:
    """Return the labels (with a colon) and instructions of each kernel, by its mangled name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        lines = run("-c", file.name, program=nvdisasm()).splitlines()
    kernels: dict[str, list[str]] = {}
    body: list[str] = []
    for line in lines:
        if line.startswith(".text.") and line.endswith(":"):
            body = kernels[line[len(".text.") : -1]] = []
        elif match := _LABEL.match(line):
            body.append(match[0])
        elif match := _INSTRUCTION.match(line):
            body.append(match[1])
    return kernels


class Loop(NamedTuple):
    """The instructions of a loop that gathers rows of B and adds them up, in their order in memory.

    Attributes:
        gathers: the places of its gathers; first: that of its first multiplication and addition.
    """

    instructions: list[str]
    gathers: list[int]
    first: int

    @property
    def guarded(self) -> bool:
        """True if the loop asks before every gather."""
        return all(self.instructions[at].startswith("@") for at in self.gathers)

    @property
    def steady(self) -> bool:
        """True if the loop asks for nothing but its end."""
        return not self.guarded and sum("BRA" in line for line in self.instructions) == 1


def loops(body: Sequence[str], nbytes: int) -> list[Loop]:
    """List the innermost loops of a kernel that gather by loads of so many bytes."""
    load = "LDG.E" + {4: "", 8: ".64", 16: ".128"}[nbytes] + ".CONSTANT"
    at = {line[:-1]: place for place, line in enumerate(body) if line.endswith(":")}
    jumps = [(at[match[1]], end) for end, line in enumerate(body) if (match := _JUMP.search(line))]
    found: dict[tuple[int, int], Loop] = {}
    for begin, end in sorted(jumps, key=lambda jump: jump[1] - jump[0]):  # backward ones, the shortest first
        lines = [line for line in body[begin : end + 1] if not line.endswith(":")]
        gathers = [place for place, line in enumerate(lines) if load in line]
        sums = [place for place, line in enumerate(lines) if re.search(r"\b[FD]FMA\b", line)]
        if begin < end and gathers and sums and not any(begin <= b and e <= end for b, e in found):
            found[begin, end] = Loop(lines, gathers, sums[0])
    return list(found.values())


def ptx(source: str, architecture: int) -> str:
    """Return the PTX of a source."""
    return compiled(source, architecture, ("-ptx",))[1].decode()


def uses(report: str) -> dict[str, Use]:
    """Return what each kernel of a report takes, by its mangled name; ValueError: one is not understood."""
    entries = _ENTRY.findall(report)
    found = {name: Use(int(used), int(stack), int(out)) for name, stack, out, _, used in entries}
    if len(found) != report.count("Compiling entry function") or not found:
        raise ValueError(f"{len(found)} kernels understood in a report of ptxas:\n{report[:2000]}")
    return found


def mangled(name: str) -> str:
    """Return how the mangled name of an instance begins: _Z4spmmIfiLi4ELb1EE for spmm<float,int,4,true>.

    A class that comes again is named by its number, S0_ the first.
    """
    base, _, rest = name.rstrip(">").partition("<")
    codes = {"float": "f", "double": "d", "int": "i", "int64": "x", "true": "Lb1E", "false": "Lb0E"}
    types = ""
    for part in rest.split(",") if rest else ():
        types += codes.get(part) or (f"Li{part}E" if part.isdigit() else f"{len(part)}{part}")
        codes |= {} if part.isdigit() else {part: codes.get(part, "S0_")}
    return f"_Z{len(base)}{base}" + (f"I{types}E" if rest else "")


def gathered(name: str) -> int:
    """Return the bytes of the loads by which an instance of the product gathers rows of B."""
    number, _, V, *_ = name.partition("<")[2].rstrip(">").split(",")
    return int(V) * {"float": 4, "double": 8}.get(number, 2)


def turn(name: str, body: Sequence[str]) -> Loop:
    """Return the turn of an instance: its shortest loop, the other being for warps that are not in step."""
    return min(loops(body, gathered(name)), key=lambda loop: len(loop.instructions))


def of(name: str, known: Mapping[str, Found]) -> Found:
    """Return what is known of an instance, by mangled names."""
    return next(value for mangled_name, value in known.items() if mangled_name.startswith(mangled(name)))


def main() -> None:
    """Print registers, spilled bytes and instructions of all kernels of products, by architecture."""
    import table  # of this folder; the compile test loads this file from elsewhere

    args = table.arguments(__doc__).parse_args()
    names = csr.kernel_names()
    source = unit(csr.FILE, names)
    build = functools.partial(compiled, source, flags=("-cubin", "-Xptxas", "-v"))
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(build, ARCHITECTURES))
    found = [uses(report) for report, _ in made]
    bodies = sass(made[ARCHITECTURES.index(90)][1])
    heads = (f"sm_{architecture}: registers, bytes spilled" for architecture in ARCHITECTURES)
    lines = table.columns("kernel", *heads, "sm_90: instructions per non-zero")
    for name in names:
        cells = [f"{use.registers}, {use.spilled}" for use in (of(name, each) for each in found)]
        loop = turn(name, of(name, bodies)) if name.startswith("spmm") else None
        cells.append(f"{len(loop.instructions) / len(loop.gathers):.4g}" if loop else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    text = "\n".join([table.heading(args), "", version().splitlines()[-1], "", *lines, "", LEGEND])
    table.publish(args, text)


if __name__ == "__main__":
    main()

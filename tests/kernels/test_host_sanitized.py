"""The host kernels, compiled from their sources with the address and undefined-behaviour sanitizers, run by
`host_driver.c`.

Kernels are one template for any number of vectors; no more than three make the panels run at small widths and
compile fast.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from distgnn.local.cuda.launch import kernels_folder

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FEW_VECTORS = ["-DMOST_VECTORS=3", "-DFULL_VECTORS(X)=X(1) X(2) X(3)"]
DRIVER = Path(__file__).with_name("host_driver.c")
pytestmark = pytest.mark.kernels


def compile_c(sources: list[Path], program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    include = f"-I{kernels_folder() / 'host'}"
    command = [
        str(COMPILER),
        "-std=gnu11",
        "-g1",
        *flags,
        include,
        *map(str, sources),
        "-o",
        str(program),
        "-lm",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for programs with sanitizers, or skip where none compile."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("sanitized")
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if compile_c([probe], folder / "probe", *SANITIZERS).returncode != 0:
        pytest.skip("the C compiler has no sanitizers")
    return folder


def output(sources: list[Path], program: Path, *flags: str) -> str:
    """Compile these sources and return the output of the program; it must not fail."""
    built = compile_c(
        sources, program, *SANITIZERS, "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror", *flags
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_kernels_stay_within_their_arrays(folder: Path) -> None:
    sources = sorted((kernels_folder() / "host").glob("*.c"))
    assert "generic: " in output([*sources, DRIVER], folder / "driver", *FEW_VECTORS)

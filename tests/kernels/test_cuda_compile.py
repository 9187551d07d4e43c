"""Every kernel compiles for real GPUs and keeps its numbers in registers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distgnn.local.cuda import csr, launch
from distgnn.local.cuda.launch import kernels_folder
from kernels import nvrtc
from kernels.conftest import OTHER_KERNELS, emulator, spmm_names

pytestmark = pytest.mark.timeout(900)

#: What clusters have: Volta, Ampere, Hopper. Newer machines run code of the newest of their family.
ARCHITECTURES = (70, 80, 90)
KERNELS = {csr.FILE: spmm_names(), **OTHER_KERNELS}
PARTS = 4  # that the variants of a file are cut into, to be compiled side by side


def nvcc() -> str | None:
    return os.environ.get("NVCC") or shutil.which("nvcc")


def supported() -> list[int]:
    """List the architectures that this nvcc compiles for."""
    listing = subprocess.run(
        [str(nvcc()), "--list-gpu-code"], capture_output=True, text=True, check=True
    ).stdout
    return sorted(int(number) for number in re.findall(r"sm_(\d+)$", listing, re.MULTILINE))


def unit(file: str, names: list[str]) -> str:
    """Return a source with these instances of its templates; other kernels are there anyway."""
    instances = (f"template __global__ decltype({name}) {name};" for name in names if "<" in name)
    return launch.source(file) + "\n".join(instances) + "\n"


def report_of(file: str, names: list[str], architecture: int) -> str:
    """Return ptxas' report on the kernels; kept in a folder, because nothing changes the report but the
    sources and the compiler.
    """
    text = unit(file, names)
    version = subprocess.run([str(nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(f"{architecture}{version}{text}".encode()).hexdigest()[:32]
    kept = emulator.cache_folder() / f"{key}.ptxas"
    if kept.exists():
        return kept.read_text()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        source = Path(folder, "kernels.cu")
        source.write_text(text)
        flags = ["-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings", "-diag-suppress", "177"]
        command = [
            str(nvcc()),
            *flags,
            f"-arch=sm_{architecture}",
            str(source),
            "-o",
            str(source.with_suffix(".cubin")),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{file} for sm_{architecture}:\n{done.stderr[:4000]}"
        source.with_suffix(".ptxas").write_text(done.stderr)
        source.with_suffix(".ptxas").replace(kept)
        return done.stderr


def spills(report: str) -> list[str]:
    """List the kernels that use local memory, with ptxas' words on them."""
    kernels = re.findall(
        r"Compiling entry function '(\w+)'.*\n.*\n[ptxas .]*(\d+) bytes stack frame, (.*)\n", report
    )
    assert len(kernels) == report.count("Compiling entry function") > 0
    return [
        f"{name}: {frame} bytes of stack, {rest}"
        for name, frame, rest in kernels
        if frame != "0" or not rest.startswith("0 ")
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", KERNELS)
def test_registers(file, architecture):
    if nvcc() is None:
        pytest.skip("no nvcc here (in PATH, or named by NVCC)")
    if architecture < supported()[0]:
        pytest.skip(
            f"this nvcc begins with sm_{supported()[0]}; an older NVRTC covers sm_{architecture} below"
        )
    names = KERNELS[file]
    shares = [names[part::PARTS] for part in range(PARTS if len(names) > 40 else 1)]
    with ThreadPoolExecutor(max_workers=min(PARTS, os.cpu_count() or 1)) as pool:
        for report in pool.map(lambda share: report_of(file, share, architecture), shares):
            assert not spills(report)


@pytest.mark.slow
def test_spills_are_seen():
    """A kernel with an array that no registers can hold."""
    if nvcc() is None:
        pytest.skip("no nvcc here (in PATH, or named by NVCC)")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "local.cu")
        source.write_text(
            "__global__ void f(int* x, int i) { int a[99]; for (int k = 0; k < 99; k++) a[k] = x[k * i]; "
            "x[0] = a[i]; }"
        )
        command = [
            str(nvcc()),
            "-cubin",
            f"-arch=sm_{max(80, supported()[0])}",
            "-Xptxas",
            "-v",
            str(source),
            "-o",
            f"{folder}/x",
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert len(spills(report)) == 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", KERNELS)
@pytest.mark.slow
def test_nvrtc(file, architecture):
    """Compile as CuPy does: from one string, without headers, instances by name. All where nvcc can't; else a
    few of each file, for the newest alone, because such a source is good for all or none.
    """
    compiler = nvrtc.find(architecture)
    if compiler is None:
        pytest.skip(f"no NVRTC here that compiles for sm_{architecture} (pip install nvidia-cuda-nvrtc-cu12)")
    names = KERNELS[file]
    if nvcc() is not None and architecture >= supported()[0]:
        if architecture != ARCHITECTURES[-1]:
            pytest.skip("nvcc compiled for it; NVRTC does for the newest")
        names = names[:: max(1, len(names) // 6)]
    options = [*launch.OPTIONS, "--ptxas-options=-v"]
    cubin, log = compiler.compile(launch.source(file), names, architecture, options)
    assert cubin[:4] == b"\x7fELF"
    assert not spills(log)


def test_nvrtc_reports_errors():
    compiler = nvrtc.find(80)
    if compiler is None:
        pytest.skip("no NVRTC here (pip install nvidia-cuda-nvrtc-cu12)")
    with pytest.raises(nvrtc.CompileError, match="nothing"):
        compiler.compile("__global__ void broken() { nothing; }", ["broken"], 80, ())


def test_every_kernel_is_compiled():
    """A kernel added to a source must be added to the lists as well."""
    for file in (path.name for path in kernels_folder().glob("*.cu")):
        kernels = set(
            re.findall(
                r"__global__ void __launch_bounds__\(THREADS\)\s+(\w+)\(",
                (kernels_folder() / file).read_text(),
            )
        )
        assert kernels == {name.split("<")[0] for name in KERNELS[file]}, file

"""Every kernel compiles for real GPUs and keeps its numbers in registers."""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from distgnn.local.cuda import csr, gemm_columns, launch
from distgnn.local.cuda.gemm import TILES
from distgnn.local.cuda.launch import kernels_folder
from kernels import nvrtc
from kernels.conftest import BENCHMARKS, KERNELS, emulator, load

ptxas = load(BENCHMARKS / "ptxas.py")
pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]

ARCHITECTURES = ptxas.ARCHITECTURES
OLDER = 70  # which nvcc 13 no longer knows, and an older NVRTC does

without_nvcc = pytest.mark.skipif(ptxas.nvcc() is None, reason="no nvcc here (in PATH, or named by NVCC)")
without_nvdisasm = pytest.mark.skipif(
    ptxas.nvdisasm() is None, reason="no nvdisasm here (pip install nvidia-cuda-nvdisasm)"
)


def supported() -> list[int]:
    """List the architectures that this nvcc compiles for."""
    return sorted(map(int, re.findall(r"sm_(\d+)$", ptxas.run("--list-gpu-code"), re.MULTILINE)))


def target_of(file: str, architecture: int) -> int | str:
    """Return what a file is compiled for: with all that Hopper has, where no other runs it."""
    return "90a" if file in launch.NATIVE and architecture == 90 else architecture


def compiled(file: str, architecture: int) -> tuple[str, bytes]:
    """Return ptxas' report on the kernels, and the kernels; kept in a folder, as nothing but the sources and
    the compiler changes them.
    """
    source, target = ptxas.unit(file, KERNELS[file]), target_of(file, architecture)
    key = hashlib.sha256(f"{target}{ptxas.version()}{source}".encode()).hexdigest()[:32]
    kept = [emulator.cache_folder() / f"{key}{suffix}" for suffix in (".cubin", ".ptxas")]
    if not all(path.exists() for path in kept):
        kept[-1].parent.mkdir(parents=True, exist_ok=True)
        report, cubin = ptxas.compiled(source, target, ("-cubin", "-Xptxas", "-v"))
        for path, content in zip(kept, (cubin, report.encode()), strict=True):
            made = path.with_suffix(f"{path.suffix}.{os.getpid()}")
            made.write_bytes(content)
            made.replace(path)
    return kept[-1].read_text(), kept[0].read_bytes()


@without_nvcc
@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=[] if a == 90 else [pytest.mark.slow]) for a in ARCHITECTURES]
)
def test_registers(architecture):
    """No kernel spills; those of products take at most 64 registers, so that four blocks fit."""
    if architecture not in supported():
        pytest.skip(f"this nvcc does not compile for sm_{architecture}")
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        made = pool.map(lambda file: compiled(file, architecture)[0], KERNELS)
        reports = dict(zip(KERNELS, made, strict=True))
    for file, report in reports.items():
        found = ptxas.uses(report)
        assert len(found) == len(KERNELS[file])
        wrong = {name: use for name, use in found.items() if use.stack or use.spilled}
        assert not wrong, f"{file} for sm_{architecture}"
    products = ptxas.uses(reports[csr.FILE])
    assert len(products) == len(csr.kernel_names())
    assert max(use.registers for use in products.values()) <= 64


@without_nvcc
@pytest.mark.slow
def test_spills_are_seen():
    """A kernel with an array that no registers can hold."""
    text = "int a[99]; for (int k = 0; k < 99; k++) a[k] = x[k * i]; x[0] = a[i];"
    text = f"__global__ void f(int* x, int i) {{ {text} }}"
    (use,) = ptxas.uses(ptxas.report(text, max(80, supported()[0]))).values()
    assert use.stack > 0
    with pytest.raises(ValueError, match="0 kernels understood"):
        ptxas.uses("ptxas info : Compiling entry function 'f' for 'sm_90'")


@without_nvcc
def test_features_are_gathered_by_wide_read_only_loads():
    """The PTX has an ld.global.nc per row of B in flight, as wide as V columns, and no generic load."""
    names = [name for name in csr.kernel_names() if ",int," in name]
    text = ptxas.ptx(ptxas.unit(csr.FILE, names), 90)
    assert not re.search(r"\bld\.(v\d\.)?[fsub]\d+", text)
    bodies = {body.split("(")[0].strip(): body for body in text.split(".visible .entry")[1:]}
    for name in names:
        (body,) = (body for known, body in bodies.items() if known.startswith(ptxas.mangled(name)))
        V, nbytes = int(name.split(",")[2]), ptxas.gathered(name)
        wide = {4: "u32", 8: "v2.u32", 16: "v4.u32"}[nbytes]
        gathers, loads = csr.in_flight(V, nbytes // V), body.count(f"ld.global.nc.{wide}")
        assert loads == gathers if wide == "v4.u32" else loads >= gathers, (name, loads, gathers)


#: Products whose turns have at most 16 instructions a non-zero; ``registers.md`` says why others have more.
SHORT_TURNS = (
    "spmm<float,int,", "spmm<float,int64,1,", "spmm<float,int64,2,", "spmm<double,int,1,",
    "spmm<double,int64,1,",
)  # fmt: skip


@without_nvcc
@without_nvdisasm
def test_gathers_of_a_turn_come_before_its_first_sum():
    """The compiler's order of a turn asks for all rows of B before it waits for one."""
    bodies = ptxas.sass(compiled(csr.FILE, 90)[1])
    for name in csr.kernel_names():
        if not name.startswith("spmm"):
            continue
        turn = ptxas.turn(name, ptxas.of(name, bodies))
        assert not turn.guarded and turn.gathers[-1] < turn.first, (name, turn)
        if name.startswith(SHORT_TURNS):
            assert len(turn.instructions) <= 16 * len(turn.gathers), (name, turn)


@without_nvcc
@without_nvdisasm
def test_loops_over_entries_ask_for_rows_before_they_sum():
    """Products and dot products by head have four rows of B in flight; dots read their own row for four."""
    bodies = ptxas.sass(compiled("edges.cu", 90)[1])
    for name, own, most in (
        ("edge_products<float,int,16,4>", 0, 18), ("edge_products<float,int,32,4>", 0, 18),
        *((f"edge_dots<float,int,{G},4>", 1, 14) for G in (1, 2, 4, 8, 16, 32)),
    ):  # fmt: skip
        steady = [loop for loop in ptxas.loops(ptxas.of(name, bodies), 16) if loop.steady]
        assert len(steady) == 2, name
        for loop in steady:
            assert len(loop.gathers) == 4 + own, (name, loop)
            assert loop.gathers[-2] < loop.first and len(loop.instructions) <= 4 * most, (name, loop)


def products_of(name):
    """Return how many products of TF32 the parts of two numbers make, but for that of both low ones."""
    return sum(map(int, name.split(",")[2:4])) - 1


@without_nvcc
@without_nvdisasm
def test_dense_products_are_made_by_tensor_cores():
    """Numbers take as many products of TF32 as their parts need.

    A turn multiplies four times 8 of k by both halves of the columns, of which one is under way while the
    other is added up. Features are copied by 16 bytes.
    """
    assert all("serialized" not in compiled(file, 90)[0] for file in launch.NATIVE)
    bodies = {file: ptxas.sass(compiled(file, 90)[1]) for file in launch.NATIVE}
    for tile in (*TILES, *gemm_columns.TILES):
        start = tile.name()[:-1] + ","
        names = [name for name in KERNELS[f"{tile.kernel}.cu"] if name.startswith(start)]
        assert len(names) == (10 if tile in TILES else 7)
        for name in names:
            body = ptxas.of(name, bodies[f"{tile.kernel}.cu"])
            made = sum(f"HGMMA.64x{tile.width // 2}x8.F32.TF32" in line for line in body)
            assert made == 8 * products_of(name), name
            assert any("LDGSTS.E.BYPASS.128" in line for line in body), name


@without_nvcc
def test_tensor_cores_read_what_is_there():
    """Nothing on a host shows a fence or a wait that is missing, so the PTX is read.

    It has a fence of the proxy between stores to shared memory and the barrier before products, one before
    each group of products, and a wait before its sums; and the descriptor of B.
    """
    words = {
        r"fence\.proxy\.async\.shared::cta": "P", r"bar\.sync\s+0;": "B", r"wgmma\.fence\.sync\.aligned": "F",
        r"wgmma\.mma_async": "M", r"wgmma\.commit_group": "C", r"wgmma\.wait_group\.sync\.aligned 0": "0",
        r"wgmma\.wait_group\.sync\.aligned 1": "1",
    }  # fmt: skip
    for file, around in zip(launch.NATIVE, ("PB{}", "BPB{}PB"), strict=True):
        text = ptxas.ptx(ptxas.unit(file, KERNELS[file]), target_of(file, 90))
        bodies = text.split(".visible .entry")[1:]
        for body in (body for body in bodies if "sum_parts" not in body.split("(")[0]):
            parts = re.findall(r"Li(\d+)E", body.split("(")[0])[2:4]
            group = "F" + 2 * (sum(map(int, parts)) - 1) * "M" + "C"
            expected = around.format(group + 3 * f"{group}1" + "0")
            hits = re.finditer("|".join(f"({word})" for word in words), body)
            letters = "".join([*words.values()][(hit.lastindex or 0) - 1] for hit in hits)
            assert letters == expected, (file, letters)
            assert str(128 // 16 << 16 | 256 // 16 << 32) in body, file


@pytest.mark.parametrize("architecture", [OLDER, ARCHITECTURES[-2]])
@pytest.mark.parametrize("file", KERNELS)
@pytest.mark.slow
def test_nvrtc(file, architecture):
    """Compile as CuPy does: from one string, without headers, instances by name. All where nvcc can't; else a
    few of each file, because such a source is good for all or none.
    """
    compiler = nvrtc.find(architecture)
    if compiler is None:
        pytest.skip(f"no NVRTC here that compiles for sm_{architecture} (pip install nvidia-cuda-nvrtc-cu12)")
    names = KERNELS[file]
    if ptxas.nvcc() is not None and architecture in supported():
        names = names[:: max(1, len(names) // 6)]
    options = [*launch.OPTIONS, "--ptxas-options=-v"]
    cubin, log = compiler.compile(launch.source(file), names, target_of(file, architecture), options)
    assert cubin[:4] == b"\x7fELF"
    found = ptxas.uses(log)
    assert len(found) >= len(names)
    assert architecture == OLDER or not any(use.stack or use.spilled for use in found.values())


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
                r"__global__ void __launch_bounds__\(THREADS[^)]*\)\s+(\w+)\(",
                (kernels_folder() / file).read_text(),
            )
        )
        assert kernels == {name.split("<")[0] for name in KERNELS[file]}, file

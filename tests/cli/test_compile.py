"""``distgnn compile``: all kernels, or those of a file, to where CuPy keeps them."""

from __future__ import annotations

import pytest

from distgnn import cli
from distgnn.local.cuda import ahead, launch, native
from distgnn.local.cuda.instances import KERNELS
from mpi_helpers import gpu, mpiexec


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch):
    """Yield the stand-in, whose kernels this process compiles itself: others would not find it."""
    if gpu.real():
        pytest.skip("what is asked for is compiled before a GPU is tested")
    done: list[ahead.Name] = []
    monkeypatch.setattr(ahead, "compile_all", lambda names: done.extend(names) or [])
    with gpu.backend(gpu.AWARE, monkeypatch):
        yield done


def test_all_kernels_are_compiled_once(in_this_process, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    assert cli.main(["compile"]) == 0
    everything = {(file, name) for file, names in KERNELS.items() for name in names}
    assert len(in_this_process) == len({*in_this_process}) and {*in_this_process} == everything
    out = capsys.readouterr().out
    assert out.startswith(f"compiled {len(everything)} of {len(everything)} kernels for ")
    assert out.endswith(f"they are kept in {tmp_path}\n")


def test_kernels_for_another_architecture_are_left_out(in_this_process, capsys, monkeypatch) -> None:
    monkeypatch.setattr(native, "runs_here", lambda xp: False)
    assert cli.main(["compile"]) == 0
    assert {file for file, _ in in_this_process} == {*KERNELS} - {*launch.NATIVE}
    in_this_process.clear()
    assert cli.main(["compile", "scores.cu", "gemm.cu"]) == 0
    assert {file for file, _ in in_this_process} == {"scores.cu"}


def test_a_kernel_that_does_not_compile_is_a_line(in_this_process, capsys, monkeypatch) -> None:
    def kernel(xp, file, name):
        if name == "count_hits<double>":
            raise RuntimeError("expected a\n;")

    monkeypatch.setattr(launch, "kernel", kernel)
    monkeypatch.setattr(ahead, "compile_all", lambda names: [*filter(None, map(ahead._compiled, names))])
    assert cli.main(["compile", "scores.cu"]) == 1
    out, err = capsys.readouterr()
    assert err == "scores.cu count_hits<double>: RuntimeError: expected a ;\n"
    assert out.startswith("compiled 1 of 2 kernels")


def test_bad_input_is_one_line(in_this_process, capsys, monkeypatch) -> None:
    assert cli.main(["compile", "score.cu"]) == 2
    line = capsys.readouterr().err
    assert "no such file of kernels" in line and "did you mean scores.cu?" in line
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    assert cli.main(["compile"]) == 2
    assert "CUPY_CACHE_IN_MEMORY=1 keeps no kernel" in capsys.readouterr().err
    assert not in_this_process


@pytest.mark.skipif(gpu.real(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_line(capsys) -> None:
    assert cli.main(["compile"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("distgnn: error: compile: CuPy ") and line.count("\n") == 1


def test_ranks_end_alike() -> None:
    if gpu.real():
        pytest.skip("kernels are compiled here")
    done = mpiexec(2, "-m", "distgnn", "compile")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("distgnn: error: compile: CuPy is missing") and done.err.count("\n") == 1

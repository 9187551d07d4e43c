"""Kernels are compiled by one process of a node, and read by the others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from distgnn.local.cuda import launch, native
from distgnn.local.cuda.compiling import in_turn
from distgnn.local.cuda.instances import KERNELS
from mpi_helpers import clean_environment, gpu

#: A library that keeps what it compiles in a folder, as CuPy does, and takes its time.
PROGRAM = """
import sys, time
from pathlib import Path
from distgnn.local.cuda import launch

class xp:
    class RawModule:
        def __init__(self, code, options, name_expressions):
            self.file = Path(sys.argv[1], "kept")

        def get_function(self, name):
            if not self.file.exists():
                print("compiled")
                time.sleep(0.3)
                self.file.touch()

print("ready", flush=True)
sys.stdin.readline()
launch.kernel(xp, "optimizers.cu", "adam<float>")
"""


def test_processes_that_need_a_kernel_at_once_compile_it_once(tmp_path: Path) -> None:
    """Three of them, none of which begins before all are ready."""
    command, pipes = [sys.executable, "-c", PROGRAM, str(tmp_path)], {"stdin": -1, "stdout": -1, "text": True}
    environ = clean_environment(TMPDIR=str(tmp_path))
    processes = [subprocess.Popen(command, env=environ, **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert sorted(outputs) == ["", "", "compiled\n"] and not any(process.returncode for process in processes)


def test_without_locks_all_compile(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with in_turn("a kernel"):
        entered = True
    assert entered


@pytest.mark.timeout(20)
def test_a_lock_of_another_user_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holds = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
    holds += "print(1, flush=True); input()"
    command = [sys.executable, "-c", holds, str(tmp_path / "distgnn-compiling-12345")]
    holder = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "1\n"
        monkeypatch.setattr("os.getuid", lambda: 12345)  # of another user than the file's
        with in_turn("a kernel"):
            entered = True
        assert entered
    finally:
        holder.communicate("\n")


@pytest.mark.skipif(gpu.real(), reason="of the stand-in's compiler")
def test_machine_code_is_not_kept_where_cupy_keeps_none(tmp_path: Path, monkeypatch) -> None:
    """Nor found where it was kept before, as an older one would be."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    source, options = launch.source("gemm.cu"), launch.OPTIONS
    with gpu.backend(gpu.AWARE, monkeypatch) as on:
        for value, kept in (("1", 0), (" 01", 0), ("yes", 1), ("0", 1)):
            monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", value)
            name = KERNELS["gemm.cu"][0]
            assert native.function(on.xp, source, name, options).instance == name
            assert len([*tmp_path.iterdir()]) == kept, value

"""The build of the package: metadata is in pyproject.toml; this file installs the kernel sources.

The sources lie in ``kernels/`` beside the package, where C and CUDA people look for them, and are installed
as ``distgnn/kernels``; ``distgnn.local.cuda.launch.kernels_folder()`` finds them in both places. The host
kernels are also compiled, to the extension module ``distgnn._host``. Without a C compiler or Cython the
package is installed without it and uses SciPy.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithKernels(build_py):
    """The build step that copies ``kernels/`` into the package.

    An editable install uses the working tree instead.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "distgnn", "kernels")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(
                HERE / "kernels", target, ignore=shutil.ignore_patterns("__pycache__", "*.o", "*.so")
            )


class BuildHostKernels(build_ext):
    """The build step that compiles the host kernels, on all cores, with OpenMP if the compiler has it.

    The sources name the targets.
    """

    def build_extension(self, extension: Extension) -> None:
        flags = ["-O3", "-fno-math-errno", *(["-fopenmp"] if self._compiles("-fopenmp") else [])]
        extension.extra_compile_args, extension.extra_link_args = flags, flags
        compile_one = self.compiler.compile

        def compile_all(sources: Sequence[str], **how: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_one([source], **how), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_all
        super().build_extension(extension)

    def _compiles(self, flag: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=[flag])
                self.compiler.link_executable(objects, str(Path(folder, "probe")), extra_postargs=[flag])
            except Exception:  # each kind of compiler has its own exceptions
                return False
        return True


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("distgnn: no Cython, so no compiled host kernels; products on the host will use SciPy")
        return []
    host = Path("kernels/host")  # relative: setuptools takes no absolute sources
    sources = [str(host / "_host.pyx"), *map(str, sorted(host.glob("*.c")))]
    headers = sorted(map(str, host.glob("*.h")))
    module = Extension("distgnn._host", sources, include_dirs=[str(host)], depends=headers)
    modules = cythonize([module], build_dir="build/cython")
    for module in modules:
        module.optional = True  # cythonize drops it
    return modules


setup(cmdclass={"build_py": BuildWithKernels, "build_ext": BuildHostKernels}, ext_modules=extensions())

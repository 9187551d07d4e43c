"""Metadata is in pyproject.toml; this file installs the kernel sources as package data of distgnn.

The sources lie in ``kernels/`` beside the package, where C and CUDA people look for them, and are installed as
``distgnn/kernels``. ``distgnn.resources.kernels_folder()`` finds them in both places.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithKernels(build_py):
    """Copy ``kernels/`` into the built package; an editable install uses the working tree instead."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "distgnn", "kernels")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / "kernels", target, ignore=shutil.ignore_patterns("__pycache__", "*.o", "*.so"))


setup(cmdclass={"build_py": BuildWithKernels})

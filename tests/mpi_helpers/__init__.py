"""Helpers for tests of distributed code: communicators of every size out of one launch, and programs under
mpiexec.

The fixtures ``comm``, ``backend`` and ``shared_tmp_path``, the collective assertion and the hang watchdog are
in ``plugin.py``, which ``tests/conftest.py`` loads.
"""

from mpi_helpers.communicators import SIZES, on_nodes, subcomm
from mpi_helpers.programs import Finished, clean_environment, mpiexec

__all__ = ["SIZES", "Finished", "clean_environment", "mpiexec", "on_nodes", "subcomm"]

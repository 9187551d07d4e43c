"""A program or tests on several ranks that share a GPU and send by NCCL.

    mpiexec -n 2 python tests/mpi_helpers/nccl_on_one_gpu.py -m distgnn demo
    mpiexec -n 4 python tests/mpi_helpers/nccl_on_one_gpu.py -m pytest tests/comm

NCCL refuses ranks of one GPU unless each says that it is on another host (NCCL_HOSTID). Messages go by
sockets then, and kernels take turns on the GPU: for right numbers and ends without hanging, not for seconds.
distgnn's own refusal of such ranks is left out.
"""

from __future__ import annotations

import os
import runpy
import sys

from mpi4py import MPI


def main() -> None:
    rank = MPI.COMM_WORLD.Get_rank()
    os.environ |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"DISTGNN_TRANSPORT": "nccl"}
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    sys.path[0] = os.getcwd()  # as of `python -m`
    from distgnn.comm import transport

    transport.why_not_nccl = lambda everybody: ""
    if sys.argv[1:2] != ["-m"] or len(sys.argv) < 3:
        raise SystemExit("nccl_on_one_gpu.py -m MODULE ...")
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

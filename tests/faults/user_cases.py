"""Programs of users on 4 ranks whose ranks do different things, and some whose ranks may.

The body of each stands behind PRELUDE. ``expect`` prints WRONG where a result on rank 0 is not the serial
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import scipy.sparse as sp
from mpi4py import MPI
import distgnn as dg

world = MPI.COMM_WORLD
rank, odd = world.rank, world.rank == 1
S = sp.random(60, 60, 0.2, format="csr", random_state=1)
S2 = sp.random(60, 60, 0.2, format="csr", random_state=2)
X = np.random.default_rng(0).random((60, 8))
X2 = np.random.default_rng(1).random((60, 8))

def expect(got, right):
    if rank == 0 and not np.allclose(got, right):
        print("WRONG by", abs(np.asarray(got) - right).max(), flush=True)
"""

GRID = """
grid = dg.Grid(world)
A, B = dg.distribute(S, grid, "1d"), dg.distribute(S2, grid, "1d")
H, H2 = dg.scatter(X, A.input_layout), dg.scatter(X2, A.input_layout)
"""
GRID_2D = GRID.replace("dg.Grid(world)", "dg.Grid(world, rows=2, cols=2)").replace('"1d"', '"2d"')
TRAIN = """
from distgnn.train import Run, Settings
run = Run("graph.dg", Settings(hidden=[4], epochs=20, recipe="plain"))
"""


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        valid: it must end with 0 and right numbers; quiet: no line need name a rank.
        variables: of the environment, on rank 1 alone; limit: ``ulimit -v`` there, in KB.
    """

    name: str
    body: str
    valid: bool = False
    quiet: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    limit: int = 0


def _cases(setting: str, text: str, **kind: bool) -> list[Case]:
    """Read cases from ``name: line; line`` a paragraph; further lines of a program are indented."""
    cases = []
    for paragraph in text.strip().split("\n\n"):
        name, _, body = paragraph.partition(":\n")
        lines = [line[4:] for line in body.splitlines()]
        cases.append(Case(name.strip(), PRELUDE + setting + "\n".join(lines) + "\n", **kind))
    return cases


LEAVES = """
sys.exit(1) before a product:
    if odd: sys.exit(1)
    A @ H

sys.exit(0) before a product:
    if odd: sys.exit(0)
    A @ H

sys.exit(1) before gather:
    Y = A @ H
    if odd: sys.exit(1)
    dg.gather(Y)

rank 0 leaves before gather:
    Y = A @ H
    if rank == 0: sys.exit(1)
    dg.gather(Y)

three ranks leave:
    if rank != 2: sys.exit(1)
    A @ H

ranks leave one after another:
    for step in range(4):
        if rank == step: sys.exit(step)
        A @ H

exception before a product:
    if odd: raise ValueError("a bug")
    A @ H

exception before a barrier of the program:
    if odd: raise ValueError("a bug")
    world.Barrier()

sys.exit(1) before a barrier of the program:
    if odd: sys.exit(1)
    world.Barrier()

exception while the others compute for long:
    if odd: raise ValueError("a bug")
    time.sleep(12)

KeyboardInterrupt:
    if odd: raise KeyboardInterrupt
    A @ H

MemoryError:
    if odd: np.empty(1 << 60)
    A @ H

endless recursion:
    def f(): f()
    if odd: f()
    A @ H

SIGTERM whose handler calls sys.exit:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if odd: os.kill(os.getpid(), signal.SIGTERM)
    A @ H

MPI.Finalize on one rank:
    if odd: MPI.Finalize()
    else: A @ H

exception in a product:
    if odd: H.block = H.block[:, :5].copy()
    A @ H

leaves after an error that all ranks catch:
    K = H.like(H.block)
    if odd: K.block = H.block[:, :5].copy()
    try: A @ K
    except Exception: pass
    if odd: sys.exit(1)
    A @ H

exception caught, the product left out:
    try:
        if odd: raise ValueError("a bug")
        Y = A @ H
    except ValueError: Y = H2
    expect(dg.gather(Y), S @ X)

a loop of products left early:
    for step in range(20):
        if odd and step == 3: break
        Y = A @ H

a loop of gathers left early:
    for step in range(20):
        if odd and step == 3: break
        dg.gather(H)

leaves before H.norm:
    if odd: sys.exit(1)
    H.norm()

leaves before H.T @ H:
    if odd: sys.exit(1)
    H.T @ H

leaves before scatter:
    if odd: sys.exit(1)
    dg.scatter(X, A.input_layout)

rank 0 leaves before scatter:
    if rank == 0: sys.exit(1)
    dg.scatter(X, A.input_layout)

leaves before distribute:
    if odd: sys.exit(1)
    dg.distribute(S, grid, "1d")

leaves before another grid:
    if odd: sys.exit(1)
    dg.Grid(world, rows=2, cols=2)
"""

LEAVES_2D = """
2d, sys.exit(1) before a product:
    if odd: sys.exit(1)
    A @ H

2d, exception before an adjoint:
    if odd: raise ValueError("a bug")
    A.T @ H
"""

MISSES = """
a product on three ranks, then gather:
    Y = A @ H if not odd else H2
    expect(dg.gather(Y), S @ X)

a product on one rank:
    if odd: A @ H
    time.sleep(1)

gather on one rank:
    if rank == 0: dg.gather(H)

gather on three ranks, then a product:
    if not odd: dg.gather(H)
    expect(dg.gather(A @ H), S @ X)

a product too many:
    Y = A @ H
    if odd: A @ Y
    expect(dg.gather(A @ Y), S @ (S @ X))

distribute on three ranks:
    if not odd: dg.distribute(S, grid, "1d")
    A @ H

nnz on one rank:
    if rank == 0: print(A.nnz)
    expect(dg.gather(A @ H), S @ X)

norm on one rank:
    if rank == 0: print(H.norm())
    expect(dg.gather(A @ H), S @ X)

a grid on three ranks:
    if not odd: dg.Grid(world)
    A @ H

grid.along on three ranks:
    other = dg.Grid(world, rows=2, cols=2)
    if not odd: other.along("rows")
    other.world.barrier()

a redistribution on three ranks:
    if not odd: H.redistribute(dg.Layout(grid, dg.Cut(), dg.Cut(("rows",))))
    A @ H
"""

ORDERS = """
two matrices in another order:
    Y = {k: (A, B)[k] @ H for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X)
    expect(dg.gather(Y[1]), S2 @ X)

two operands in another order:
    Y = {k: A @ (H, H2)[k] for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X)

two expressions in another order:
    K, K2 = H * 2, H2 + 1
    Y = {k: A @ (K, K2)[k] for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X * 2)

two gathers in another order:
    Y = {k: dg.gather((H, H2)[k]) for k in ((1, 0) if odd else (0, 1))}
    expect(Y[0], X)

two scatters in another order:
    K = {k: dg.scatter((X, X2)[k], A.input_layout) for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(A @ K[0]), S @ X)

two norms in another order:
    Y = {k: (H, H2)[k].norm() for k in ((1, 0) if odd else (0, 1))}
    expect(Y[0], np.linalg.norm(X))

a norm and a sum in another order:
    Y = {k: (H.norm, H.sum)[k]() for k in ((1, 0) if odd else (0, 1))}
    expect(Y[0], np.linalg.norm(X))

products with H.T in another order:
    Y = {k: (H, H2)[k].T @ H for k in ((1, 0) if odd else (0, 1))}
    expect(Y[0], X.T @ X)

matrices made in another order:
    M = {k: dg.distribute((S, S2)[k], grid, "1d") for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(M[0] @ H), S @ X)

a product and its adjoint in another order:
    Y = {k: (A, A.T)[k] @ H for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X)

a product and gather in another order:
    for k in ((1, 0) if odd else (0, 1)):
        A @ H if k else dg.gather(H)

multiply into buffers in another order:
    Z = [dg.DistDense.empty(A.output_layout, (60, 8), X.dtype) for _ in range(2)]
    A.multiply(H, out=Z[0]), A.multiply(H2, out=Z[1])
    Y = {k: dg.gather(Z[k]) for k in ((1, 0) if odd else (0, 1))}
    expect(Y[0], S @ X)

two grids in another order:
    other = dg.Grid(world, rows=2, cols=2)
    C = dg.distribute(S, other, "2d")
    K = dg.scatter(X, C.input_layout)
    for k in ((1, 0) if odd else (0, 1)):
        C @ K if k else A @ H
"""

ORDERS_2D = """
2d, two matrices in another order:
    Y = {k: (A, B)[k] @ H for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X)

2d, two operands in another order:
    Y = {k: A @ (H, H2)[k] for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), S @ X)

2d, two columns in another order:
    Y = {k: H[:, 4 * k : 4 * k + 4] for k in ((1, 0) if odd else (0, 1))}
    expect(dg.gather(Y[0]), X[:, :4])
"""

ARGUMENTS = """
another width:
    K = dg.DistDense.empty(A.input_layout, (60, 5 if odd else 8), X.dtype)
    A @ K

another dtype:
    K = H.astype(np.float32 if odd else np.float64)
    dg.gather(K)

another factor:
    expect(dg.gather((3 if odd else 2) * A @ H), 2 * (S @ X))

another matrix of equal shape:
    expect(dg.gather((B if odd else A) @ H), S @ X)

another operand of equal shape:
    expect(dg.gather(A @ (H2 if odd else H)), S @ X)

another root:
    dg.gather(H, root=1 if odd else 0)

another algorithm:
    dg.distribute(S, grid, "rdm" if odd else "1d")

another grid:
    dg.Grid(world, **({"rows": 4} if odd else {"rows": 2, "cols": 2}))

other entries:
    dg.distribute(S2 if odd else S, grid, "1d")
"""

BARE = """
sys.exit(1) before the first grid:
    if odd: sys.exit(1)
    dg.Grid(world)

exception before the first grid:
    if odd: raise ValueError("a bug")
    dg.Grid(world)

sys.exit(1) before the first fit:
    if odd: sys.exit(1)
    dg.fit(S, X, np.arange(60) % 3, epochs=2)

rank 0 leaves before the first fit:
    if rank == 0: sys.exit(1)
    dg.fit(S, X, np.arange(60) % 3, epochs=2)

exception before the first fit:
    if odd: raise ValueError("a bug")
    dg.fit(S, X, np.arange(60) % 3, epochs=2)

sys.exit(1) before the first run:
    from distgnn.train import Run
    if odd: sys.exit(1)
    Run("graph.dg")

sys.exit(1) before the first prediction:
    from distgnn.train import Predictor
    if odd: sys.exit(1)
    Predictor("graph.dg", "weights")

sys.exit(1) before make_grid:
    if odd: sys.exit(1)
    dg.make_grid(world, "1.5d", "graph.dg")

sys.exit(1) before prepare:
    if odd: sys.exit(1)
    dg.prepare(S, X, np.arange(60) % 3, out="other.dg", comm=world)

sys.exit(1) before a plan:
    from distgnn.train import Settings
    if odd: sys.exit(1)
    dg.plan.settle_together(world, Settings(algorithm="auto"), "graph.dg")

sys.exit(1) before a fit on other communicators:
    dg.Grid(world)
    if odd: sys.exit(1)
    dg.fit(S, X, np.arange(60) % 3, epochs=2, comm=MPI.Intracomm(MPI.COMM_WORLD))

exception after a grid of some ranks:
    part = world.Split(rank < 2)
    dg.Grid(part)
    if odd: raise ValueError("a bug")
    world.Barrier()

the first grid on three ranks, then a barrier:
    if not odd: dg.Grid(world)
    world.Barrier()

leaves its part of the ranks:
    part = world.Split(rank % 2)
    grid = dg.Grid(part)
    A = dg.distribute(S, grid, "1d")
    H = dg.scatter(X, A.input_layout)
    if odd: sys.exit(1)
    A @ H
"""

TRAINS = """
break out of training:
    for epoch in run.train():
        if odd and epoch["epoch"] == 2: break

sys.exit in training:
    for epoch in run.train():
        if odd and epoch["epoch"] == 2: sys.exit(1)

exception in training:
    for epoch in run.train():
        if odd and epoch["epoch"] == 2: raise ValueError("a bug")

break out of training, then another:
    for epoch in run.train():
        if odd and epoch["epoch"] == 2: break
    Run("graph.dg", Settings(hidden=[4], epochs=2, recipe="plain"))
"""

VALID = """
all is well:
    expect(dg.gather(A @ H), S @ X)
    expect(dg.gather(A.T @ H), S.T @ X)
    expect(H.T @ H2, X.T @ X2)

gather on lines of their own:
    Y = A @ H
    if rank == 0: expect(dg.gather(Y), S @ X)
    else: dg.gather(Y)

one rank is late:
    if odd: time.sleep(6)
    expect(dg.gather(A @ H), S @ X)

one rank works on at the end:
    expect(dg.gather(A @ H), S @ X)
    if odd: time.sleep(6)

exception in a thread of the program:
    def work(): raise ValueError("in a thread")
    if odd: threading.Thread(target=work).start()
    expect(dg.gather(A @ H), S @ X)

gather at exit:
    import atexit
    Y = A @ H
    atexit.register(lambda: expect(dg.gather(Y), S @ X))

an own block on each rank:
    K = dg.DistDense(H.block * (2 if odd else 2.0), H.layout, H.shape)
    expect(dg.gather(A @ K), S @ X * 2)

all ranks finalize:
    expect(dg.gather(A @ H), S @ X)
    MPI.Finalize()

grids freed and made:
    for _ in range(20):
        other = dg.Grid(world)
        other.free()
    expect(dg.gather(A @ H), S @ X)

an error that all ranks catch:
    for _ in range(3):
        try: A @ dg.DistDense.empty(H.layout, (60, 8), np.float32)
        except ValueError: pass
    expect(dg.gather(A @ H), S @ X)

a grid on one rank of its own:
    if odd: alone = dg.Grid(MPI.COMM_SELF)
    expect(dg.gather(A @ H), S @ X)

parts of the ranks do different things:
    part = world.Split(rank % 2)
    own = dg.Grid(part)
    M = dg.distribute(S, own, "1d")
    K = dg.scatter(X, M.input_layout)
    for _ in range(3 if rank % 2 else 7): M @ K
    expect(dg.gather(A @ H), S @ X)
"""

#: Nothing need name a rank: the launcher ends the job, the program swallows the line, or all ranks end alike.
QUIET = """
os._exit(3):
    if odd: os._exit(3)
    A @ H

SIGKILL:
    if odd: os.kill(os.getpid(), signal.SIGKILL)
    A @ H

SIGTERM:
    if odd: os.kill(os.getpid(), signal.SIGTERM)
    A @ H

Abort:
    if odd: world.Abort(5)
    A @ H

exception in a product that the program catches:
    if odd: H.block = H.block[:, :5].copy()
    try: A @ H
    except Exception: sys.exit(1)

an excepthook of the program:
    sys.excepthook = lambda *error: print("mine", error[0].__name__, flush=True)
    if odd: raise ValueError("a bug")
    A @ H

leaves before grid.free:
    if odd: sys.exit(1)
    grid.free()

exception on all ranks:
    raise ValueError("a bug of rank on all")

sys.exit(3) on all ranks:
    sys.exit(3)
"""

CAUGHT = """
exception in training that the program catches:
    def train():
        for epoch in Run("graph.dg", Settings(hidden=[4], epochs=5, recipe="plain")).train():
            if odd and epoch["epoch"] == 2: raise ValueError("a bug")
    try: train()
    except Exception: pass
    sys.exit(1)
"""

QUIET_2D = """
2d, exception in a product:
    if odd: H.block = H.block[:, :3].copy()
    A @ H
"""

CASES: list[Case] = [
    *_cases(GRID, LEAVES), *_cases(GRID_2D, LEAVES_2D), *_cases(GRID, MISSES), *_cases(GRID, ORDERS),
    *_cases(GRID_2D, ORDERS_2D), *_cases(GRID, ARGUMENTS), *_cases("", BARE), *_cases(TRAIN, TRAINS),
    *_cases(GRID, QUIET, quiet=True), *_cases(GRID_2D, QUIET_2D, quiet=True),
    *_cases(TRAIN, CAUGHT, quiet=True),
    *_cases(GRID, VALID, valid=True),
    Case("300 MB of addresses", f"{PRELUDE}{GRID}", limit=300_000),
    Case("180 MB of addresses", f"{PRELUDE}{GRID}", limit=180_000),
    Case("300 MB of addresses, nothing imported", "import distgnn as dg\ndg.Grid()\n", limit=300_000),
    Case("DISTGNN_CHECK on one rank", f"{PRELUDE}{GRID}", variables={"DISTGNN_CHECK": "yes"}),
    Case("DISTGNN_STALL that is no number", f"{PRELUDE}{GRID}", variables={"DISTGNN_STALL": "soon"}),
]  # fmt: skip

"""Figures of the ranks that a job runs on, measured within a second, where nothing was calibrated."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn import ledger, progress
from distgnn.arrays import backend as backends
from distgnn.comm.agree import agree, together
from distgnn.comm.session import joined, task
from distgnn.errors import UserError
from distgnn.plan import calibrate, fit, measure
from distgnn.plan.fit import Measurement
from distgnn.plan.machine import (
    Level,
    Machine,
    SpmmRates,
    known,
    of_device,
    read,
    shown,
    with_nodes_of,
)  # fmt: skip
from distgnn.plan.measure import Budget

#: Machines that stand for those that nobody has measured.
USUAL = {False: "infiniband-cpu", True: "dgx-a100"}
SECONDS = 0.7  #: To spend on kernels and links.
KERNELS = 0.2  #: The share of them for sparse products, and then of the rest for dense ones.
WHOLE = 0.9  #: Of a core: a rank that gets less has to share it.
SILENCE = 5.0  #: Seconds in which nothing comes from another rank: the probe is given up.
SHIPPED = (
    "figures of another machine, shipped with distgnn, stand for this one. To measure it, run distgnn "
    "calibrate --out here.toml on these ranks, and train --machine here.toml"
)
RATES = "{name}'s rates, which ship with distgnn, and the links of {machine}, which nobody measured here"
#: By world ranks and arrays: products and links are measured once in a process.
_PROBED: dict[tuple[object, ...], Probe] = {}
ON_DEVICE = "at the start of a run, hosts alone are measured"


@dataclass(frozen=True)
class Probe:
    """A machine for the ranks of a job.

    Attributes:
        figures: measured, by name: bytes per second, seconds per message, flops per second of a rank.
        line: of the figures, or why there are none; for the log.
    """

    machine: Machine
    line: str
    figures: Mapping[str, float] = field(default_factory=dict)


def probe(comm: MPI.Intracomm, backend: str | None = None) -> Probe:
    """Measure the network of these ranks, level by level, and their products. Collective.

    All ranks compute, or send, at once; the slowest counts. Kernels end within a rank's turn on a core that
    it shares: they are timed by the processor's clock, and take longer by the share that a rank gets. What is
    not measured, such as the memory's share of other passes, is the shipped machine's in proportion. Takes
    about a second. Where a rank fails, or nothing comes from it for ``SILENCE`` seconds, all ranks take the
    shipped machine. The same on all ranks.
    What was measured is known from then on.
    """
    groups = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    key = backend, *MPI.Group.Translate_ranks(groups[0], range(comm.Get_size()), groups[1])
    if key in _PROBED:
        return _PROBED[key]
    shipped = usual_machine(comm, backend)
    if backends.get(backend).on_device:
        said = RATES.format(name=shipped.device, machine=shipped.name) if shipped.device else SHIPPED
        return Probe(shipped, f"not measured ({ON_DEVICE}): {said}")
    try:
        with task(comm) as ours, ledger.apart(), progress.impatient(SILENCE):
            _PROBED[key] = _probed(ours, shipped, backend)
            return _PROBED[key]
    except Exception as error:  # on all ranks, or on none
        problem = joined(comm).bcast(str(error) or type(error).__name__)
        return Probe(shipped, f"not measured ({problem}): {SHIPPED}")


def usual_machine(comm: MPI.Intracomm, backend: str | None = None) -> Machine:
    """Return the machine that stands for this one, by the arrays, and by the name of the GPU that all have.

    With as many ranks per node as there are (of unequal nodes, the most), which share a host's memory.
    Collective.
    """
    comm = joined(comm)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = comm.allreduce(node.Get_size(), MPI.MAX)
    node.Free()
    with together(comm):
        on = backends.get(backend)
        device = on.device_name()
    agree(comm, {"backend": on.name})  # those with a GPU measure nothing
    devices = set(comm.allgather(device))
    machine = read((of_device(device) if len(devices) == 1 else "") or USUAL[on.on_device])
    memory = on.memory_bytes() / (1 if on.on_device else ranks)
    return with_nodes_of(machine, ranks, comm.allreduce(memory, MPI.MIN))


def machine_here() -> Machine:
    """Return the machine that ships with the rates of the GPU of this computer. UserError: there is none."""
    device = backends.get(None).device_name()
    if name := of_device(device):
        return read(name)
    here = f"no rates of {device} ship with distgnn" if device else "this computer has no GPU"
    raise UserError(f"{here}; name a machine with --machine: {', '.join(known())}, or a file of calibrate")


def _probed(comm: MPI.Intracomm, shipped: Machine, backend: str | None) -> Probe:
    begun = time.perf_counter()
    grid, _ = calibrate.by_nodes(comm, backend)
    core = measure.share_of_a_core(grid.world)
    budget = Budget(grid.world, SECONDS, least=1, clock=time.thread_time)
    sparse = measure.sparse_products(budget.part(KERNELS), measure.BRIEF)
    dense = measure.dense_products(budget.part(KERNELS), measure.BRIEF)
    machine = scaled(shipped, slower(shipped, sparse) / core, slower(shipped, dense) / core)
    measured = list[Level]()
    if grid.size > 1:
        free = fit.free(calibrate.levels(grid))
        measured = list(calibrate.network(free, budget, grid, calibrate.BRIEF)[0].levels)
    machine = replace(machine, levels=levelled(shipped.levels, measured))
    figures = {f"{level.name} bandwidth": level.bandwidth for level in measured}
    figures |= {f"{level.name} alpha": level.alpha for level in measured}
    figures |= {"sparse flops": core * _flops(sparse), "dense flops": core * _flops(dense)}
    said = ", ".join(f"{name.rpartition(' ')[0]} {shown(name, value)}" for name, value in figures.items())
    if core < WHOLE:
        said += f", ranks share cores and have {core:.0%} of one"
    line = f"measured in {time.perf_counter() - begun:.1f} s: {said}; the rest is {shipped.name}'s"
    result = grid.world.share(Probe(machine, line, figures))
    grid.free()
    return result


def slower(machine: Machine, samples: Sequence[Measurement]) -> float:
    """Return how many times as long as on this machine the samples took: their geometric mean."""
    return float(np.exp(np.mean([np.log(sample.seconds / sample.on(machine)) for sample in samples])))


def _flops(samples: Sequence[Measurement]) -> float:
    """Return flops per second of all samples."""
    return sum(step.flops for sample in samples for step in sample.steps) / sum(s.seconds for s in samples)


def scaled(machine: Machine, sparse: float, dense: float) -> Machine:
    """Return a machine whose sparse and dense products take so many times as long.

    Other passes are read from memory as sparse products are, and take as many times as long as these.
    """
    slowed: Any = {name: SpmmRates(*(sparse * rate for rate in vars(rates).values()))
              for name, rates in vars(machine.spmm).items() if isinstance(rates, SpmmRates)}  # fmt: skip
    spmm, gemm, passes = machine.spmm, machine.gemm, machine.passes
    return replace(
        machine, name="this machine", title=f"measured at the start of a run; else {machine.name}",
        spmm=replace(spmm, call=sparse * spmm.call, **slowed),
        gemm=replace(
            gemm, call=dense * gemm.call, flops=gemm.flops / dense, bandwidth=gemm.bandwidth / dense
        ),
        passes=replace(passes, bandwidth=passes.bandwidth / sparse),
    )  # fmt: skip


def levelled(shipped: Sequence[Level], measured: Sequence[Level]) -> list[Level]:
    """Put measured figures in the place of those of the last two levels that ship: the node, the network."""
    by_name = {level.name: level for level in measured}
    if "node" in by_name:
        shipped = shipped[-2:]  # with all levels within the node
    figures = ("alpha", "bandwidth", "call", "injection")
    return [
        replace(level, kinds={}, **{name: getattr(by_name[level.name], name) for name in figures})
        if level.name in by_name else level
        for level in shipped
    ]  # fmt: skip

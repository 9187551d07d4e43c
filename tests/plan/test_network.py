"""Shares of a network that other groups use at the same time."""

import math
from dataclasses import replace
from itertools import permutations

import pytest

from distgnn.comm.sums import STRAIGHT
from distgnn.plan import Graph, dry_run
from distgnn.plan.clock import Clock
from distgnn.plan.cost_model import Network
from distgnn.plan.dry.recorder import ProgramStep
from distgnn.plan.machine import Level, Link, read
from distgnn.train.settings import Settings

GIB = 2**30


def machine(*levels):
    """Make a machine with these levels and no latency."""
    return replace(read("perlmutter"), levels=list(levels))


def bandwidth(network, axis, operation="allgather", matrix="H"):
    """Return bytes per second into a rank: "bus" bandwidth."""
    nbytes, size = 1 << 40, network.together(axis)[-1]
    straight = STRAIGHT if matrix == "sums" else ()
    step = ProgramStep("comm", operation, axis, matrix, nbytes=nbytes, messages=size - 1, shape=straight)
    return nbytes / network.seconds(step)[1]


def sizes(ranks):
    """List every x, y, z of powers of 2 with so many ranks."""
    powers = [2**i for i in range(int(math.log2(ranks)) + 1)]
    return [(x, y, ranks // x // y) for x in powers for y in powers if x * y <= ranks]


@pytest.mark.parametrize("ranks", [4, 64, 2048])
def test_plexus_rule_for_groups_that_share_a_node(ranks):
    """Section 4.2: β_Z is β_intra where X, Y and Z fit into a node, else β_inter / min(G_node, G_x G_y); Y is
    nearest in a node, then X, then Z. All orders of the axes follow from the same rule.
    """
    intra, inter, node = 200e9, 100e9, 4
    perlmutter = machine(Level("node", node, 0.0, intra), Level("network", None, 0.0, inter, injection=inter))
    for shape in sizes(ranks):
        for order in permutations(range(3)):
            grid = {"xyz"[axis]: shape[axis] for axis in order}
            network, nearer = Network(perlmutter, grid), 1
            for axis, size in reversed(grid.items()):
                expected = intra if nearer * size <= node else inter / min(node, nearer)
                if size > 1:
                    assert bandwidth(network, axis) == pytest.approx(expected), (grid, axis)
                nearer *= size


def test_sums_have_a_link_of_their_own():
    """Ours go straight from rank to rank, those of MPI around a ring: one tells nothing of the other."""
    kinds = {"sums": Link(0.0, 1e9), "allreduce": Link(0.0, 4e9)}
    network = Network(machine(Level("network", None, 0.0, 9e9, kinds=kinds)), {"x": 4})
    assert bandwidth(network, "x", "allreduce", "sums") == pytest.approx(1e9)
    assert bandwidth(network, "x", "allreduce") == pytest.approx(4e9)
    del kinds["sums"]  # as in files of before
    network = Network(machine(Level("network", None, 0.0, 9e9, kinds=kinds)), {"x": 4})
    assert bandwidth(network, "x", "allreduce", "sums") == pytest.approx(4e9)


@pytest.mark.parametrize(("node", "each"), [(1, 1.0), (2, 3 / 7), (4, 1 / 7), (8, 0.0)])
def test_sums_cross_the_network_once_per_node(node, each):
    """A rank of 8 sends (8/node - 1)/7 of its words over the network; other links cost nothing here."""
    levels = Level("node", node, 0.0, 1e30), Level("network", None, 0.0, 1e9, injection=1e30)
    network = Network(machine(*levels), {"x": 8})
    step = ProgramStep("comm", "allreduce", "x", "sums", nbytes=7e9, messages=14, shape=STRAIGHT)
    assert network.seconds(step)[1] == pytest.approx(7 * each, abs=1e-9)


#: What Plexus's authors fitted (hpcgroup/plexus), GiB/s by (product of the axes nearer in a node, ranks).
PERLMUTTER = {(1, 2): 76, (1, 8): 66.6, (1, 64): 66.6, (2, 2): 76, (2, 4): 33.3, (2, 64): 33.3,
              (4, 2): 16.6, (4, 64): 16.6, (8, 2): 16.6, (16, 64): 16.6}  # fmt: skip
FRONTIER = {(1, 2): 129, (1, 4): 52, (1, 16): 40, (1, 64): 40, (2, 2): 50, (2, 8): 20, (2, 64): 20,
            (4, 4): 10, (4, 64): 10, (8, 2): 5, (16, 64): 5}  # fmt: skip


def fitted(name):
    if name == "perlmutter":
        node = Level("node", 4, 0.0, 76 * GIB, links=3)
        return machine(node, Level("network", None, 0.0, 66.6 * GIB, injection=66.6 * GIB)), PERLMUTTER
    pair, node = Level("device", 2, 0.0, 129 * GIB), Level("node", 8, 0.0, 51 * GIB)
    return machine(pair, node, Level("network", None, 0.0, 40 * GIB, injection=40 * GIB)), FRONTIER


@pytest.mark.parametrize("name", ["perlmutter", "frontier"])
def test_plexus_empirical_table(name):
    """The table of Plexus has an entry for each case; here a figure for each level does."""
    of, table = fitted(name)
    for (nearer, size), expected in table.items():
        network = Network(of, {"z": 4096 // nearer // size, "x": size, "y": nearer})
        assert bandwidth(network, "x") / GIB == pytest.approx(expected, rel=0.03), (nearer, size)


def test_pairs_with_links_of_their_own_add_up():
    """The group of four in a Perlmutter node: three links of 76 GiB/s make 225. A ring uses one of them."""
    of, _ = fitted("perlmutter")
    network = Network(of, {"x": 2, "y": 4})
    assert bandwidth(network, "y", "allreduce", "sums") / GIB == pytest.approx(225, rel=0.03)
    assert bandwidth(network, "y", "bcast") / GIB == pytest.approx(76)


def test_the_machines_that_ship_follow_the_fits_across_nodes():
    """MPI gets NCCL's bandwidth across nodes.

    The groups that share the network are as many as a node has ranks.
    """
    for name, table in (("perlmutter", PERLMUTTER), ("frontier", FRONTIER)):
        network = Network(read(name), {"z": 64, "x": 64, "y": 8})
        assert bandwidth(network, "x") / GIB == pytest.approx(table[16, 64], rel=0.01)


def summit(all_gpus):
    """Make Summit as in CAGNET section V-B.

    The ranks that send to the next node stand on one socket, which has half of the node's 25 GB/s (section
    VI-A).
    """
    network = Level("network", None, 0.0, 12.5e9, injection=12.5e9)
    if not all_gpus:
        return machine(network)
    return machine(Level("socket", 3, 0.0, 50e9), Level("node", 6, 0.0, 64e9, injection=64e9), network)


def broadcasts(of, copies):
    """Return seconds of an epoch in which panels travel: Amazon on 64 ranks, hidden width 16."""
    settings = Settings(algorithm="1.5d", replication=copies, layers=3, hidden=16)
    amazon = Graph.of_size(14_249_639, 230_788_269, 300, 24)
    dry = dry_run(settings, amazon, 64, busiest=True, evaluation=False)
    clock = Clock(Network(of, dry.grid), flights=True).run(dry.ranks[0].epoch.steps)
    return sum(seconds for (operation, *_), seconds in clock.flight.items() if operation == "bcast")


def test_copies_hardly_cut_broadcasts_where_groups_share_a_node():
    """CAGNET section VI-A: with 6 ranks on a node of Summit, c from 1 to 2 to 4 hardly cuts the time of
    broadcasts, as c groups share what a node sends; with one rank on a node it falls nearly linearly.
    """
    full, alone = ({c: broadcasts(summit(every), c) for c in (1, 2, 4)} for every in (True, False))
    assert full[2] / full[1] == pytest.approx(1, abs=0.1)
    assert 0.6 < full[4] / full[2] < 1.01
    assert alone[2] / alone[1] == pytest.approx(1 / 2, rel=0.15)
    assert alone[4] / alone[1] == pytest.approx(1 / 4, rel=0.25)

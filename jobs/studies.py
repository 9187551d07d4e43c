"""The papers' scaling studies, sweeps and comparisons as a table; ``jobs/study.sh`` runs them.

Numbers of ranks, widths and sizes are those of the papers, each rank standing for a GPU. What a paper
compares with and is not part of distgnn is left out or stands for itself as ``about`` says.
"""

from __future__ import annotations

from dataclasses import dataclass

COMMUNITIES = "rmat --probabilities 0.4,0.1,0.1,0.4"  # recursive blocks, as of protein networks


@dataclass(frozen=True)
class Graph:
    """A published graph: nodes, non-zeros without self-loops, and what ``distgnn generate`` makes instead."""

    nodes: int
    nonzeros: int
    kind: str = "rmat"


@dataclass(frozen=True)
class Series:
    """A line or bar of a figure.

    Attributes:
        flags: of ``distgnn train``.
        order: random, double, or a method of ``prepare --partition`` for as many parts as block rows.
        copies: replication of 1.5D; root: ranks are squares (2) or cubes (3); ranks: if not the study's.
        axis: of a 3D grid, which has all ranks.
    """

    label: str
    flags: str
    order: str = "random"
    copies: int = 1
    root: int = 1
    ranks: tuple[int, ...] = ()
    axis: str = ""


@dataclass(frozen=True)
class Study:
    """A figure.

    Attributes:
        graphs: of each, widths of features and classes, and numbers of ranks.
        network: flags of ``distgnn train`` of all series.
        drawing: lines, bars or speedup over ranks; density: speed-up over the mean degree.
        parts: what bars are made of: cagnet, exchange, comm, phases, steps or sampling.
        per_node: ranks on each node, 0: as many as fit.
    """

    figure: str
    about: str
    graphs: dict[str, tuple[int, int, tuple[int, ...]]]
    series: tuple[Series, ...]
    network: str
    drawing: str = "lines"
    parts: str = ""
    per_node: int = 0


GRAPHS = {
    "reddit": Graph(232_965, 114_615_892),
    "products": Graph(2_449_029, 123_718_280),
    "products-14M": Graph(14_249_639, 230_788_269),
    "amazon": Graph(14_249_639, 230_788_269),
    "isolate-3-8M": Graph(8_745_542, 1_309_240_502, COMMUNITIES),
    "protein": Graph(8_745_542, 2_116_240_124, COMMUNITIES),
    "proteins": Graph(8_745_542, 1_300_000_000, COMMUNITIES),
    "europe_osm": Graph(50_912_018, 108_109_320, "road"),
    "papers100M": Graph(111_059_956, 1_615_685_872),
    "papers": Graph(111_059_956, 3_231_371_744),
    "arxiv": Graph(169_343, 1_166_243),
    "cora": Graph(3_327, 9_228),
    **{f"arxiv-{k}x": Graph(169_343, k * 1_166_243) for k in (1, 2, 4, 8, 16, 32, 64, 128)},
}


def powers(first: int, last: int) -> tuple[int, ...]:
    """Return powers of two."""
    return tuple(1 << k for k in range(first.bit_length() - 1, last.bit_length()))


PLEXUS = "--layers 3 --hidden 128 --optimizer adamw --train-features"
PLEXUS_3D = Series("Plexus", "--algorithm 3d", "double")
SA = Series("SA", "--algorithm 1d --sparsity-aware")
GVB = Series("SA+GVB", "--algorithm 1d --sparsity-aware", "volume")
METIS = Series("SA+METIS", "--algorithm 1d --sparsity-aware", "metis")
BNS = Series("BNS-GCN, rate 1", "--algorithm 1d --sparsity-aware", "metis")

CAGNET = "--layers 3 --hidden 16 --no-overlap"
BLOCKS = (
    Series("c=1", "--algorithm 1d"),
    *(Series(f"c={c}", f"--algorithm 1.5d --replication {c}", copies=c) for c in (2, 4)),
)
SQUARES, CUBES = (25, 64, 121), (27, 64, 125)

AWARE = "--layers 3 --hidden 16"
AMAZON, PROTEIN = (300, 24), (300, 24)

MG = "--layers 2 --hidden 512"
PLAIN = "--algorithm 1d --no-overlap --no-keep-aggregate --product-order aggregate-first"
MG_GRAPHS = {
    "cora": (3703, 6), "arxiv": (128, 40), "products": (104, 47), "proteins": (128, 256), "reddit": (602, 41),
}  # fmt: skip

SAGE = "--sampler sage --fanout 15,10,5 --layers 3 --hidden 256 --batch-size 1024 --bulk 16"
LADIES = "--sampler ladies --fanout 512 --layers 1 --batch-size 512 --bulk 16"


def copies(label: str, flags: str) -> tuple[Series, ...]:
    """Return the runs with 1, 2 and 4 copies of the features and of a graph that is cut over the ranks."""
    return tuple(Series(f"{label}c={c}", f"{flags} --replication {c}".strip(), copies=c) for c in (1, 2, 4))


STUDIES = {
    "plexus-6": Study(
        "Plexus, Figure 6 (right)",
        "3D training without and with tuned dense products. The paper tunes the gradients of weights, by one "
        "other form of the product; here every form of all dense products is timed, as BLAS differs",
        {"products-14M": (128, 32, (512, 1024))},
        (
            Series("as written", "--algorithm 3d --no-tune-gemm", "double"),
            Series("tuned", "--algorithm 3d --tune-gemm", "double"),
        ),
        PLEXUS,
        "bars",
        "phases",
    ),
    "plexus-table-2": Study(
        "Plexus, Table 2",
        "products of the first layer, of equal flops on every grid: all ranks along x (U) shorten rows of "
        "A, along y (V) they leave H few columns. The paper profiles one of 64 GPUs by hardware counters, "
        "which are not read here: seconds of both products of a layer, of all ranks at once, are compared",
        {"products": (100, 47, (64,))},
        (
            Series("U", "--algorithm 3d", "double", axis="x"),
            Series("V", "--algorithm 3d", "double", axis="y"),
        ),
        "--layers 1 --train-features --product-order aggregate-first",
        "bars",
        "phases",
    ),
    "plexus-7": Study(
        "Plexus, Figure 7",
        "3D training beside sparsity-aware 1D in a random order, in one that lowers the volume of the "
        "busiest sender (for Graph-VB), and in one by METIS (as BNS-GCN with sampling rate 1)",
        {
            "reddit": (602, 41, powers(4, 128)),
            "isolate-3-8M": (128, 32, powers(16, 1024)),
            "products-14M": (128, 32, powers(8, 1024)),
        },
        (PLEXUS_3D, SA, GVB, BNS),
        PLEXUS,
    ),
    "plexus-9": Study(
        "Plexus, Figure 9",
        "strong scaling of 3D training; of products, europe_osm and papers100M the paper's text does not "
        "give the numbers of GPUs",
        {
            "reddit": (602, 41, powers(4, 128)),
            "products": (100, 47, powers(4, 256)),
            "isolate-3-8M": (128, 32, powers(16, 1024)),
            "products-14M": (128, 32, powers(8, 1024)),
            "europe_osm": (128, 32, powers(16, 1024)),
            "papers100M": (100, 172, powers(64, 2048)),
        },
        (PLEXUS_3D,),
        PLEXUS,
    ),
    "plexus-10": Study(
        "Plexus, Figure 10",
        "communication and computation of an epoch, beside partition parallelism as BNS-GCN with rate 1",
        {"products-14M": (128, 32, powers(32, 128))},
        (BNS, PLEXUS_3D),
        PLEXUS,
        "bars",
        "comm",
    ),
    "cagnet-1": Study(
        "CAGNET, Figure 1",
        "1D, 1.5D with c = 2 and 4, and 2D, on squares of ranks: time of each kind of message",
        {
            "reddit": (602, 41, (4, 16, 36, 64)),
            "amazon": (300, 24, (16, 36, 64, 100)),
            "protein": (128, 256, (36, 64, 100)),
        },
        (*BLOCKS, Series("2D", "--algorithm 2d", root=2)),
        CAGNET,
        "bars",
        "cagnet",
    ),
    "cagnet-2": Study(
        "CAGNET, Figure 2",
        "1D and 1.5D with one GPU per node, so that broadcasts share no network card",
        {"amazon": (300, 24, (16, 36, 64, 100)), "protein": (128, 256, (36, 64, 100))},
        BLOCKS,
        CAGNET,
        "bars",
        "cagnet",
        per_node=1,
    ),
    "cagnet-3": Study(
        "CAGNET, Figure 3",
        "2D on squares and 3D on cubes of ranks, hidden width 64",
        {"amazon": (300, 24, SQUARES), "protein": (128, 256, SQUARES)},
        (Series("2D", "--algorithm 2d", root=2), Series("3D", "--algorithm 3d-split", root=3, ranks=CUBES)),
        "--layers 3 --hidden 64 --no-overlap",
        "bars",
        "cagnet",
    ),
    "sparsity-aware-3": Study(
        "Sparsity-aware, Figure 3",
        "1D: whole blocks (CAGNET), needed rows (SA), and these in an order that lowers the busiest sender's "
        "volume (for Graph-VB)",
        {
            "reddit": (602, 41, (4, 16, 32, 64)),
            "amazon": (*AMAZON, (4, 16, 32, 64, 128, 256)),
            "protein": (*PROTEIN, (4, 16, 32, 64, 128, 256)),
        },
        (Series("CAGNET", "--algorithm 1d"), SA, GVB),
        AWARE,
    ),
    "sparsity-aware-4": Study(
        "Sparsity-aware, Figure 4",
        "an epoch of Figure 3 in parts: local computation, broadcasts of whole blocks, all-to-alls of needed "
        "rows, and sums of gradients and losses, which the paper does not tell apart; nothing is overlapped. "
        "The paper's text does not give the numbers of GPUs: those of Figure 3",
        {
            "reddit": (602, 41, (4, 16, 32, 64)),
            "amazon": (*AMAZON, (4, 16, 32, 64, 128, 256)),
            "protein": (*PROTEIN, (4, 16, 32, 64, 128, 256)),
        },
        (Series("CAGNET", "--algorithm 1d"), SA, GVB),
        f"{AWARE} --no-overlap",
        "bars",
        "exchange",
    ),
    "sparsity-aware-5": Study(
        "Sparsity-aware, Figure 5",
        "the parts of Figure 4 for Papers, an R-MAT graph in place of citations unless --store names one; "
        "another partitioner stands for Graph-VB",
        {"papers": (128, 172, (16,))},
        (Series("CAGNET", "--algorithm 1d"), SA, GVB),
        f"{AWARE} --no-overlap",
        "bars",
        "exchange",
    ),
    "sparsity-aware-6": Study(
        "Sparsity-aware, Figure 6",
        "orders by METIS, for few edges between parts, and by partitions that lower the volume of the "
        "busiest sender (for Graph-VB)",
        {"amazon": (*AMAZON, (4, 16, 32, 64)), "protein": (*PROTEIN, (4, 16, 32, 64))},
        (METIS, GVB),
        AWARE,
    ),
    "sparsity-aware-7": Study(
        "Sparsity-aware, Figure 7",
        "1.5D with c = 2 and 4 copies: whole blocks, needed rows, and these in an order for P / c parts",
        {"amazon": (*AMAZON, powers(16, 256)), "protein": (*PROTEIN, powers(16, 256))},
        tuple(
            Series(f"{one.label}, c={c}", f"--algorithm 1.5d --replication {c}{more}", one.order, c)
            for c in (2, 4)
            for one, more in (
                (Series("CAGNET", ""), ""),
                (SA, " --sparsity-aware"),
                (GVB, " --sparsity-aware"),
            )
        ),
        AWARE,
    ),
    "mg-gcn-5": Study(
        "MG-GCN, Figure 5",
        "seconds of each operation; the paper names no number of GPUs, so one rank",
        {name: (*widths, (1,)) for name, widths in MG_GRAPHS.items()},
        (Series("MG-GCN", "--algorithm 1d"),),
        MG,
        "bars",
        "phases",
    ),
    "mg-gcn-9": Study(
        "MG-GCN, Figure 9",
        "speed-up over one rank while the mean degree of Arxiv grows up to 128 times (R-MAT for BTER)",
        {f"arxiv-{k}x": (512, 40, (1, 2, 4, 8)) for k in (1, 2, 4, 8, 16, 32, 64, 128)},
        (Series("MG-GCN", "--algorithm 1d"),),
        MG,
        "density",
    ),
    "mg-gcn-10": Study(
        "MG-GCN, Figure 10",
        "seconds of an epoch of 1D with all that MG-GCN adds beside 1D without; the paper's machine is a "
        "DGX-V100, here the job's; DGL is not run here",
        {name: (*widths, (1, 2, 4, 8)) for name, widths in MG_GRAPHS.items()},
        (Series("CAGNET", PLAIN), Series("MG-GCN", "--algorithm 1d")),
        MG,
    ),
    "mg-gcn-11": Study(
        "MG-GCN, Figure 11",
        "speed-up of 1D with all that MG-GCN adds beside 1D without, over one rank without; the paper's is "
        "over DGL, which is not run here",
        {name: (*widths, (1, 2, 4, 8)) for name, widths in MG_GRAPHS.items()},
        (Series("CAGNET", PLAIN), Series("MG-GCN", "--algorithm 1d")),
        MG,
        "speedup",
    ),
    "mg-gcn-12": Study(
        "MG-GCN, Figure 12",
        "seconds of an epoch; the paper's machine is a DGX-A100, here the job's; DGL is not run here, and "
        "the paper's text does not list the graphs: those of Figure 10",
        {name: (*widths, (1, 2, 4, 8)) for name, widths in MG_GRAPHS.items()},
        (Series("MG-GCN", "--algorithm 1d"),),
        MG,
    ),
    "mg-gcn-13": Study(
        "MG-GCN, Figure 13",
        "the epochs of Figure 12 as speed-up over one rank; the paper's is over DGL, which is not run here",
        {name: (*widths, (1, 2, 4, 8)) for name, widths in MG_GRAPHS.items()},
        (Series("MG-GCN", "--algorithm 1d"),),
        MG,
        "speedup",
    ),
    "sampling-4": Study(
        "Matrix-based sampling, Figure 4",
        "GraphSAGE with the graph on every rank: sampling, fetching features in c copies, propagation; "
        "the paper takes the largest c that fits, its text does not give the numbers of GPUs, nor a hidden "
        "width (256 here), and Quiver is not run here",
        {
            "products": (128, 47, powers(4, 16)),
            "papers": (128, 172, powers(4, 64)),
            "protein": (128, 256, powers(4, 128)),
        },
        copies("", SAGE),
        "",
        "bars",
        "steps",
    ),
    "sampling-5": Study(
        "Matrix-based sampling, Figure 5",
        "sampling from a graph that is cut over the ranks, in c copies, by GraphSAGE and by LADIES; the "
        "paper's text does not give the numbers of GPUs, nor a hidden width (256 here for GraphSAGE)",
        {"papers": (128, 172, powers(16, 128)), "protein": (128, 256, powers(16, 128))},
        (*copies("SAGE, ", f"{SAGE} --partition-graph"), *copies("LADIES, ", f"{LADIES} --partition-graph")),
        "",
        "bars",
        "sampling",
    ),
}

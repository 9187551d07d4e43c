"""Operations of random sequences on stored entries and over semirings, and networks of attention.

They are compared with dense arrays; see ``dense_edges.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import distgnn as dg
from dense_edges import DenseEdges, DenseSemiring
from distgnn.local.aggregate import COMBINATIONS, REDUCTIONS
from distgnn.nn.gat import GAT
from distgnn.nn.gatv2 import GATv2
from oracle_attention import GATReference, GATv2Reference
from sequence_steps import Field, Step, trained

LARGEST = 1 << 18  # places of a matrix whose entries are compared on dense arrays
SLOPES = 0.0, 0.2, 1.0
PICKS = "max", "min"


class Dealt:
    """A matrix of a field, heads and a width that they share, and dense operands on it.

    Attributes:
        A: the operator; whole: SciPy's; dense: its operators; inputs: all that was made.
    """

    def __init__(self, on: Field, A: Any, whole: Any) -> None:
        self.on, self.A, self.whole, self.dense = on, A, whole, DenseEdges(whole)
        self.heads = int(on.rng.integers(1, 5))
        self.width = self.heads * max(on.width() // self.heads, 1)
        self.inputs: list[Any] = []

    def __str__(self) -> str:
        return f"{self.A!r}, {self.heads} heads, {self.width} columns"

    def rows(self, width: int, signs: bool = False) -> tuple[np.ndarray, dg.DistDense]:
        """Make a row for each row of A; ``signs``: signs of sums with them count."""
        return self._scattered(self.whole.shape[0], width, self.A.output_layout, signs)

    def columns(self, width: int, signs: bool = False) -> tuple[np.ndarray, dg.DistDense]:
        """Make a row for each column of A."""
        return self._scattered(self.whole.shape[1], width, self.A.input_layout, signs)

    def _scattered(self, n: int, width: int, layout: Any, signs: bool) -> tuple[np.ndarray, dg.DistDense]:
        X = sixteenths(self.on, n, width) if signs else self.on.numbers(n, width)
        self.inputs.append(dg.scatter(X, layout))
        return X.astype(np.float64), self.inputs[-1]

    def edges(self) -> tuple[np.ndarray, dg.DistEdges]:
        """Make numbers of the entries."""
        X = self.on.numbers(*self.whole.shape, self.heads)
        self.inputs.append(self.A.edges(lambda i, j: X[i, j], self.heads))
        return self.dense.edges(X.astype(np.float64)), self.inputs[-1]

    def step(self, name: str, run: Callable[[], list[Any]], expected: Callable[[], list[Any]]) -> Step:
        return Step(f"{name} of {self}", self.inputs, run, expected)


def sixteenths(on: Field, *shape: int) -> np.ndarray:
    """Draw numbers that 16 bits hold, and whose sums of two do: many are 0, or equal."""
    return (on.rng.integers(-32, 33, shape) / 16).astype(on.dtype)


def dealt(on: Field) -> Dealt | None:
    """Draw a matrix with edges."""
    A, whole = on.one()
    if on.aware == "cover" or whole.shape[0] * whole.shape[1] > LARGEST:
        return None
    return Dealt(on, A, whole)


def weighed(on: Field) -> Step | None:
    """Multiply with other values, and compute the gradients of both operands."""
    if (d := dealt(on)) is None:
        return None
    A, (E, E_), (H, H_), (G, G_) = d.A, d.edges(), d.columns(d.width), d.rows(d.width)
    out = None
    if on.rng.random() < 0.5:
        out = dg.DistDense.empty(A.output_layout, (G.shape[0], d.width), on.dtype)
        d.inputs.append(out)

    def run() -> list[Any]:
        Z = A.multiply(H_, out, values=E_)
        return [Z, A.sddmm(G_, H_, d.heads), A.multiply_adjoint(G_, values=E_)]

    def expected() -> list[np.ndarray]:
        back = d.dense.multiply(E.swapaxes(0, 1), G)
        return [d.dense.multiply(E, H), d.dense.sddmm(G, H, d.heads), back]

    return d.step("values, sddmm and adjoints", run, expected)


def numbered(on: Field) -> Step | None:
    """Compute with the numbers of entries, and sum them."""
    if (d := dealt(on)) is None:
        return None
    (E, E_), (F, F_), (u, u_) = d.edges(), d.edges(), d.rows(d.heads)
    W = on.numbers(d.heads, 3)

    def run() -> list[Any]:
        made = [d.A.edges(), 2 * E_ - F_ * E_ + 1, E_.mixed(W), F_.row_sums_back(u_)]
        return [*made, E_.row_sums(), F_.column_sums()]

    def expected() -> list[np.ndarray]:
        own, of_rows = d.whole.toarray()[:, :, None], np.repeat(u[:, None], E.shape[1], axis=1)
        return [own, d.dense.edges(2 * E - F * E + 1), E @ W, d.dense.edges(of_rows), E.sum(1), F.sum(0)]

    return d.step("arithmetic and sums", run, expected)


def scored(on: Field) -> Step | None:
    """Compute attention operator by operator, and back."""
    if (d := dealt(on)) is None:
        return None
    A, (D, D_), (u, u_), (v, v_) = d.A, d.edges(), d.rows(d.heads, True), d.columns(d.heads, True)
    slope, scale = float(on.rng.choice(SLOPES)), int(on.rng.choice([1, 1, 512]))  # exp(512) overflows

    def run() -> list[Any]:
        E = scale * A.edge_sum(u_, v_)
        leaky = E.leaky_relu(slope)
        P = leaky.softmax()
        back = P.softmax_back(D_)
        through = E.leaky_relu_back(back, slope)
        return [E, leaky, P, back, through, through.row_sums(), through.column_sums()]

    def expected() -> list[np.ndarray]:
        E = scale * d.dense.edges(u[:, None] + v[None])
        leaky, P, back, through = softmax_and_back(d, E, slope, D)
        return [E, leaky, P, back, through, through.sum(axis=1), through.sum(axis=0)]

    return d.step(f"edge_sum x {scale}, leaky_relu {slope}, softmax and adjoints", run, expected)


def softmax_and_back(d: Dealt, E: np.ndarray, slope: float, D: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return scores, probabilities, the gradient of the scores from D, and that of E."""
    slopes = np.where(E > 0, 1, slope)
    P = d.dense.softmax(E * slopes)
    back = P * (D - (P * D).sum(axis=1, keepdims=True))
    return E * slopes, P, back, back * slopes


def attended(on: Field) -> Step | None:
    """Compute graph attention in one pass, and its gradients, in the fused way with a mask."""
    if (d := dealt(on)) is None:
        return None
    A, (u, u_), (v, v_) = d.A, d.rows(d.heads, True), d.columns(d.heads, True)
    (H, H_), (G, G_), (M, M_) = d.columns(d.width), d.rows(d.width), d.edges()
    slope, how = float(on.rng.choice(SLOPES)), ("fused", "overwriting", "")[int(on.rng.integers(3))]

    def through(numbers: Any, part: Any) -> None:
        numbers *= M_.data[part]

    def run() -> list[Any]:
        P = A.edge_softmax(u_, v_, slope)
        kept, dP = P.like(P.data.copy()), A.sddmm(G_, H_, d.heads)
        values = P.masked(through) if how == "fused" else P
        made = [kept, A.multiply(H_, values=values), A.multiply_adjoint(G_, values=values)]
        if how == "fused":
            return [*made, *A.attention_back(P, G_, H_, through), dP]
        return [*made, *A.edge_softmax_back(P, dP, overwrite=how == "overwriting"), dP]

    def expected() -> list[np.ndarray]:
        dP, masks = d.dense.sddmm(G, H, d.heads), M if how == "fused" else 1
        _, P, _, back = softmax_and_back(d, d.dense.edges(u[:, None] + v[None]), slope, dP * masks)
        made = [P, d.dense.multiply(P * masks, H), d.dense.multiply((P * masks).swapaxes(0, 1), G)]
        return [*made, back.sum(axis=1), back.sum(axis=0), back if how == "overwriting" else dP]

    return d.step(f"edge_softmax {slope}, with products and {how} adjoints", run, expected)


def added(on: Field) -> Step | None:
    """Compute additive scores, and their gradients."""
    if (d := dealt(on)) is None or d.whole.shape[0] * d.whole.shape[1] * d.width > 1 << 22:
        return None
    A, (D, D_) = d.A, d.edges()
    (L, L_), (R, R_) = d.rows(d.width, True), d.columns(d.width, True)
    a, slope = on.numbers(d.width), float(on.rng.choice(SLOPES))

    def run() -> list[Any]:
        E = A.additive_scores(L_, R_, a, d.heads, slope)
        return [E, *E.back(D_)]

    def expected() -> list[np.ndarray]:
        ends = L[:, None] + R[None]
        slopes = np.where(ends > 0, 1, slope)
        scores = (a * ends * slopes).reshape(*ends.shape[:2], d.heads, -1).sum(axis=3)
        through = np.repeat(D, d.width // d.heads, axis=2) * slopes
        dL, dR = a * through.sum(axis=1), a * through.sum(axis=0)
        return [d.dense.edges(scores), dL, dR, (through * ends).sum(axis=(0, 1))]

    return d.step(f"additive scores, {slope}, and adjoint", run, expected)


def aggregated(on: Field) -> Step | None:
    """Reduce over two semirings, and compute their gradients."""
    if (d := dealt(on)) is None:
        return None
    A, (G, G_), picks = d.A, d.rows(d.width), []
    H, H_ = d.columns(d.width, signs=True)
    for _ in range(2):
        picks.append((str(on.rng.choice(REDUCTIONS)), str(on.rng.choice(COMBINATIONS))))

    def run() -> list[Any]:
        made = [A.aggregate(H_, *how, keep=True) for how in picks]
        nodes = [picked.nodes() for (how, _), (_, picked) in zip(picks, made, strict=True) if how in PICKS]
        return [Z for Z, _ in made] + [A.aggregate_back(G_, picked) for _, picked in made] + nodes

    def expected() -> list[np.ndarray]:
        M = [d.whole.astype(on.dtype if how in PICKS else np.float64) for how, _ in picks]  # ties: its sums
        made = [DenseSemiring(A, H.astype(A.dtype), *how) for A, how in zip(M, picks, strict=True)]
        nodes = [one.nodes for one in made if one.reduce in PICKS]
        return [one.product for one in made] + [one.back(G) for one in made] + nodes

    return d.step(f"aggregate {picks} and adjoints", run, expected)


def attention(on: Field) -> Step | None:
    """Train a network of graph attention, with dropout of attention."""
    kind, serial = (GAT, GATReference), (GATv2, GATv2Reference)
    network, reference = (kind, serial)[int(on.rng.integers(2))]
    if on.aware == "cover" or on.wire is not None:
        return None
    heads = on.rng.integers(1, 5, int(on.rng.integers(1, 4))).tolist()
    widths = [min(on.width(), 64) for _ in range(len(heads) + 1)]
    widths[1:-1] = [h * max(width // h, 1) for h, width in zip(heads, widths[1:-1], strict=False)]
    options = {"heads": heads, "bias": True, "attention_dropout": float(on.rng.choice([0, 0.4]))}
    return trained(on, network, reference, options, widths)


def refused(on: Field) -> Step | None:
    """Ask for what cannot be: the same documented error on every rank."""
    A, whole = on.one()
    H = dg.scatter(on.numbers(whole.shape[1], 6), A.input_layout)
    G = dg.scatter(on.numbers(whole.shape[0], 6), A.output_layout)
    calls = (of_covers if on.aware == "cover" else of_edges)(A, H, G)
    other = next((B for B, _ in on.matrices if B is not A), None)
    if on.aware != "cover" and other is not None:
        E = A.edges()
        calls["are edges of another operator"] = lambda: other.multiply(H, values=E)
    words = str(on.rng.choice(list(calls)))

    def run() -> list[str]:
        try:
            calls[words]()
            told = "nothing was refused"
        except (dg.UserError, ValueError, TypeError) as error:
            told = str(error)
        return ["\n".join({*on.grid.world.gather_objects(told)})]  # one line: the same on all ranks

    return Step(f"{words} by {A!r}", [H, G], run, lambda: [words])


def of_covers(A: Any, H: dg.DistDense, G: dg.DistDense) -> dict[str, Callable[[], Any]]:
    """Return by words of its error what a matrix refuses that sends rows of covers."""
    return {
        "sparsity_aware=cover: edges lie where their rows do": lambda: A.sddmm(G, H),
        "max and pattern takes the entries of a row together": lambda: A.aggregate(H, "max"),
    }


def of_edges(A: Any, H: dg.DistDense, G: dg.DistDense) -> dict[str, Callable[[], Any]]:
    """Return by words of its error what any other matrix refuses, beside matrices of 6 columns."""
    E = A.edges(heads=2)
    return {
        "heads=4: must divide the 6 columns": lambda: A.sddmm(G, H, heads=4),
        "heads=5: must divide the 6 columns": lambda: A.multiply(H, values=A.edges(heads=5)),
        "expected 2 heads": lambda: E * A.edges(),
        "expected sum, mean, max, min": lambda: A.aggregate(H, "product"),
        "takes from all neighbours": lambda: A.aggregate(H, keep=True)[1].nodes(),
        "expected what A.edge_softmax": lambda: A.edge_softmax_back(E, E),
        "slope=-0.5: must not be negative": lambda: A.edge_softmax(G, H, -0.5),
        "expected (6,), a number for each column": lambda: A.additive_scores(G, H, np.ones(5)),
    }


#: What may be drawn beside :data:`sequence_steps.STEPS`.
STEPS: list[Callable[[Field], Step | None]] = [
    weighed, weighed, numbered, scored, attended, added, aggregated, aggregated, attention, refused,
]  # fmt: skip

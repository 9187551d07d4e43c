"""Optimisers on the blocks that a rank holds: element by element, so a cut weight needs no communication.

Where a weight is replicated every replica makes the same step from the same gradient. Blocks are updated in
place in pieces that stay in cache: trained features are as large as the graph, and temporaries of their size
    are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distgnn import rng
from distgnn.arrays import backend
from distgnn.errors import ArgumentError
from distgnn.local import cuda, host
from distgnn.nn.dispatch import compiled, on_gpu
from distgnn.operators.dense import DistDense

Array = Any
Decay = float | Sequence[float]


@dataclass(eq=False)
class Parameter:
    """Something that is trained, as far as this rank holds it.

    Attributes:
        name: "W0", "b0", ..., "X"; layer: from 0; kind: "weight", "bias" or "features".
        matrix: this rank's block and where it stands in the global matrix (a bias is a matrix of one row).
    """

    name: str
    layer: int
    kind: str
    matrix: DistDense

    @property
    def block(self) -> Array:
        return self.matrix.block


class Optimizer:
    """What the optimisers share.

    Args:
        lr: step size.
        weight_decay: one number for all layers, or one per layer, of which the last repeats. Biases and
            features are not decayed.

    Attributes:
        steps: updates made so far.
        state: parameter name -> slot name -> block like the parameter's; what a checkpoint must hold besides
            `steps`.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, lr: float = 0.01, weight_decay: Decay = 0.0) -> None:
        self.lr = float(lr)
        decays = weight_decay if isinstance(weight_decay, Sequence) else [weight_decay]
        self.weight_decay = [float(decay) for decay in decays]
        self.steps = 0
        self.state: dict[str, dict[str, Array]] = {}

    def decay(self, parameter: Parameter) -> float:
        """The weight decay of one parameter."""
        if parameter.kind != "weight":
            return 0.0
        return self.weight_decay[min(parameter.layer, len(self.weight_decay) - 1)]

    def prepare(self, parameters: Sequence[Parameter]) -> None:
        """Make zeroed state for parameters that have none yet (the first step does so itself)."""
        for p in parameters:
            if p.name not in self.state:
                xp = backend.module(p.block)
                self.state[p.name] = {slot: xp.zeros_like(p.block) for slot in self.slots}

    def step(self, parameters: Sequence[Parameter], gradients: Sequence[Array]) -> None:
        """Update every parameter's block in place from its gradient, which may be used as scratch."""
        self.prepare(parameters)
        self.steps += 1
        for p, gradient in zip(parameters, gradients, strict=True):
            state = self.state[p.name]
            for w, g, *slots in _pieces(p.block, gradient, *(state[slot] for slot in self.slots)):
                self._update(w, g, *slots, decay=self.decay(p))

    def _update(self, w: Array, g: Array, *slots: Array, decay: float) -> None:
        raise NotImplementedError


class SGD(Optimizer):
    """v <- momentum v + (g + decay w);  w <- w - lr v."""

    def __init__(self, lr: float = 0.01, weight_decay: Decay = 0.0, momentum: float = 0.0) -> None:
        super().__init__(lr, weight_decay)
        self.momentum = float(momentum)
        self.slots = ("velocity",) if momentum else ()

    def _update(self, w: Array, g: Array, *slots: Array, decay: float) -> None:
        if decay:
            g += decay * w
        if slots:
            v = slots[0]
            v *= self.momentum
            v += g
            g = v
        w -= self.lr * g


class Adam(Optimizer):
    """Kingma and Ba: Adam, ICLR 2015, Algorithm 1; the weight decay is the gradient of an L2 penalty, decay/2
    ||w||².
    """

    slots = ("m", "v")
    decoupled = False

    def __init__(
        self, lr: float = 0.01, weight_decay: Decay = 0.0, betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:  # fmt: skip
        super().__init__(lr, weight_decay)
        self.betas, self.epsilon = betas, epsilon

    def _update(self, w: Array, g: Array, *slots: Array, decay: float) -> None:
        m, v = slots
        first, second = self.betas
        if compiled(w):
            shrink, decay = (1 - self.lr * decay, 0.0) if self.decoupled else (1.0, decay)
            rate, correction = self.lr / (1 - first**self.steps), 1 - second**self.steps
            host.adam(
                w, g, m, v, rate=rate, correction=correction, first=first, second=second,
                epsilon=self.epsilon, shrink=shrink, decay=decay,
            )  # fmt: skip
            return
        if on_gpu(w):
            cuda.adam(
                w, g, m, v, step=self.steps, lr=self.lr, betas=self.betas, epsilon=self.epsilon, decay=decay,
                decoupled=self.decoupled,
            )  # fmt: skip
            return
        if decay and self.decoupled:
            w *= 1 - self.lr * decay
        elif decay:
            g += decay * w
        m *= first
        m += (1 - first) * g
        g *= g
        v *= second
        v += (1 - second) * g
        denominator = v / (1 - second**self.steps)
        denominator **= 0.5
        denominator += self.epsilon
        w -= (self.lr / (1 - first**self.steps)) * m / denominator


class AdamW(Adam):
    """Adam with decoupled weight decay: w <- (1 - lr decay) w before the step.

    Loshchilov and Hutter: Decoupled weight decay regularization, ICLR 2019, Algorithm 2.
    """

    decoupled = True


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make(name: str, lr: float = 0.01, weight_decay: Decay = 0.0, momentum: float = 0.0) -> Optimizer:
    """The optimiser called `name`.

    Raises:
        UserError: no such optimiser, or a number out of range.
    """
    if name not in OPTIMIZERS:
        raise ArgumentError("optimizer", name, f"no such optimiser; choose one of {', '.join(OPTIMIZERS)}")
    if not (math.isfinite(lr) and lr > 0):
        raise ArgumentError("lr", lr, "the step size must be a positive number")
    if not 0 <= momentum < 1:
        raise ArgumentError("momentum", momentum, "must be in [0, 1)")
    if momentum and name != "sgd":
        raise ArgumentError("momentum", momentum, "only optimizer=sgd has a momentum")
    decays = list(weight_decay) if isinstance(weight_decay, Sequence) else [weight_decay]
    if not decays or not all(math.isfinite(w) and w >= 0 for w in decays):
        raise ArgumentError("weight_decay", decays, "must be numbers that are at least 0")
    if name == "sgd":
        return SGD(lr, decays, momentum)
    return OPTIMIZERS[name](lr, decays)


def _pieces(*blocks: Array) -> Iterator[tuple[Array, ...]]:
    """Corresponding flat pieces (views) of blocks of equal size."""
    flat = [block.reshape(-1) for block in blocks]
    step = rng.block_rows(1, backend.module(blocks[0]))
    for start in range(0, flat[0].size, step):
        yield tuple(f[start : start + step] for f in flat)

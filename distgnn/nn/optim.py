"""Optimisers on the blocks that a rank holds: element by element, so a cut weight needs no communication.

Replicas of a weight make the same step from the same gradient. Blocks are updated in place, as much at a time
as stays in cache: trained features are as large as the graph, and temporaries should not be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgnn import ledger
from distgnn.arrays import backend, blocking
from distgnn.errors import ArgumentError, offered
from distgnn.local import elementwise
from distgnn.local.update import GROUP, Part, Update
from distgnn.nn.finite import QUIETLY, Watch
from distgnn.operators.dense import DistDense

Array = Any
Decay = float | Sequence[float]


@dataclass(eq=False)
class Parameter:
    """Something that is trained, as far as this rank holds it.

    Attributes:
        name: "W0", "b0", ..., "X"; layer: from 0; kind: "weight", "bias" or "features".
        matrix: this rank's block and where it stands in the global matrix (a bias is a matrix of one row).
        decays: whether weight decay is for it, as for weights.
    """

    name: str
    layer: int
    kind: str
    matrix: DistDense
    decays: bool = False

    @property
    def block(self) -> Array:
        """The block of the matrix on this rank."""
        return self.matrix.block


class Optimizer:
    """The base class of optimisers.

    Args:
        lr: step size.
        weight_decay: one number for all layers, or one per layer, of which the last repeats. Biases and
            features are not decayed.
        clip: the largest norm of a step's gradients, all of them taken as one vector, before decay; larger
            ones are scaled down to it. None: any.

    Attributes:
        steps: updates made so far.
        state: parameter name -> slot name -> block like the parameter's. A checkpoint holds it and `steps`.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, lr: float = 0.01, weight_decay: Decay = 0.0, clip: float | None = None) -> None:
        self.lr, self.clip = float(lr), None if clip is None else float(clip)
        decays = weight_decay if isinstance(weight_decay, Sequence) else [weight_decay]
        self.weight_decay = [float(decay) for decay in decays]
        self.steps = 0
        self.state: dict[str, dict[str, Array]] = {}
        self._bad: Array = None

    def facts(self) -> dict[str, Any]:
        """Return what ranks must have set alike, by name: the optimiser's kind and all of its numbers."""
        plain = (int, float, str, list, tuple, type(None))  # an optimiser of the caller's may hold anything
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        numbers = {name: value for name, value in given.items() if isinstance(value, plain)}
        return {"optimizer": type(self).__name__, **numbers}

    def decay(self, parameter: Parameter) -> float:
        """Return the weight decay of one parameter."""
        if parameter.kind != "weight" and not parameter.decays:
            return 0.0
        return self.weight_decay[min(parameter.layer, len(self.weight_decay) - 1)]

    def prepare(self, parameters: Sequence[Parameter]) -> None:
        """Make zeroed state for parameters that have none yet (the first step does so itself)."""
        for p in parameters:
            if p.name not in self.state:
                xp = backend.module(p.block)
                state = self.state[p.name] = {slot: xp.zeros_like(p.block) for slot in self.slots}
                ledger.holds(self, "optimizer", sum(block.nbytes for block in state.values()))

    @QUIETLY
    def step(self, parameters: Sequence[Parameter], gradients: Sequence[Array]) -> None:
        """Update every parameter's block in place from its gradient, which may be used as scratch.

        Collective. Cost: with `clip` an all-reduce of one word over all ranks; else none.

        Raises:
            NotFiniteError: a gradient or an updated parameter is not finite (on every rank). The parameters
                are of no use then.
        """
        self.prepare(parameters)
        self.steps += 1
        self.finish(self.queue(parameters, gradients))

    def finish(self, watch: Watch) -> None:
        """Wait for an update. Collective; raises as :meth:`step`."""
        watch.check()
        self._bad = watch.bad  # all zeros still

    def queue(
        self, parameters: Sequence[Parameter], gradients: Sequence[Array], factors: Array = None
    ) -> Watch:  # fmt: skip
        """Update parameters that are prepared, without looking at what comes of it; return who does.

        Collective. factors: on a GPU float64, the :meth:`numbers` of the step in memory that is read when it
        is made.
        """
        watch = Watch(parameters)
        square = None if self.clip is None else _square(parameters, gradients)
        for p in parameters:
            arrays = 2 + len(self.slots)
            ledger.charge("optimizer", "step", touched=(2 * arrays - 1) * p.block.nbytes)
        parts = [self._part(p, g) for p, g in zip(parameters, gradients, strict=True)]
        if not (parts and self._at_once(parts, square, watch, factors)):
            self._one_by_one(parameters, parts, square, watch)
        return watch

    def numbers(self, parameters: Sequence[Parameter]) -> np.ndarray:
        """Return the numbers of this step that change from step to step: the factors of :class:`Update`."""
        shrinks = [self._factors(self.decay(p))[0] for p in parameters]
        shrinks += [1.0] * (-len(shrinks) % GROUP)
        return np.array([[*self._rates(), *shrinks[i : i + GROUP]] for i in range(0, len(shrinks), GROUP)])

    def _part(self, p: Parameter, gradient: Array) -> Part:
        state = self.state[p.name]
        w, g, *slots = (a.reshape(-1) for a in (p.block, gradient, *(state[slot] for slot in self.slots)))
        return Part(w, g, tuple(slots), *self._factors(self.decay(p)))

    def _factors(self, decay: float) -> tuple[float, float]:
        """Return by what a parameter is multiplied before a step, and what of it is added to its gradient."""
        return 1.0, decay

    def _at_once(self, parts: Sequence[Part], square: Array, watch: Watch, factors: Array) -> bool:
        """Update all parameters by one kernel; False: there is none."""
        if self.kernel is None:
            return False
        bad, self._bad = self._bad, None
        if bad is None or bad.size != 2 * len(parts):
            bad = backend.module(parts[0].w).zeros(2 * len(parts), np.int32)
        update = Update(self._rates(), bad, square, self.clip or 0.0, factors)
        if not elementwise.update_all(self.kernel, parts, update, **self.constants()):
            return False
        watch.looked(bad)
        return True

    @property
    def kernel(self) -> str | None:
        """The name of the kernel that makes steps; None: there is none, as for an optimiser of the user's."""
        return None

    def _rates(self) -> tuple[float, ...]:
        """Return the numbers that change from step to step, as the kernel takes them."""
        return (self.lr,)

    def constants(self) -> dict[str, float]:
        """Return the numbers of the kernel that stay from step to step, by the names of its arguments."""
        return {}

    def _one_by_one(
        self, parameters: Sequence[Parameter], parts: Sequence[Part], square: Array, watch: Watch
    ) -> None:
        scale = None if square is None or self.clip is None else _scale(self.clip, square)
        for index, (p, whole) in enumerate(zip(parameters, parts, strict=True)):
            for part in blocking.passes(whole.w):  # looked at while in cache
                w, g, *slots = (array[part] for array in (whole.w, whole.gradient, *whole.slots))
                watch.gradient(index, g)
                if scale is not None:
                    g *= scale
                self._update(w, g, *slots, decay=self.decay(p))
                watch.parameter(index, w)

    def _update(self, w: Array, g: Array, *slots: Array, decay: float) -> None:
        raise NotImplementedError


def _square(parameters: Sequence[Parameter], gradients: Sequence[Array]) -> Array:
    """Sum the squares of all gradients: (1), float64, on the device.

    Each number of a matrix counts once, from the rank that answers for its copies. Collective.
    """
    grid = parameters[0].matrix.grid
    xp = grid.backend.xp
    square = xp.zeros(1, np.float64)
    for gradient in gradients:
        ledger.charge("optimizer", "norm", touched=gradient.nbytes)
    own = [g.reshape(-1) for p, g in zip(parameters, gradients, strict=True) if p.matrix.layout.primary]
    if own and not elementwise.sum_squares(own, square):
        for flat in own:
            for part in blocking.passes(flat):
                square += xp.vdot(flat[part], flat[part])
    return grid.world.allreduce(square, matrix="norm")


def _scale(most: float, square: Array) -> Array:
    """Return the factor of gradients that limits their norm to this: (1), float64, on the device.

    A norm that is not finite leaves gradients as they are, for :class:`Watch` to say which is not.
    """
    xp = backend.module(square)
    norm = xp.sqrt(square)
    return xp.where(xp.isfinite(norm), most / xp.maximum(norm, most), 1.0)


class SGD(Optimizer):
    """v <- momentum v + (g + decay w);  w <- w - lr v."""

    def __init__(
        self, lr: float = 0.01, weight_decay: Decay = 0.0, momentum: float = 0.0, clip: float | None = None
    ) -> None:
        super().__init__(lr, weight_decay, clip)
        self.momentum = float(momentum)
        self.slots = ("velocity",) if momentum else ()

    @property
    def kernel(self) -> str | None:
        return "sgd" if type(self)._update is SGD._update else None

    def constants(self) -> dict[str, float]:
        return {"momentum": self.momentum}

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
    """Kingma and Ba: Adam, ICLR 2015, Algorithm 1; weight decay is the gradient of decay/2 ||w||²."""

    slots = ("m", "v")
    decoupled = False

    def __init__(
        self, lr: float = 0.01, weight_decay: Decay = 0.0, betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8, clip: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(lr, weight_decay, clip)
        self.betas, self.epsilon = betas, epsilon

    def _factors(self, decay: float) -> tuple[float, float]:
        return (1 - self.lr * decay, 0.0) if self.decoupled else (1.0, decay)

    def _rates(self) -> tuple[float, float]:
        first, second = self.betas
        return self.lr / (1 - first**self.steps), 1 - second**self.steps

    @property
    def kernel(self) -> str | None:
        return "adam" if type(self)._update is Adam._update else None

    def constants(self) -> dict[str, float]:
        return {"first": self.betas[0], "second": self.betas[1], "epsilon": self.epsilon}

    def _update(self, w: Array, g: Array, *slots: Array, decay: float) -> None:
        first, second = self.betas
        (rate, correction), (shrink, decay) = self._rates(), self._factors(decay)
        factors = {"rate": rate, "correction": correction, "shrink": shrink, "decay": decay}
        elementwise.adam(w, g, *slots, first=first, second=second, epsilon=self.epsilon, **factors)


class AdamW(Adam):
    """Adam after w <- (1 - lr decay) w (Loshchilov and Hutter, ICLR 2019, Algorithm 2)."""

    decoupled = True


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make(
    name: str, lr: float = 0.01, weight_decay: Decay = 0.0, momentum: float = 0.0, clip: float | None = None
) -> Optimizer:
    """Make the optimiser called `name`; ArgumentError where there is none, or a number is out of range."""
    if name not in OPTIMIZERS:
        raise ArgumentError("optimizer", name, f"no such optimiser; {offered(name, OPTIMIZERS)}")
    if not (math.isfinite(lr) and lr > 0):
        raise ArgumentError("lr", lr, "the step size must be a positive number")
    if not 0 <= momentum < 1:
        raise ArgumentError("momentum", momentum, "must be in [0, 1)")
    if momentum and name != "sgd":
        raise ArgumentError("momentum", momentum, "only optimizer=sgd has a momentum")
    decays = list(weight_decay) if isinstance(weight_decay, Sequence) else [weight_decay]
    if not decays or not all(math.isfinite(w) and w >= 0 for w in decays):
        raise ArgumentError("weight_decay", decays, "must be numbers that are at least 0")
    if clip is not None and not (math.isfinite(clip) and clip > 0):
        raise ArgumentError("clip", clip, "the largest norm of a gradient must be a positive number")
    if name == "sgd":
        return SGD(lr, decays, momentum, clip)
    return OPTIMIZERS[name](lr, decays, clip=clip)

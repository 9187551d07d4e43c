"""Serial oracles of the optimisers: the updates of plain NumPy arrays, apart from those of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgnn.nn.finite import NotFiniteError


class ReferenceOptimizer:
    """SGD, Adam or AdamW on the arrays of a serial network.

    Args:
        kind: "sgd", "adam" or "adamw".
        weight_decay: of weight matrices; of several numbers each layer has one, and the last repeats.
        momentum: of sgd.
        clip: the norm to which larger gradients, taken as one vector, are scaled.

    Attributes:
        steps: updates made so far. slots: names of the arrays in `state`, by parameter.
    """

    def __init__(
        self, kind: str = "adam", weight_decay: float | Sequence[float] = 0.0, momentum: float = 0.0,
        clip: float | None = None,
    ) -> None:  # fmt: skip
        self.kind, self.momentum, self.clip, self.steps = kind, momentum, clip, 0
        self.decays = np.atleast_1d(weight_decay).tolist()
        self.slots = ("velocity",) if kind == "sgd" else ("m", "v")
        self.state: dict[str, list[Any]] = {}

    def step(self, arrays: Mapping[str, np.ndarray], gradients: Mapping[str, Any], lr: float) -> None:
        """Update arrays in place from their gradients. NotFiniteError: an array is not finite then.

        Both are by name: a word, and but for features the number of the layer. All matrices are decayed but
        biases, gains, shifts and features.
        """
        self.steps += 1
        scale, rule = self._scale(gradients), {"sgd": self._sgd}.get(self.kind, self._adam)
        for name, w in arrays.items():
            kind = name.rstrip("0123456789")
            layer = int(name[len(kind) :] or 0)
            decay = 0.0 if kind in ("b", "g", "s", "X") else self.decays[min(layer, len(self.decays) - 1)]
            with np.errstate(all="ignore"):
                rule(name, w, scale * gradients[name], lr, decay)
            if not np.isfinite(w).all():
                raise NotFiniteError(f"{name} is not finite after the update", layer)

    def _scale(self, gradients: Mapping[str, Any]) -> float:
        """Return the factor that scales these gradients down to a norm of `clip`."""
        norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
        return 1.0 if self.clip is None or norm <= self.clip else self.clip / norm

    def _sgd(self, name: str, w: Any, g: Any, lr: float, decay: float) -> None:
        g = g + decay * w
        (v,) = self.state.get(name, [0])
        v = self.momentum * v + g
        self.state[name] = [v]
        w -= lr * v

    def _adam(self, name: str, w: Any, g: Any, lr: float, decay: float) -> None:
        """Update by Adam with beta = (0.9, 0.999) and epsilon = 1e-8.

        Kingma and Ba: Adam, ICLR 2015, Algorithm 1. AdamW decays the array, Adam the gradient.
        """
        if self.kind == "adamw":
            w *= 1 - lr * decay
        else:
            g = g + decay * w
        m, v = self.state.get(name, [0, 0])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        self.state[name], t = [m, v], self.steps
        w -= lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)

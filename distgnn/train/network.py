"""Options of a network and of its serial reference, as settings and checkpoints have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distgnn.errors import ArgumentError
from distgnn.nn.gat import spread
from distgnn.nn.networks import NETWORKS
from distgnn.train.settings import HEADS, Settings

#: Options that all networks have, and those of attention.
ALL, OF_ATTENTION = ("dropout", "bias", "residual", "layer_norm"), ("heads", "attention_dropout")


def options(settings: Settings) -> dict[str, Any]:
    """Return what a network and its serial reference are given of resolved settings."""
    given = {name: getattr(settings, name) for name in ("seed", *ALL)}
    return given | special(str(settings.model), vars(settings))


def special(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that only some networks need to have, as far as they are given and no default.

    A network of the user's, in ``NETWORKS``, is given none of them unasked.
    """
    wanted = {name: given.get(name) for name in OF_ATTENTION if NETWORKS[model].attends}
    activation = given.get("activation") or "relu"  # checkpoints of before have none
    wanted |= {"activation": activation} if activation != NETWORKS[model].activation else {}
    return {name: value for name, value in wanted.items() if value is not None}


def identity(settings: Settings) -> dict[str, Any]:
    """Return those options by which a checkpoint tells networks apart, without what is off."""
    s = settings
    names = "residual", "layer_norm", *OF_ATTENTION
    options = {name: getattr(s, name) for name in names if getattr(s, name)}
    return options | ({"activation": s.activation} if s.activation != "relu" else {})


def resolved_options(s: Settings, model: str) -> dict[str, Any]:
    """Fill in the options of networks that depend on which one it is.

    Raises:
        ArgumentError: heads, or their dropout, for a network without attention; heads that do not share their
            layer's width, or are not one for each layer; no share to drop; covers for attention.
    """
    filled: dict[str, Any] = {"activation": s.activation or NETWORKS[model].activation}
    if not NETWORKS[model].attends:
        for name in OF_ATTENTION:
            if (value := getattr(s, name)) is not None:
                raise ArgumentError(name, value, f"is for models with attention, gat and gatv2, not {model}")
        return filled
    if s.sparsity_aware == "cover":
        problem = f"excludes model={model}, whose edges lie where their rows do; take True, or False"
        raise ArgumentError("sparsity_aware", "cover", problem)
    heads = spread(s.heads or HEADS, len(s.hidden_widths) + 1)
    for layer, (width, number) in enumerate(zip(s.hidden_widths, heads, strict=False)):
        if width % number:
            raise ArgumentError("heads", number, f"must share the width {width} of layer {layer} evenly")
    rate = s.attention_dropout or 0.0
    if not 0 <= rate < 1:
        raise ArgumentError("attention_dropout", rate, "must be at least 0 and less than 1")
    return filled | {"heads": heads, "attention_dropout": rate}

"""Recipes: sets of settings by name, after papers. They are the defaults of what is not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The recipe of a run that names none.
DEFAULT = "kipf-welling"
#: The weight decay of the first layer in Kipf and Welling, ICLR 2017, section 5.2; other layers have none.
FIRST_DECAY = 5e-4

_PLAIN: dict[str, Any] = {
    "hidden": (16,), "bias": False, "dropout": 0.0, "normalize_features": False,
    "standardize_features": False, "epochs": 200, "lr": 0.01, "weight_decay": (0.0,), "keep_best": "none",
}  # fmt: skip
#: None: decay on the first layer, features divided where they are counts, else
#: standardised where their scales differ, the best weights where there is a
#: validation split.
_KIPF_WELLING = _PLAIN | {
    "bias": True, "dropout": 0.5, "weight_decay": None, "normalize_features": None, "keep_best": None,
    "standardize_features": None,
}  # fmt: skip
#: Hamilton, Ying and Leskovec, NeurIPS 2017, section 4, with dropout: two layers on sampled neighbours.
_GRAPHSAGE = _KIPF_WELLING | {
    "model": "sage", "sampler": "sage", "hidden": (256,),
    "epochs": 10, "weight_decay": (0.0,), "normalize_features": False,
}  # fmt: skip

#: Veličković et al., ICLR 2018, section 3.3, on Cora; so many epochs and the best one in place of patience.
_GAT = _KIPF_WELLING | {
    "model": "gat", "hidden": (64,), "heads": (8,), "dropout": 0.6, "attention_dropout": 0.6,
    "epochs": 300, "lr": 0.005, "weight_decay": (5e-4,),
}  # fmt: skip
_OF_ATTENTION = ("heads", "attention_dropout")  # settings of gat that other networks refuse

#: By name: setting -> value.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "kipf-welling": _KIPF_WELLING, "graphsage": _GRAPHSAGE, "gat": _GAT, "plain": _PLAIN,
}  # fmt: skip
#: Neighbours per node and layer of recipes with samples, the layer next to the batch first; the last repeats.
FANOUTS: Mapping[str, Sequence[int]] = {"graphsage": (25, 10)}


def filled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the recipe in `given` for the settings that are None there."""
    recipe = RECIPES.get(str(given["recipe"]), _PLAIN)  # any other value is refused with the other settings
    other = given["model"] not in (None, "gat", "gatv2")
    chosen = {name: value for name, value in recipe.items() if given[name] is None}
    return {name: value for name, value in chosen.items() if not (other and name in _OF_ATTENTION)}

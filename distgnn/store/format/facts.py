"""Types of the entries of a manifest, which anybody can edit and seal again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NONE = type(None)
#: By name, of a store; others are checked where they are read.
STORE_FACTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("n", "nnz", "edges", "width", "classes", "labelled", "seed"), (int,)),
    **dict.fromkeys(("directed", "weighted", "self_loops", "symmetric"), (bool,)),
    **dict.fromkeys(("dtype", "source", "normalize"), (str,)),
    **dict.fromkeys(("degrees", "content", "nodes", "orders", "files"), (dict,)),
    "class_names": (list, NONE), "split": (dict, NONE),
}  # fmt: skip


def check_types(content: Any, kinds: Mapping[str, tuple[type, ...]], within: str = "") -> None:
    """Raise ValueError unless a table has an entry of one of these types for every name."""
    if not isinstance(content, dict):
        raise ValueError(f"{within.rstrip('.') or 'it'} is {content!r}; expected a table")
    for name, types in kinds.items():
        value = content.get(name)
        if type(value) not in types or (type(value) is int and abs(value) >= 1 << 63):
            expected = " or ".join("nothing" if kind is NONE else kind.__name__ for kind in types)
            raise ValueError(f"{within}{name} is {value!r:.40}; expected {expected}")


def check_store(content: Mapping[str, Any]) -> None:
    """Raise ValueError for a store's fact of another type than :mod:`manifest` says."""
    check_types(content, STORE_FACTS)
    check_types(content["degrees"], dict.fromkeys(("min", "max", "isolated"), (int,)), "degrees.")
    check_types(content["degrees"], {"mean": (int, float)}, "degrees.")
    parts = ("edges", "features", "labels", "split")
    check_types(content["content"], dict.fromkeys(parts, (str, NONE)), "content.")
    if content["split"] is not None:
        check_types(content["split"], dict.fromkeys(("train", "validation", "test"), (int,)), "split.")
    check_names(content["class_names"])
    check_names(content.get("feature_names"), "feature_names")
    if len(content.get("feature_names") or ()) not in (0, content["width"]):
        raise ValueError("feature_names are not as many as features")


def check_names(names: Any, what: str = "class_names") -> None:
    """Raise ValueError unless names are None or a list of texts."""
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{what} is no list of texts")

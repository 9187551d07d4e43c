"""The last step of a preparation: ids and hashes of all files, then the manifest; and the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.partition import Quality
from distgnn.split import labelled
from distgnn.store.format import hdf5, manifest
from distgnn.store.format.members import stamp
from distgnn.store.source import Source
from distgnn.store.team import Team, shared_out
from distgnn.store.write.features import Sparse


@dataclass
class Summary:
    """The outcome of `prepare`.

    `stages`: (name, seconds, peak resident bytes of any rank so far); `read` and `left`: the `readings` of
    the source, and the columns and files that were left; `feature_nnz`: entries of features that are kept
    sparse, else None.
    """

    out: str
    n: int = 0
    nnz: int = 0
    edges: int = 0
    directed: bool = False
    width: int = 0
    feature_nnz: int | None = None
    classes: int = 0
    multilabel: bool = False
    regression: bool = False
    labelled: int = 0
    split: dict[str, int] | None = None
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    partitions: dict[str, Quality] = field(default_factory=dict)
    stages: list[tuple[str, float, int]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(seconds for _, seconds, _ in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the stage that had most."""
        return max((peak for _, _, peak in self.stages), default=0)


def describe(
    source: Source, seed: int, dtype: np.dtype, self_loops: bool, normalize: str, sparse: Sparse | None
) -> dict[str, Any]:
    """Return the manifest's entries that are known before the edges have been read."""
    split, labels = None, source.labels
    if source.split is not None:
        sizes = np.bincount(source.split, minlength=4).tolist()
        split = {"train": sizes[1], "validation": sizes[2], "test": sizes[3]}
    return {
        "format": manifest.STORE.format,
        "version": manifest.STORE.oldest if sparse is None else manifest.STORE.version,
        "source": source.name, "seed": seed,
        "n": source.n, "nnz": 0, "edges": 0, "dtype": dtype.name, "width": int(source.width),
        "classes": int(source.classes), "class_names": source.class_names,
        "labelled": 0 if labels is None else int(np.count_nonzero(labelled(labels))), "split": split,
        "directed": bool(source.directed), "weighted": False, "self_loops": self_loops,
        "normalize": normalize, "symmetric": not source.directed and normalize != "row",
        **({"multilabel": True} if source.multilabel else {}),
        **({"regression": True} if source.regression else {}),
        **({"feature_dtype": source.feature_type.name} if source.feature_type != np.float32 else {}),
        **({} if sparse is None else {"sparse_features": {"nnz": sparse.nnz, "ones": sparse.ones}}),
        **({"feature_names": source.feature_names} if source.feature_names else {}),
    }  # fmt: skip


def finish(folder: Path, content: dict[str, Any], team: Team) -> None:
    """Stamp every file with the store's id, fingerprint it, and write the manifest. Collective."""
    sizes: dict[str, int] = {}
    with team.together():
        if team.rank == 0:
            paths = sorted(filter(Path.is_file, folder.rglob("*")))
            sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    sizes = team.gather_objects(sizes)[0]  # network file systems may show other ranks older sizes
    content["id"] = id = team.gather_objects(manifest.identity(content))[0]
    prints = dict(shared_out(team, sizes, lambda names: [(name, _seal(folder, name, id)) for name in names]))
    content["files"] = {name: prints[name] for name in sizes}
    with team.together():
        if team.rank == 0:
            for path in filter(Path.is_dir, folder.rglob("*")):
                manifest.sync_folder(path)
            manifest.write(folder, content)


def _seal(folder: Path, name: str, id: str) -> dict[str, Any]:
    """Stamp a file that is otherwise complete; return its fingerprint once all of it is on disk."""
    with hdf5.writing(folder / name, "r+") as file:
        stamp(file, id, name)
    return manifest.fingerprint(folder / name, sync=True)

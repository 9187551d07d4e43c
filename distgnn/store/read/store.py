"""An opened store: its facts, its orders, and the features, labels and split of any nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from distgnn.errors import UserError, WrongTypeError, check_type, did_you_mean
from distgnn.layout import NodeOrder, Range
from distgnn.partition.orders import KNOWN
from distgnn.store.format import manifest
from distgnn.store.format.facts import check_store
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.members import Members
from distgnn.store.read.feature_files import FeatureFiles
from distgnn.store.read.node_files import NodeFiles, check_partition, check_window
from distgnn.store.read.order import Order
from distgnn.store.team import Alone, shared_out

if TYPE_CHECKING:
    from distgnn.comm.grid import Grid
    from distgnn.comm.group import Comm

AnyOrder = str | Order | NodeOrder | None


class Store:
    """An opened store. Any rank may open it.

    Opening reads the manifest and the length of every file, on one rank of a node, and every byte of a store
    of at most LIMITS.verified_bytes.

    Args:
        path: the directory of the store.
        team: ranks that open the store together and share this work, such as a grid's `world`; collective
            then.
        verify: read every byte of a large store, too.

    Attributes:
        path, manifest: the store's directory and its facts (see ``format/manifest.py``).
        n, nnz, width, classes: nodes, entries of A, feature width, classes (0 where there are none).
        multilabel: True if a node may have several classes. regression: labels are numbers to predict, in
            `classes` columns.
        dtype: dtype of A's values; feature_type: of the features; `symmetric`: A == A.T, to the bit.
        orders: names of the orders, the default first. sparse_files: features that are kept sparse, else
            None.

    Raises:
        UserError: no store of this schema version, a changed manifest, a file that is missing, changed or of
            another store, on all ranks of the team. Other files are checked when first read.
        WrongTypeError: a path or team of another type.
    """

    sparse_files: FeatureFiles | None = None

    def __init__(
        self, path: str | os.PathLike[str], team: Comm | Alone | None = None, verify: bool = False
    ) -> None:
        check_type("path", path, (str, os.PathLike), "the path of a store")
        if team is not None and not hasattr(team, "gather_objects"):
            raise WrongTypeError("team", type(team).__name__, "expected ranks, such as a grid's world")
        team = team or Alone()
        self.path = Path(path)
        with team.alike((team.nodes[team.rank], os.path.abspath(path))) as node:
            with team.together():
                facts: dict[str, Any] = manifest.read(self.path) if node.rank == 0 else {}
            self.manifest: dict[str, Any] = node.share(facts)
            with team.together():
                self._understand(check=node.rank == 0)
                if team.rank == 0:
                    self.members.touch()
        if len(set(team.gather_objects(self.members.id))) > 1:
            raise UserError(f"{self.path}: was replaced while it was opened, or ranks see different files")
        if verify or sum(self.members.sizes.values()) <= LIMITS.verified_bytes:
            self.members.refuse(self.verify(team))

    def _understand(self, check: bool) -> None:
        try:
            check_store(self.manifest)
            self.members = Members(self.path, manifest.STORE, self.manifest["id"], self.manifest["files"])
            self.n, self.nnz = int(self.manifest["n"]), int(self.manifest["nnz"])
            self.width, self.classes = int(self.manifest["width"]), int(self.manifest["classes"])
            self.multilabel = bool(self.manifest.get("multilabel", False))
            self.regression = bool(self.manifest.get("regression", False))
            self.dtype = np.dtype(self.manifest["dtype"])
            self.feature_type = np.dtype(self.manifest.get("feature_dtype", "float32"))
            for kind in (self.dtype, self.feature_type):
                if kind not in (np.float32, np.float64):
                    raise ValueError(f"values of dtype {kind}")
            self.symmetric = bool(self.manifest["symmetric"])
            self.orders: tuple[str, ...] = tuple(self.manifest["orders"])
            nodes = self.manifest["nodes"]
            widths = {"features": self.width, "labels": self.classes, "targets": self.classes}
            given = nodes["partition"], nodes["files"], widths, self.feature_type
            self._nodes = NodeFiles(self.members, *given)
            check_partition("nodes", self._nodes.partition, self.n)
            if (facts := self.manifest.get("sparse_features")) is not None:
                cut = self.members, self._nodes.partition, self._nodes.files, self.width, self.feature_type
                self.sparse_files = FeatureFiles(*cut, facts, nodes["entries"])
            self._ids = self._id_files(self.manifest.get("ids"))
            self._stored = {name: self.order(name) for name in self.orders}[nodes["order"]].layer(-1)
            if check:
                self.members.check(self._named())
            self._check_sizes()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise manifest.damaged(self.path, manifest.STORE, error) from None

    def _check_sizes(self) -> None:
        """Raise ValueError if the files have no room for all nodes, entries and features."""
        held, order = sum(self.members.sizes.values()), self.order()
        wide = self.classes * (4 if self.regression else 1) if self.multilabel or self.regression else 0
        wide += 0 if self.sparse_files else self.feature_type.itemsize * self.width
        least = 4 * self.n + self.nnz * (4 + order.stored_dtype.itemsize) + self.n * wide
        least += self.sparse_files.nnz + 4 * self.n if self.sparse_files else 0
        if min(self.n, self.nnz, self.width, self.classes) < 0 or least > held:
            raise ValueError(f"it means {least} bytes at least, and the files have {held}")

    @property
    def loss(self) -> str:
        """The loss of networks that learn these labels, as :data:`distgnn.nn.loss.METRICS` names it."""
        return "mse" if self.regression else "binary" if self.multilabel else "softmax"

    def _id_files(self, named: Any) -> NodeFiles | None:
        """Return the files of the nodes' own ids, or None without any."""
        if named is None:
            return None
        self._id_type = np.dtype(named["dtype"])
        words = self._id_type.itemsize if self._id_type.kind == "S" else 0
        if not words and self._id_type != np.int64:
            raise ValueError(f"ids of dtype {self._id_type}")
        files = NodeFiles(self.members, named["partition"], named["files"], {"ids": words})
        check_partition("ids", files.partition, self.n)
        return files

    @property
    def has_ids(self) -> bool:
        """True if nodes have ids that are not their numbers."""
        return self._ids is not None

    def ids(self, rows: Range | None = None) -> np.ndarray:
        """Return the user's ids of nodes rows[0]..rows[1]-1, by default of all nodes: int64 or strings.

        Without ids of their own, nodes have their numbers as ids.
        """
        rows = rows or (0, self.n)
        check_window("ids", rows, self.n)
        if self._ids is None:
            return np.arange(*rows)
        words = self._id_type.kind == "S"
        ids = self._ids.rows("ids", rows, (0, self._id_type.itemsize) if words else None)
        if not words:
            return ids
        try:
            return np.char.decode(ids.view(self._id_type)[:, 0], "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{self.path}: an id of a node is no UTF-8; copy it or make it again") from None

    def _named(self) -> list[str]:
        """List the files that the manifest's entries name."""
        versions = [version for name in self.orders for version in self.order(name).versions]
        by_node = [*self._nodes.files, *(self._ids.files if self._ids else ())]
        return [*by_node, *(name for v in versions for name in (*v.files, *v.permutation_files))]

    def __repr__(self) -> str:
        sizes = f"{self.n} nodes, {self.nnz} entries, {self.width} features, {self.classes} classes"
        return f"Store({str(self.path)!r}: {sizes})"

    def order(self, name: str | None = None) -> Order:
        """Return the matrix in one order (default: the first), of `double` that of layer 0.

        Raises UserError for an unknown order.
        """
        name = self.orders[0] if name is None else name
        if name not in self.manifest["orders"]:
            method, _, parts = name.rpartition("-")
            made_by = f"order={name}" if name in KNOWN else f"partition={method}:{parts}"
            known = name in KNOWN or parts.isdecimal()
            hint = f"; prepare with {made_by} makes one that has it" if known else ""
            near = did_you_mean(name, self.orders) or hint
            raise UserError(f"{self.path}: no order {name!r}; it has {', '.join(self.orders)}{near}")
        order = Order.opened(self.members, name, self.manifest["orders"][name], self.n, self.dtype)
        for version in order.versions:
            if version.nnz != self.nnz:
                raise ValueError(f"{self.nnz} non-zeros, but {version.nnz} in the shards of order {name}")
        return order

    def features(
        self, order: AnyOrder = None, rows: Range | None = None, cols: Range | None = None,
        grid: Grid | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Read [rows, cols] of the nodes with these ids, or at these positions of an order.

        By default all features are read. A name means the input side of layer 0, `order(name).layer(-1)`; an
        Order means its own rows. In the default order this reads just the window; in others, and by id, it
        reads these columns of all nodes. With a grid, its ranks read together, each its own window, and every
        chunk is read once in all. Collective then. Sparse features get all their zeros: `sparse_features`
        leaves them out.
        """
        if self.feature_nnz is not None:
            return self.sparse_features(order, rows, cols).toarray()
        rows, cols = self._feature_window(rows, cols)
        if not self.width:
            return np.zeros((rows[1] - rows[0], 0), self.feature_type)
        return self._read("features", order, rows, cols, grid)

    def sparse_features(
        self, order: AnyOrder = None, rows: Range | None = None, cols: Range | None = None
    ) -> sp.csr_array:
        """Read the window of `features` as CSR; of dense features the entries that are not 0."""
        if (files := self.sparse_files) is None:
            return sp.csr_array(self.features(order, rows, cols))
        rows, cols = self._feature_window(rows, cols)
        positions = self.stored_positions(order, rows)
        return files.window(rows, cols) if positions is None else files.gather(positions, cols)

    def _feature_window(self, rows: Range | None, cols: Range | None) -> tuple[Range, Range]:
        rows, cols = rows or (0, self.n), cols or (0, self.width)
        check_window("features", rows, self.n)
        check_window("features", cols, self.width)
        return rows, cols

    @property
    def feature_nnz(self) -> int | None:
        """The entries of features that are kept sparse; None where they are dense."""
        return None if self.sparse_files is None else self.sparse_files.nnz

    def labels(
        self, order: AnyOrder = None, rows: Range | None = None, grid: Grid | None = None
    ) -> np.ndarray:
        """Read int32[rows]: the class of the nodes with these ids, or at these positions of an order.

        Unlabelled nodes have -1. If a node may have several classes: int8[rows, classes], 1 for each class of
        the node, else 0, and -1 in all of the row of an unlabelled node. Numbers to predict: float32[rows,
        classes], NaN in all of the row of an unlabelled node. Labels belong to the output of the
        last layer: ValueError for the name of an order with two versions. ``grid``: as of `features`.
        """
        order, rows = self._output_side(order), rows or (0, self.n)
        check_window("labels", rows, self.n)
        if not self.classes:
            return np.full(rows[1] - rows[0], -1, np.int32)
        if self.regression:
            return self._read("targets", order, rows, (0, self.classes), grid)
        labels = self._read("labels", order, rows, (0, self.classes) if self.multilabel else None, grid)
        with Alone().together() if grid is None else grid.world.together():
            self._check_labels(labels)
        return labels

    def _check_labels(self, labels: np.ndarray) -> None:
        """Raise UserError for a label that is no class."""
        most = 1 if self.multilabel else self.classes - 1
        if len(labels) and not -1 <= labels.min() <= labels.max() <= most:
            wrong = labels[(labels < -1) | (labels > most)][0]
            problem = f"says {self.classes} classes, but a node has label {wrong}"
            advice = f"expected -1..{most}, copy or prepare the store again"
            raise UserError(f"{self.path / manifest.NAME}: {problem}; {advice}")

    def split(
        self, order: AnyOrder = None, rows: Range | None = None, grid: Grid | None = None
    ) -> np.ndarray:
        """Read uint8[rows]: 0 none, 1 train, 2 validation, 3 test, for nodes chosen as in `labels`."""
        order, rows = self._output_side(order), rows or (0, self.n)
        check_window("split", rows, self.n)
        if self.manifest["split"] is None:
            return np.zeros(rows[1] - rows[0], np.uint8)
        return self._read("split", order, rows, None, grid)

    def verify(self, team: Comm | Alone | None = None) -> list[str]:
        """Read every byte of every file; return the sorted names of changed files.

        Each file is read by one rank of the team. Collective over the team; by default this rank is alone.
        """
        return sorted(shared_out(team or Alone(), self.members.sizes, self.members.changed))

    def stored_positions(
        self, order: AnyOrder, rows: Range, grid: Grid | None = None
    ) -> np.ndarray | None:  # fmt: skip
        """Read where the files have rows of an order, or of ids; None where they are in that order.

        Collective with a grid.
        """
        wanted = self._row_order(order)
        if wanted == self._stored.row_order:
            return None
        with Alone().together() if grid is None else grid.world.together():
            ids = np.arange(*rows) if wanted is None else wanted.permutation(*rows)
        return self._stored.positions(ids, grid)

    def _row_order(self, order: AnyOrder) -> Any:
        wanted = self.order(order).layer(-1) if isinstance(order, str) else order
        return wanted.row_order if isinstance(wanted, Order) else wanted

    def _read(
        self, name: str, order: AnyOrder, rows: Range, cols: Range | None, grid: Grid | None
    ) -> np.ndarray:
        """Read a window of an array by node; collective with a grid."""
        positions = self.stored_positions(order, rows, grid)
        if positions is None and (grid is None or grid.size == 1):
            return self._nodes.rows(name, rows, cols)
        return self._nodes.gather(name, np.arange(*rows) if positions is None else positions, cols, grid)

    def _output_side(self, order: AnyOrder) -> AnyOrder:
        if not isinstance(order, str):
            return order
        named = self.order(order)
        if len(named.versions) > 1:
            sides = f"order {named.name} has two sides, and the network's depth says which its output is in"
            advice = f'pass store.order("{named.name}").layer(L - 1) for a network of L layers'
            raise ValueError(f"{sides}: {advice}")
        return named

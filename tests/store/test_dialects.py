"""Graphs in the dialects of text, Parquet and JSON lines: each is read as that graph, or refused."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from distgnn.errors import UserError
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions, Source
from store.importing import adjacency, all_features

hypothesis = pytest.importorskip("hypothesis")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
from hypothesis import strategies as st  # noqa: E402
from pyarrow import csv as pa_csv  # noqa: E402
from pyarrow import parquet  # noqa: E402

#: Files that are drawn; DISTGNN_DIALECTS=2000 draws others, and more of them.
FILES = os.environ.get("DISTGNN_DIALECTS", "")
LETTERS = "abcXYZ019 ,;|'\"#%éß中-=._/"
SPLITS = ("none", "train", "val", "test")
SEEN: Counter[tuple[str, str]] = Counter()  # (dialect, "read" or "refused") -> files


@dataclass
class Graph:
    """A directed graph whose nodes have names, features, labels and parts; row k of each is of names[k]."""

    names: list[Any]
    edges: list[tuple[int, int]]
    weights: list[float] | None
    X: np.ndarray
    labels: list[Any]
    split: list[str]

    def edge_table(self) -> dict[str, list[Any]]:
        ends = {end: [self.names[e[k]] for e in self.edges] for k, end in enumerate(("source", "target"))}
        return ends if self.weights is None else ends | {"weight": self.weights}

    def node_table(self) -> dict[str, list[Any]]:
        features = {f"f{k}": self.X[:, k].tolist() for k in range(self.X.shape[1])}
        return {"id": self.names} | features | {"label": self.labels, "split": self.split}

    def matrix(self) -> np.ndarray:
        A = np.zeros((len(self.names), len(self.names)))
        np.maximum.at(A, tuple(np.array(self.edges).T[::-1]), self.weights or 1.0)
        return A


def words() -> st.SearchStrategy[str]:
    some = st.text(LETTERS, min_size=1, max_size=6).map(str.strip)
    return some.filter(lambda word: word and word.lower() not in ("na", "nan", "null", "none", "-1"))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(3, 9))
    kinds = {
        "numbers": st.just(list(range(n))), "from 1": st.just(list(range(1, n + 1))),
        "far apart": st.lists(st.integers(0, 10**7), min_size=n, max_size=n, unique=True),
        "zeros": st.lists(st.integers(0, 99).map("{:04d}".format), min_size=n, max_size=n, unique=True),
        "words": st.lists(words(), min_size=n, max_size=n, unique=True),
        "mixed": st.lists(st.integers(0, 9).map(str) | words(), min_size=n, max_size=n, unique=True),
    }  # fmt: skip
    names = draw(kinds[draw(st.sampled_from(list(kinds)))])
    ring = [(k, (k + 1) % n) for k in range(n)]  # every node has an edge
    node = st.integers(0, n - 1)
    edges = draw(st.permutations(ring + draw(st.lists(st.tuples(node, node), max_size=8))))
    number = st.integers(-8000, 8000).map(lambda k: (k or 4) / 8)  # seven digits, as some write no more
    weights = draw(st.none() | st.lists(number.map(abs), min_size=len(edges), max_size=len(edges)))
    width = draw(st.integers(1, 3))
    X = np.array(draw(st.lists(number, min_size=n * width, max_size=n * width))).reshape(n, width)
    classes = draw(st.sampled_from([["red", "green, light", "blue"], [0, 1, 2], [3, 7]]))
    labels = [classes[k % len(classes)] for k in draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))]
    split = draw(st.lists(st.sampled_from(SPLITS), min_size=n, max_size=n))
    return Graph(names, edges, weights, X, labels, ["train", "val", "test", *split[3:]])


def plain(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    """Write with Python's csv: any separator, any quotes, any end of a line."""
    kind = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))
    sign, ending = draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n"]))
    path = path.with_suffix(".tsv" if sign == "\t" and draw(st.booleans()) else ".csv")
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return written(path, table, mark, delimiter=sign, quoting=kind, lineterminator=ending)


def written(path: Path, table: dict[str, list[Any]], mark: str = "", **how: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(mark)
        writer = csv.writer(file, **how)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


def by_arrow(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    quotes, sign = draw(st.sampled_from(["needed", "all_valid"])), draw(st.sampled_from(",;\t"))
    path = path.with_suffix(draw(st.sampled_from([".csv", ".csv.gz"])))
    options = pa_csv.WriteOptions(quoting_style=quotes, delimiter=sign)
    with pa.output_stream(str(path)) as file:  # compressed by its name
        pa_csv.write_csv(pa.table(table), file, options)
    return path


def by_pandas(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    how = {"index": draw(st.booleans()), "sep": draw(st.sampled_from(",\t;"))}
    path = path.with_suffix(".csv")
    pd.DataFrame(table).to_csv(path, **how)
    return path


def by_r(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    """Write as R's write.csv and write.table, with names of rows: words in quotes, numbers without."""

    def told(value: Any) -> str:
        quoted = value.replace('"', r"\"" if blank else '""') if isinstance(value, str) else ""
        return f'"{quoted}"' if isinstance(value, str) else repr(value)

    blank = draw(st.booleans())
    sign, rows = (" " if blank else ","), draw(st.booleans())
    head = [told(name) for name in table]
    head = ['""', *head] if rows and not blank else head
    lines = [[told(value) for value in row] for row in zip(*table.values(), strict=True)]
    lines = [[f'"{k}"', *line] for k, line in enumerate(lines, 1)] if rows else lines
    path = path.with_suffix(".txt" if blank else ".csv")
    path.write_text("".join(sign.join(line) + "\n" for line in (head, *lines)), encoding="utf-8")
    return path


def by_matlab(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    """Write as writetable, or numbers without names as writematrix and save -ascii."""
    words = any(isinstance(value, str) for column in table.values() for value in column)
    if draw(st.booleans()) or words:
        return written(path.with_suffix(".txt"), table)
    spread, path = draw(st.booleans()), path.with_suffix(".txt")
    form, sign = ("{:16.7e}", "") if spread else ("{:.15g}", ",")
    rows = zip(*table.values(), strict=True)
    path.write_text("".join(sign.join(form.format(v) for v in row) + "\n" for row in rows))
    return path


def as_parquet(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    path = path.with_suffix(".parquet")
    if draw(st.booleans()):
        pd.DataFrame(table).to_parquet(path, index=draw(st.booleans()))
    else:
        coded = {k: pa.array(v).dictionary_encode() if isinstance(v[0], str) else v for k, v in table.items()}
        size = draw(st.integers(1, 4))
        parquet.write_table(pa.table(coded), path, row_group_size=size)
    return path


def as_json_lines(draw: st.DrawFn, path: Path, table: dict[str, list[Any]]) -> Path:
    path = path.with_suffix(".jsonl")
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    lines = (json.dumps(row, ensure_ascii=draw(st.booleans())) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


Writer = Callable[[st.DrawFn, Path, dict[str, list[Any]]], Path]
DIALECTS: list[Writer] = [plain, by_arrow, by_pandas, by_r, by_matlab, as_parquet, as_json_lines]


def places(graph: Graph, source: Source) -> np.ndarray:
    """Return the number of each node of the graph in the source, by its name."""
    if source.ids is None:
        assert all(int(name) == name and 0 <= int(name) < source.n for name in map(float, graph.names))
        return np.array([int(float(name)) for name in graph.names])
    ids = [one.decode() if isinstance(one, bytes) else str(one) for one in source.ids.tolist()]
    assert len({*ids}) == len(ids) == source.n
    return np.array([ids.index(str(name)) for name in graph.names])


def compare(graph: Graph, source: Source, tables: bool) -> None:
    """Compare what was read with the graph, node by node; others may not have an edge or a label."""
    at = places(graph, source)
    A, others = adjacency(source), np.setdiff1d(np.arange(source.n), at)
    assert np.array_equal(A[np.ix_(at, at)], graph.matrix())
    assert not A[others].any() and not A[:, others].any()
    if not tables:
        return
    assert source.width == graph.X.shape[1] and source.labels is not None and source.split is not None
    assert np.array_equal(all_features(source)[at], graph.X.astype(np.float32))
    known = sorted({*graph.labels})
    codes = source.labels[at]
    called = source.class_names or list(map(str, range(source.classes)))
    assert [called[code] for code in codes] == [str(label) for label in graph.labels] or (
        isinstance(known[0], int) and [*codes] in ([*graph.labels], [known.index(x) for x in graph.labels])
    )
    assert [SPLITS[part] for part in source.split[at]] == graph.split
    assert (source.labels[others] == -1).all() and not source.split[others].any()


@pytest.mark.parametrize("write", DIALECTS)
@hypothesis.settings(
    max_examples=int(FILES or 210) // len(DIALECTS), derandomize=not FILES, deadline=None, database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
@hypothesis.given(graph=graphs(), tables=st.booleans(), data=st.data())
def test_a_graph_is_read_as_that_graph_in_every_dialect(write, graph, tables, data) -> None:
    with TemporaryDirectory() as folder:
        edges = write(data.draw, Path(folder, "edges"), graph.edge_table())
        options: dict[str, Any] = {"directed": True, "weights": graph.weights is not None}
        if tables:
            nodes = str(write(data.draw, Path(folder, "table"), graph.node_table()))
            options |= {"features": nodes, "labels": nodes, "split": nodes}
        texts = "\n".join(f"{p.name}: {p.read_bytes()[:600]!r}" for p in sorted(Path(folder).iterdir()))
        try:
            source = open_source(edges, ImportOptions(**options))
            compare(graph, source, tables)
        except UserError as error:
            assert "\n" not in str(error)
            SEEN[write.__name__, "refused"] += 1
        except BaseException:
            hypothesis.note(texts)
            raise
        else:
            SEEN[write.__name__, "read"] += 1


def test_most_files_are_read() -> None:
    """A reader that refuses everything would pass the test before."""
    for write in DIALECTS:
        read, refused = SEEN[write.__name__, "read"], SEEN[write.__name__, "refused"]
        assert read >= refused, (write.__name__, read, refused)

"""Damaged files for every importer: each is read, or refused by a UserError of one line.

python tests/faults/fuzz_importers.py --runs 10000 [--seconds 300] [--only npz] [--keep FOLDER]

A mutant is a function of its case and its number: `--only CASE --first NUMBER --runs 1` makes it again.
Children that are forked for many mutants at a time read them as `prepare` does, under a limit of memory.
Counted are signals, hangs, and exceptions that are no UserError, MemoryError and RuntimeWarning among them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import math
import mmap
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers import open_source
from distgnn.store.source import ImportOptions
from distgnn.store.write.arguments import check_edges, check_source

SECONDS, MEMORY = 10.0, 1 << 30  # of one mutant; beyond what the program has when it starts
Files = dict[str, bytes]
Case = tuple[str, Files, dict[str, Any]]  # what is opened, the files, the options (@ is the folder)

N = 8
EDGES = np.array([[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3], [6, 6], [7, 0], [2, 7]])
FEATURES = (np.arange(N * 3) % 5).reshape(N, 3).astype(np.float32)
LABELS, SPLIT = np.arange(N) % 3, np.array([1, 1, 2, 2, 3, 3, 0, 1])
MATRIX = scipy.sparse.csr_matrix((np.arange(1.0, 10), (EDGES[:, 1], EDGES[:, 0])), (N, N))


def table(rows: Any, header: str = "", mark: str = ",") -> bytes:
    lines = [mark.join(f"{value:g}" for value in np.atleast_1d(row)) for row in rows]
    return ("\n".join([header, *lines] if header else lines) + "\n").encode()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def sparse(matrix: Any, kind: str, small: bool = True) -> bytes:
    file = io.BytesIO()
    scipy.sparse.save_npz(file, matrix.asformat(kind), small)
    return file.getvalue()


def market(**options: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.mmwrite(file, MATRIX + MATRIX.T, **options)
    return file.getvalue()


def packed(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def parts(matrix: Any, prefix: str) -> dict[str, Any]:
    return {prefix + name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}


def companions(features: str, content: bytes) -> Case:
    edges = {"a_edges.csv": table(EDGES, "id1,id2"), features: content}
    return "a_edges.csv", edges, {"features": f"@/{features}"}


def planetoid(protocol: int) -> Case:
    hot, rows = np.eye(3, dtype=np.int32)[LABELS], scipy.sparse.csr_matrix(FEATURES)
    contents = {"x": rows[:2], "tx": rows[6:], "allx": rows[:6], "y": hot[:2], "ty": hot[6:], "ally": hot[:6]}
    contents["graph"] = {k: EDGES[EDGES[:, 0] == k, 1].tolist() for k in range(N)}
    files = {f"ind.t.{name}": pickle.dumps(content, protocol) for name, content in contents.items()}
    return "", files | {"ind.t.test.index": b"7\n6\n"}, {}


def ogb(archived: bool) -> Case:
    places = enumerate(("train", "valid", "test"), 1)
    files = {f"split/random/{name}.csv": table(np.flatnonzero(SPLIT == part)) for part, name in places}
    if archived:
        files["raw/data.npz"] = npz(edge_index=EDGES.T, node_feat=FEATURES, num_nodes_list=np.array([N]))
        return "", files | {"raw/node-label.npz": npz(node_label=LABELS[:, None])}, {}
    raw = {"edge": table(EDGES), "num-node-list": b"8\n", "num-edge-list": b"9\n"}
    raw |= {"node-feat": table(FEATURES), "node-label": table(LABELS)}
    return "", files | {f"raw/{name}.csv.gz": packed(text) for name, text in raw.items()}, {}


def generated() -> Case:
    facts = {"format": "distgnn-graph", "version": 1, "kind": "rmat", "n": N, "edges": len(EDGES)}
    facts |= {"directed": True, "classes": 3, "width": 3, "seed": 0, "parameters": {}}
    arrays = {
        "edges": EDGES,
        "features": FEATURES,
        "labels": LABELS.astype(np.int32),
        "split": SPLIT.astype(np.uint8),
    }
    return (
        "",
        {"graph.json": json.dumps(facts).encode()} | {f"{k}.npy": npy(a) for k, a in arrays.items()},
        {},
    )


def reddit() -> Case:
    data = npz(feature=FEATURES, label=LABELS, node_types=SPLIT, node_ids=np.arange(N)[::-1])
    return "", {"r_graph.npz": sparse(MATRIX, "coo"), "r_data.npz": data}, {}


def names(rows: Any, columns: int) -> bytes:
    """Write a table whose first columns are words for nodes."""
    lines = [",".join([*(f"n{node:g}" for node in row[:columns]), *map(str, row[columns:])]) for row in rows]
    return "\n".join(lines).encode()


def parquet(**columns: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), file)
    return file.getvalue()


def own() -> dict[str, Case]:
    """Make inputs whose nodes have ids of their own, and files of other libraries."""
    words = names(EDGES, 2)
    far = "\n".join(f"{s}000000000000,{t}000000000000" for s, t in EDGES).encode()
    split = ["train", "val", "test"]
    tables = {"x.csv": names([[k, *FEATURES[k]] for k in range(N)], 1)}
    tables |= {
        "l.csv": names([[k, "abc"[k % 3]] for k in range(N)], 1),
        "n.txt": names([[k] for k in range(N)], 1),
    }
    tables["s.csv"] = names([[k, split[k % 3]] for k in range(N)], 1)
    given = {"features": "@/x.csv", "labels": "@/l.csv", "split": "@/s.csv", "node_list": "@/n.txt"}
    arrays = {"x.npy": npy(FEATURES), "labels.npy": npy(np.array(list("abcabcab"))), "split.npy": npy(SPLIT)}
    graph = {"edge_index": EDGES.T, "x": FEATURES, "y": LABELS, "train_mask": SPLIT == 1, "test_idx": [2]}
    ends = [f"n{k}" for k in EDGES[:, 0]], [f"n{k}" for k in EDGES[:, 1]]
    people = {
        "id": [f"n{k}" for k in range(N)],
        "x": FEATURES.tolist(),
        "y": LABELS,
        "split": (split * 3)[:N],
    }
    same = dict.fromkeys(("features", "labels", "split"), "@/t.parquet")
    found: dict[str, Case] = {
        "words": ("e.csv", {"e.csv": words} | tables, given),
        "integers": ("e.csv", {"e.csv": far}, {}),
        "folder": ("", {"edges.csv": table(EDGES)} | arrays, {}),
        "npz-arrays": ("g.npz", {"g.npz": npz(**graph)}, {}),
    }
    both = {"e.parquet": parquet(source=ends[0], target=ends[1]), "t.parquet": parquet(**people)}
    found["parquet"] = ("e.parquet", both, same)
    found["parquet-numbers"] = "e.parquet", {"e.parquet": parquet(a=EDGES[:, 0], b=EDGES[:, 1])}, {}
    return found


def cases() -> dict[str, Case]:
    """Make one small valid input for each importer and companion, and for each way to write it."""
    weighted = np.column_stack([EDGES, np.arange(1, 10)])
    identified = np.column_stack([np.arange(N), FEATURES])
    labels = "\n".join(["id,x,label", *(f'{k},0,"{"abc"[k % 3]}"' for k in range(N))]).encode()
    edges = {"a.csv": table(weighted, "source,target,weight"), "l.csv": labels}
    active = json.dumps({str(k): np.flatnonzero(row).tolist() for k, row in enumerate(FEATURES)}).encode()
    rows = scipy.sparse.csr_matrix(FEATURES)
    coauthors = npz(**parts(MATRIX, "adj_"), **parts(rows, "attr_"), labels=LABELS)
    upper = packed(market(field="pattern", symmetry="symmetric"))
    kinds, weights = ("csr", "csc", "coo"), {"weights": True}
    return {
        "edges": ("a.csv", edges, weights | {"labels": "@/l.csv"}),
        "edges-gz": ("a.txt.gz", {"a.txt.gz": packed(table(EDGES, mark=" "))}, {}),
        "features-csv": companions("x.csv", table(identified, "id,a,b,c")),
        "features-json": companions("x.json", active),
        "features-npy": companions("x.npy", npy(FEATURES)),
        "features-npy-f": companions("x.npy", npy(np.asfortranarray(FEATURES))),
        "features-npz": companions("x.npz", npz(x=FEATURES)),
        **{f"features-{kind}": companions("x.npz", sparse(rows, kind)) for kind in kinds},
        "features-csr-plain": companions("x.npz", sparse(rows, "csr", small=False)),
        "mtx": ("a.mtx", {"a.mtx": market(symmetry="general")}, weights),
        "mtx-symmetric": ("a.mtx.gz", {"a.mtx.gz": upper}, {}),
        **{f"npz-{kind}": ("a.npz", {"a.npz": sparse(MATRIX, kind)}, weights) for kind in kinds},
        "npz-coauthors": ("a.npz", {"a.npz": coauthors}, {}),
        "generated": generated(),
        "ogb": ogb(False),
        "ogb-archived": ogb(True),
        "planetoid": planetoid(2),
        "planetoid-new": planetoid(4),
        "reddit": reddit(),
        **own(),
    }


NUMBERS = [0, 1, 2, 7, 8, 9, -1, 127, 255, *(1 << bits for bits in (16, 24, 30, 31, 32, 40, 62, 63))]
NUMBERS += [(1 << bits) - 1 for bits in (31, 63, 64)]
WORDS = [str(number).encode() for number in NUMBERS]
WORDS += b"-0 1e3 1.5 nan inf -inf 1e39 1e300 1e999 1_0 0x1 +1 007 {} [] null true () True".split()
WORDS += b"<f8 |O <U9 <i8 >u8 general symmetric csr coo (9,) (0,5) (1<<60,)".split()
WORDS += [text.encode() for text in ("\u0661\u0662", "\u00b2", "\uff11", "", " ", "9" * 5000, "[" * 20_000)]
WORDS += [b"\xff\xfe", b"\x00", b"\xa0", b'"', b"'", b",", b"\n", b"\r", b"#", b"%", b"\xef\xbb\xbf"]
TOKEN = re.compile(rb"-?\d+(?:\.\d+)?|[A-Za-z_]+|\([^()]*\)")


def place(rng: np.random.Generator, data: bytes) -> int:
    return int(rng.integers(len(data) + 1))


def span(rng: np.random.Generator, data: bytes) -> tuple[int, int]:
    lo = place(rng, data)
    return lo, min(len(data), lo + int(rng.choice([1, 1, 2, 4, 8, 32, 200])))


def word(rng: np.random.Generator) -> bytes:
    return WORDS[rng.integers(len(WORDS))]


def flip(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(len(data), size=rng.integers(1, 4)) if data else ():
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: place(rng, data)]


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    lo, hi = span(rng, data)
    return data[:lo] + data[hi:]


def repeat(rng: np.random.Generator, data: bytes) -> bytes:
    lo, hi = span(rng, data)
    return data[:lo] + data[lo:hi] * int(rng.choice([2, 3, 100])) + data[hi:]


def insert(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + (word(rng) if rng.random() < 0.7 else rng.bytes(int(rng.integers(1, 9)))) + data[at:]


def token(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace a number, a name or a shape by another word."""
    found = list(TOKEN.finditer(data[:100_000]))
    if not found:
        return insert(rng, data)
    lo, hi = found[rng.integers(len(found))].span()
    return data[:lo] + word(rng) + data[hi:]


def integer(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace a binary integer by another."""
    width = int(rng.choice([1, 2, 4, 8]))
    number = NUMBERS[rng.integers(len(NUMBERS))] % (1 << 8 * width)
    at = int(rng.integers(max(1, len(data) // width))) * width if rng.random() < 0.5 else place(rng, data)
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def line(rng: np.random.Generator, data: bytes) -> bytes:
    """Delete, repeat or move a line."""
    lines = data.split(b"\n")
    at, other = rng.integers(len(lines), size=2)
    lines[at : at + 1] = [[], [lines[at]] * 2, [lines[other]], [lines[at], b""]][rng.integers(4)]
    return b"\n".join(lines)


PLAIN: tuple[Callable[[np.random.Generator, bytes], bytes], ...] = (
    flip, truncate, cut, repeat, insert, token, token, token, integer, integer, line,
)  # fmt: skip


def inside_gzip(rng: np.random.Generator, data: bytes) -> bytes:
    return packed(mutated(rng, gzip.decompress(data)))


def inside_zip(rng: np.random.Generator, data: bytes) -> bytes:
    """Change a member, or names and sizes of members."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = list(members)[rng.integers(len(members))]
    what = rng.integers(10)
    if what == 0:
        members[token(rng, name.encode()).decode("latin1")] = members.pop(name)
    elif what == 1:
        del members[name]
    elif what == 2:
        members[name] = members[list(members)[rng.integers(len(members))]]
    else:
        members[name] = mutated(rng, members[name])
    method, file = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])), io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)  # without a date
    return file.getvalue()


def inside_npy(rng: np.random.Generator, data: bytes) -> bytes:
    """Change entries, the type or the shape of an array in a good file."""
    array = np.load(io.BytesIO(data)).copy()
    what, flat = rng.integers(5), array.reshape(-1)
    if what == 0:
        array = array.astype(
            rng.choice(["i1", "i4", ">i8", "u8", "f2", "f4", ">f8", "g", "?", "U3", "S2", "c8"])
        )
    elif what == 1:
        array = [flat, flat[:-1], array[None], array.T, array[:0], array[..., None], flat[:1]][
            rng.integers(7)
        ]
    elif len(flat) and array.dtype.kind in "iuf":
        numbers = np.array(
            [-1, 0, 1, 2, 8, 9, 1 << 20, 1 << 30, 1 << 31, 1 << 53, 2.0**62, np.nan, np.inf, 1e300, 0.5]
        )
        with np.errstate(all="ignore"):
            flat[rng.integers(len(flat), size=rng.integers(1, 4))] = numbers[
                rng.integers(len(numbers))
            ].astype(flat.dtype)
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """Make one to three changes to the data, to packed content or to its packing."""
    if rng.random() < 0.75:
        try:
            if data[:2] == b"\x1f\x8b":
                return inside_gzip(rng, data)
            if data[:2] == b"PK":
                return inside_zip(rng, data)
            if data[:6] == b"\x93NUMPY" and rng.random() < 0.6:
                return inside_npy(rng, data)
        except Exception:  # it is not what it looks like any more
            pass
    for _ in range(rng.integers(1, 4)):
        data = PLAIN[rng.integers(len(PLAIN))](rng, data)
    return data


def mutant(case: Case, number: int) -> tuple[str, bytes]:
    """Return (name, content) of the file that this mutant changes."""
    rng = np.random.default_rng([number, zlib.crc32(repr(sorted(case[1].items())).encode())])
    name = sorted(case[1])[rng.integers(len(case[1]))]
    return name, mutated(rng, case[1][name])


def consume(path: Path, options: ImportOptions) -> None:
    """Read what `prepare` reads."""
    source = open_source(path, options)
    check_source(source)
    for before, edges in source.edge_share(0, 1):
        check_edges(source, before, edges, np.dtype(np.float32))
    if source.width:
        step = max(1, LIMITS.row_bytes // (4 * source.width))
        for lo in sorted({*range(0, min(source.n, 4 * step), step), source.n - min(source.n, step)}):
            source.features(np.arange(lo, min(lo + step, source.n)))


def one(folder: Path, case: Case, number: int, changed: tuple[str, bytes] | None = None) -> str:
    """Import a mutant; return accepted, refused, or the traceback of a fault."""
    opened, files, options = case
    name, content = changed or mutant(case, number)
    given: dict[str, Any] = options | {
        name: value.replace("@", str(folder)) for name, value in options.items() if isinstance(value, str)
    }
    (folder / name).write_bytes(content)
    try:
        consume(folder / opened, ImportOptions(scratch=str(folder.parent), **given))
    except UserError as error:
        return "refused" if "\n" not in str(error) else f"more than one line: {error!r}"
    except BaseException:
        return traceback.format_exc()
    finally:
        (folder / name).write_bytes(files[name])
    return "accepted"


class Fuzzer:
    """Runs mutants of a case in children, which note in shared memory how far they are."""

    def __init__(self, name: str, case: Case, keep: Path | None) -> None:
        self.name, self.case, self.keep, self.counts = name, case, keep, Counter[str]()
        self.faults: dict[int, str] = {}
        self.at, self.report = mmap.mmap(-1, 8), tempfile.TemporaryFile()

    def run(self, first: int, last: int, end: float) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
            folder = Path(root) / "input"
            for name, content in self.case[1].items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            while first < last and time.monotonic() < end:
                first = self._batch(folder, first, min(first + 500, last), end)

    def _batch(self, folder: Path, first: int, last: int, end: float) -> int:
        """Fork for these mutants; returns the next one to run."""
        self.at[:] = struct.pack("<q", first)
        child = os.fork()
        if child == 0:
            self._child(folder, first, last, end)
        seen, since = first, time.monotonic()
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            time.sleep(0.005)
            if (now := struct.unpack("<q", self.at[:])[0]) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > SECONDS:
                os.kill(child, signal.SIGKILL)
        seen = struct.unpack("<q", self.at[:])[0]
        self._collect()
        if ended[1]:
            code = os.waitstatus_to_exitcode(ended[1])
            what = "hang" if code == -signal.SIGKILL else f"crash, exit code {code}"
            self._fault(seen, what)
            self.restore(folder)
            return seen + 1
        return last

    def _child(self, folder: Path, first: int, last: int, end: float) -> None:
        limit(MEMORY)
        warnings.simplefilter("error", RuntimeWarning)
        code = 1
        try:
            for number in range(first, last):
                if time.monotonic() > end:
                    break
                self.at[:] = struct.pack("<q", number)
                found = one(folder, self.case, number)
                os.write(self.report.fileno(), json.dumps([number, found]).encode() + b"\n")
            code = 0
        finally:
            os._exit(code)

    def _collect(self) -> None:
        self.report.seek(0)
        for text in self.report:
            number, found = json.loads(text)
            if found in ("accepted", "refused"):
                self.counts[found] += 1
            else:
                self._fault(number, found)
        self.report.seek(0)
        self.report.truncate()

    def _fault(self, number: int, what: str) -> None:
        self.counts["faults"] += 1
        self.faults[number] = what
        if self.keep:
            name, content = mutant(self.case, number)
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{self.name}-{number}-{Path(name).name}").write_bytes(content)

    def restore(self, folder: Path) -> None:
        """Undo what a child that ended early has left."""
        for name, content in self.case[1].items():
            (folder / name).write_bytes(content)
        for left in folder.parent.glob("distgnn-*"):
            left.unlink()


def limit(beyond: int) -> None:
    """Limit this process's memory, and silence faults."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + beyond
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def fuzz(name: str, case: Case, first: int, runs: int, seconds: float, keep: Path | None = None) -> Fuzzer:
    """Run mutants first..first+runs-1 of a case; start none after so many seconds."""
    end = time.monotonic() + seconds
    LIMITS.declared_nodes = 1 << 16  # the same branches, in less time
    fuzzer = Fuzzer(name, case, keep)
    with tempfile.TemporaryDirectory() as root:  # the case itself must be good
        folder = Path(root) / "input"
        shutil.rmtree(folder, ignore_errors=True)
        for file, content in case[1].items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        file = next(iter(case[1]))
        if (found := one(folder, case, 0, (file, case[1][file]))) != "accepted":
            raise RuntimeError(f"{name}: {found}")
    fuzzer.run(first, first + runs, end)
    return fuzzer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all cases together")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that failed")
    parser.add_argument("--show", type=int, default=3, help="faults of a case to print")
    args = parser.parse_args()
    mutants = faults = 0
    heads = ("runs", "accepted", "refused", "faults", "seconds")
    print(f"{'case':20}" + "".join(f"{head:>9}" for head in heads))
    chosen = {name: case for name, case in cases().items() if name.startswith(args.only)}
    for name, case in chosen.items():
        start = time.monotonic()
        done = fuzz(name, case, args.first, args.runs, args.seconds / len(chosen), args.keep)
        counts = [done.counts[what] for what in ("accepted", "refused", "faults")]
        numbers = "".join(f"{count:9}" for count in (sum(counts), *counts))
        print(f"{name:20}{numbers}{time.monotonic() - start:9.1f}", flush=True)
        shown = {what.strip().splitlines()[-1][:60]: (number, what) for number, what in done.faults.items()}
        for number, what in list(shown.values())[: args.show]:
            print(f"-- {name} {number}: {what}", file=sys.stderr)
        mutants, faults = mutants + sum(counts), faults + counts[2]
    print(f"\n{mutants} mutants of {len(chosen)} kinds of files: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""One rank of a job in which something goes wrong: ``python planted.py WORDS...`` is ``distgnn WORDS...``.

$PLANTED says what, as JSON: {"folder", "mark", "rank", "fault", "where", "nth", "size"}. The fault happens on
that rank at the nth time that it comes to `where`, and is marked by a file. Without a fault every rank writes
to `mark`.RANK how often it came where, calls on ranks 0 and 1 only. Nothing of the package is changed: a
profile function sees the calls that the package makes, an audit hook the files that are opened, made and
renamed, and a preloaded library the writes (failing_write.c).
"""

from __future__ import annotations

import errno
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[2] / "distgnn") + os.sep
EXCEPTIONS = {kind.__name__: kind for kind in (RuntimeError, MemoryError, KeyboardInterrupt)}
CHANGES = {"os.rename", "os.mkdir", "os.truncate"}
STARTED = "cli/__init__.py:agreed"  # MPI is up, which has files of its own
CALLED_BACK = PACKAGE + os.path.join("store", "format", "steady.py")  # by HDF5; signals come after it
MEANWHILE = 1.0  # seconds


class Plant:
    """Counter of this rank's events, and the fault planted at the chosen one."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.seen = spec, Counter[str]()
        self.armed = spec.get("rank") == int(os.environ["PMI_RANK"])

    def calls(self, frame: Any, event: str, callee: Any) -> None:
        """Trace entered functions of the package, and C functions that they call: the profile function."""
        code = frame.f_code
        own = code.co_filename.startswith(PACKAGE) and code.co_filename != CALLED_BACK
        if event not in ("call", "c_call") or not own:
            return
        where = f"{code.co_filename[len(PACKAGE) :]}:{code.co_name}"
        if event == "c_call":
            where += f" -> {getattr(callee, '__name__', callee)}"
        elif code.co_name == "<module>":
            return
        self.reach(where)

    def changes(self, event: str, args: tuple[Any, ...]) -> None:
        """Trace changes of files below the folder: the audit hook."""
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in CHANGES:
            path = os.path.abspath(args[0]) if isinstance(args[0], (str, os.PathLike)) else ""
            # made already, or the place of a file without a name, for which Python has another way
            known = event in ("os.mkdir", "open") and os.path.isdir(path)
            if path.startswith(self.spec["folder"]) and not known:
                self.reach(event, path)

    def reach(self, where: str, path: str = "") -> None:
        self.seen[where] += 1
        if self.armed and where == self.spec["where"] and self.seen[where] == self.spec["nth"]:
            self.armed = False
            sys.setprofile(None)
            if self.spec["fault"] == "file size":  # whether a file grows that large shows in how the job ends
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.spec["size"], resource.RLIM_INFINITY))
                return
            if where == "os.mkdir":  # other ranks may make it now, and then any will do
                time.sleep(MEANWHILE)
                if os.path.isdir(path):
                    return
            Path(self.spec["mark"]).write_text(where)
            self.fail(self.spec["fault"])

    def fail(self, fault: str) -> None:
        if fault in EXCEPTIONS:
            raise EXCEPTIONS[fault]("planted")
        if fault.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, fault))
        elif fault == "exit 3":
            os._exit(3)
        else:
            number = getattr(errno, fault.split()[0])
            raise OSError(number, os.strerror(number), "planted")


def main() -> None:
    spec = json.loads(os.environ["PLANTED"])
    tempfile.gettempdir()  # writes to see whether it can, and takes another folder if not
    rank = int(os.environ["PMI_RANK"])
    fault, mine = spec.get("fault"), spec.get("rank") == rank
    if fault is None or (mine and fault.endswith(" write")):
        preload(spec, rank, fault)
    plant = Plant(spec)
    if fault is None or (mine and ":" not in spec["where"]):
        sys.addaudithook(plant.changes)
    if rank < 2 if fault is None else mine and ":" in spec["where"]:  # the others do as rank 1
        sys.setprofile(plant.calls)
    sys.argv[0] = "distgnn"
    try:
        runpy.run_module("distgnn", run_name="__main__")
    finally:
        sys.setprofile(None)
        if fault is None:
            Path(f"{spec['mark']}.{rank}").write_text(json.dumps(plant.seen))


def preload(spec: dict[str, Any], rank: int, fault: str | None) -> None:
    """Start again with the library that counts writes and lets one fail, if it was built."""
    library = os.environ.pop("FAILING_WRITE", None)
    if library:
        os.environ["LD_PRELOAD"] = library
        os.execv(sys.executable, [sys.executable, *sys.argv])
    number = getattr(errno, fault.split()[0]) if fault else 0
    mark = spec["mark"] if fault else f"{spec['mark']}.{rank}.writes"
    os.environ |= {"FAILING_FOLDER": spec["folder"], "FAILING_MARK": mark}
    os.environ |= {"FAILING_NTH": str(spec.get("nth", 0)), "FAILING_ERRNO": str(number)}


if __name__ == "__main__":
    main()

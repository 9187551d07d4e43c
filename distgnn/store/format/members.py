"""The files that belong to a manifest: their place, their bytes, and proof that they are its own.

Every HDF5 file carries the id of its store or checkpoint and its own name there. So no file can stand in for
another file of the same shape: of another store, of another order, of other rows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from distgnn.errors import UserError
from distgnn.stages import followed
from distgnn.store.format import manifest
from distgnn.store.format.manifest import STORE, Kind
from distgnn.store.format.stored import StoredFile, reading


class Members:
    """The files of a directory with a manifest.

    Args:
        files: name -> {"bytes", "sha256"}, as in the manifest.
        id: the manifest's id; "" while the manifest is being written: then no file is compared.
    """

    def __init__(
        self, root: Path, kind: Kind = STORE, id: str = "", files: Mapping[str, Any] | None = None
    ) -> None:  # fmt: skip
        self.root, self.kind, self.id, self.files = root, kind, id, files or {}

    @contextmanager
    def open(self, name: str) -> Iterator[StoredFile]:
        """Open the file of this name. Raises UserError if it is missing, damaged or of another store."""
        with self._explained(), reading(self.root / name) as file:
            if self.id and not _carries(file, self.id, name):
                reason = f"is not the file that was written here with the {self.kind.what}"
                raise UserError(f"{self.root / name}: {reason}; copy it or make it again")
            yield file

    def touch(self) -> None:
        """Open one file, so that a manifest whose id the files do not carry is refused."""
        for name in list(self.files)[:1]:
            with self.open(name):
                pass

    def check(self, named: Iterable[str]) -> None:
        """Raise UserError unless these names, each once, are the manifest's and all files are there.

        Every file must lie in the directory and have the length that the manifest gives.
        """
        names = list(named)
        if sorted(names) != sorted(self.files):
            raise manifest.damaged(self.root, self.kind, "it does not name every file once")
        with self._explained():
            inside: dict[Path, bool] = {}
            for name, expected in self.files.items():
                self._check(name, expected["bytes"], inside)

    @property
    def sizes(self) -> dict[str, int]:
        """The length of every file."""
        return {name: file["bytes"] for name, file in self.files.items()}

    def changed(self, names: Iterable[str]) -> list[str]:
        """Read these files; return the names whose bytes are not those of the manifest."""
        with self._explained():
            try:
                names, sizes = list(names), self.sizes
                total = sum(sizes[name] for name in names)
                read = followed(names, f"verify {self.root}", total, "B", sizes.__getitem__)
                prints = ((name, manifest.fingerprint(self.root / name)) for name in read)
                return [name for name, fingerprint in prints if fingerprint != self.files[name]]
            except PermissionError as error:
                raise manifest.denied(error.filename) from None
            except FileNotFoundError as error:
                raise UserError(f"{error.filename}: file is missing; copy it or make it again") from None
            except OSError as error:
                raise UserError(f"{self.root}: cannot be read ({error.strerror})") from None

    def refuse(self, changed: list[str]) -> None:
        """Raise UserError for files whose bytes have changed, if there are any."""
        if changed:
            with self._explained():
                problem = f"the bytes of {', '.join(changed[:5])} changed since it was written"
                raise UserError(f"{self.root}: {problem}; copy the {self.kind.what} or {self.kind.again}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain an error inside by a replaced directory, if another one has taken its place."""
        try:
            yield
        except UserError:
            if self.id and self._replaced():
                raise UserError(f"{self.root}: was replaced while it was read; open it again") from None
            raise

    def _replaced(self) -> bool:
        try:
            return bool(manifest.read(self.root, self.kind)["id"] != self.id)
        except UserError:
            return False

    def _check(self, name: str, expected: int, inside: dict[Path, bool]) -> None:
        """Raise UserError for a name or a link that leads out of the directory, and for a wrong length.

        `inside` remembers for each folder whether it lies in the directory.
        """
        pure, path = PurePosixPath(name), self.root / name
        if pure.is_absolute() or ".." in pure.parts or str(pure) != name or "\0" in name:
            raise manifest.damaged(self.root, self.kind, f"{name!r} is no path of a file in it")
        try:
            for place in (path.parent, path) if path.is_symlink() else (path.parent,):
                if place not in inside:
                    inside[place] = Path(os.path.realpath(place)).is_relative_to(os.path.realpath(self.root))
                if not inside[place]:
                    raise UserError(
                        f"{path}: is a link out of the {self.kind.what}; put the file in its place"
                    )
            status = path.stat()
        except PermissionError:
            raise manifest.denied(path) from None
        except OSError:
            raise UserError(f"{path}: file is missing; copy it or make it again") from None
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: is not a regular file; copy it or make it again")
        if status.st_size != expected:
            raise UserError(f"{path}: {status.st_size} bytes where the manifest says {expected}; "
                            "the file is truncated or was changed, copy it or make it again")  # fmt: skip


def stamp(file: h5py.File, id: str, name: str) -> None:
    """Write the id and the name into an open file. Fixed lengths: HDF5 has no checksums for the others."""
    for key, value in (("id", id), ("name", name)):
        file.attrs.create(key, np.bytes_(value.encode()))


def _carries(file: StoredFile, id: str, name: str) -> bool:
    return (file.text("id"), file.text("name")) == (id.encode(), name.encode())

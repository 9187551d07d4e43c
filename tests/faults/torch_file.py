"""Files as `torch.save` writes them, made without torch: a pickle assembled by hand in a ZIP archive."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = {"f4": "Float", "f8": "Double", "f2": "Half", "i8": "Long", "i4": "Int", "u1": "Byte", "b1": "Bool"}


@dataclass
class Global:
    """A name that the pickle asks for."""

    module: str
    name: str


@dataclass
class Call:
    """A name called with arguments."""

    what: Global
    arguments: tuple[Any, ...]


@dataclass
class Stored:
    """A storage, by its persistent id."""

    kind: str
    key: str
    numel: int


@dataclass
class Object:
    """An object of a class with a state, as `Data` is pickled."""

    what: Global
    state: Any


@dataclass
class Changed:
    """Anything, given a state."""

    what: Any
    state: Any


@dataclass
class Raw:
    """Opcodes as they are."""

    opcodes: bytes


@dataclass
class Saved:
    """A .pt file: `tensor` adds one, `bytes` is the file with an object on top."""

    members: dict[str, bytes] = field(default_factory=dict)

    def tensor(self, array: np.ndarray, stride: Any = None, size: Any = None, offset: int = 0) -> Call:
        key, flat = str(len(self.members)), np.ascontiguousarray(array)
        self.members[key] = flat.tobytes()
        steps = stride or tuple(step // flat.itemsize for step in flat.strides)
        storage = Stored(KINDS[array.dtype.str[1:]], key, flat.size)
        hooks = Call(Global("collections", "OrderedDict"), ())
        arguments = (storage, offset, size or flat.shape, steps, False, hooks)
        return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)

    def bytes(self, top: Any) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            members = {"data.pkl": b"\x80\x02" + assembled(top) + b".", "byteorder": b"little"}
            members |= {f"data/{key}": content for key, content in self.members.items()}
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(f"graph/{name}"), content)
        return file.getvalue()


def data(**values: Any) -> Object:
    """Make PyG's `Data` with these attributes."""
    store = Object(Global("torch_geometric.data.storage", "GlobalStorage"), {"_mapping": values})
    return Object(Global("torch_geometric.data.data", "Data"), {"_edge_attr_cls": None, "_store": store})


def assembled(value: Any) -> bytes:
    """Return the opcodes of pickle protocol 2 that make this value."""
    if isinstance(value, Global):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        return assembled(value.what) + assembled(value.arguments) + b"R"
    if isinstance(value, Object):
        return assembled(value.what) + b")\x81" + assembled(value.state) + b"b"
    if isinstance(value, Changed):
        return assembled(value.what) + assembled(value.state) + b"b"
    if isinstance(value, Raw):
        return value.opcodes
    if isinstance(value, Stored):
        kind = Global("torch", f"{value.kind}Storage")
        return assembled(("storage", kind, value.key, "cpu", value.numel)) + b"Q"
    if isinstance(value, dict):
        return b"}(" + b"".join(assembled(part) for item in value.items() for part in item) + b"u"
    if isinstance(value, (tuple, list)):
        inside = b"(" + b"".join(map(assembled, value))
        return inside + b"t" if isinstance(value, tuple) else b"]" + inside + b"e"
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    return b"\x8a\x08" + struct.pack("<q", value)

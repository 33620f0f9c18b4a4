"""Values between the program under test and the test: plain data, copied, never objects.

What crosses is rebuilt from JSON on the other side, so nothing of the program's own making (an
``__eq__`` that always agrees, a subclass, a patched builtin) reaches the comparison.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LONGEST = 16 * 2**20  # bytes of one message


class WireError(Exception):
    """The other side is gone, or sent what cannot be read."""


class Opaque:
    """Stands for a value that is no plain data; equal to nothing else."""


def pack(value: object, depth: int = 0) -> Any:
    """A JSON value for plain Python data; other objects become a mark."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"i": hex(int(value))}
    if isinstance(value, float):
        return {"f": float(value).hex()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [value.real.hex(), value.imag.hex()]}
    if depth < 200:
        for cls, key in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z")):
            if isinstance(value, cls):
                return {key: [pack(part, depth + 1) for part in list(value)]}
        if isinstance(value, dict):
            pairs = list(value.items())
            return {"d": [[pack(k, depth + 1), pack(v, depth + 1)] for k, v in pairs]}
    return {"o": type(value).__name__}


def unpack(value: Any) -> Any:
    """The inverse of pack. Raises WireError for anything pack does not write."""
    if value is None or isinstance(value, bool | str):
        return value
    try:
        ((key, inner),) = value.items()
        if key == "i":
            return int(inner, 16)
        if key == "f":
            return float.fromhex(inner)
        if key == "b":
            return bytes.fromhex(inner)
        if key == "c":
            return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
        if key == "d":
            return {unpack(k): unpack(v) for k, v in inner}
        if key == "o":
            return Opaque()
        build = {"l": list, "t": tuple, "s": set, "z": frozenset}[key]
        return build(unpack(part) for part in inner)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise WireError("unreadable value") from error


def send(handle: int, value: object) -> None:
    """Write one JSON value as a message. Raises WireError when it is too long or nobody reads."""
    data = json.dumps(value).encode()
    if len(data) > LONGEST:
        raise WireError("message too long")
    view = memoryview(struct.pack("<I", len(data)) + data)
    try:
        while view:
            view = view[os.write(handle, view) :]
    except OSError as error:
        raise WireError("nobody reads") from error


def receive(handle: int) -> Any:
    """Read exactly one message, no byte more. Raises WireError at the end or for nonsense."""
    (length,) = struct.unpack("<I", _exactly(handle, 4))
    if length > LONGEST:
        raise WireError("message too long")
    try:
        return json.loads(_exactly(handle, length))
    except (ValueError, RecursionError) as error:
        raise WireError("unreadable message") from error


def _exactly(handle: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(handle, min(length, 2**20))
        if not part:
            raise WireError("end of messages")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)

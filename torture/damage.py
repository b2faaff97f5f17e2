"""Damage as data: a list of small changes that can be drawn, applied, kept as JSON and replayed.

A change names a place as a share of the file, or as a path in the document that the file holds, so
that it still means something when the file is written anew by another version.
"""

import contextlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = dict[str, Any]
RAW = "@raw@"


def damaged(name: str, content: bytes, changes: list[Change]) -> bytes | None:
    """The content of a file after all changes, one after another; None: there is no such file."""
    found: bytes | None = content
    for change in changes:
        if found is None:
            return None
        found = CHANGES[change["change"]](name, found, change)
    return found


def _place(content: bytes, change: Change, key: str = "at") -> int:
    return int(change[key] * len(content))


def _flip(_name: str, content: bytes, change: Change) -> bytes:
    new = bytearray(content or b"\0")
    new[min(_place(content, change), len(new) - 1)] ^= 1 << change["bit"]
    return bytes(new)


def _cut(_name: str, content: bytes, change: Change) -> bytes:
    return content[: _place(content, change)]


def _splice(_name: str, content: bytes, change: Change) -> bytes:
    """Replaces some bytes by given ones, or by a copy of others of the file."""
    at, gone = _place(content, change), change.get("remove", 0)
    if "copy" in change:
        start = _place(content, change, "copy")
        new = content[start : start + change["length"]]
    else:
        new = change["bytes"].encode("latin-1") * change.get("times", 1)
    return content[:at] + new + content[at + gone :]


def _whole(_name: str, _content: bytes, change: Change) -> bytes:
    return change["bytes"].encode("latin-1") * change.get("times", 1)


def _set(name: str, content: bytes, change: Change) -> bytes:
    """A value in the document: anything JSON, or the raw text of what is not JSON."""
    value = RAW if "raw" in change else change["value"]

    def edit(document: Any) -> Any:
        if not change["path"]:
            return value
        *way, last = change["path"]
        inner = document
        for step in way:
            inner = inner[step]
        inner[last] = value
        return document

    raw = change.get("raw", "") * change.get("times", 1)
    return _edited(name, content, edit, raw + change.get("end", ""))


def _unset(name: str, content: bytes, change: Change) -> bytes:
    def edit(document: Any) -> Any:
        *way, last = change["path"]
        inner = document
        for step in way:
            inner = inner[step]
        del inner[last]
        return document

    return _edited(name, content, edit)


def _crc(_name: str, content: bytes, _change: Change) -> bytes:
    """Makes the checksums of a PNG right again, so that a decoder reads on."""
    found, at = content[:8], 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        piece = content[at + 4 : at + 8 + length]
        found += content[at : at + 4] + piece + struct.pack(">I", zlib.crc32(piece))
        at += 12 + length
    return found


CHANGES: dict[str, Callable[[str, bytes, Change], bytes | None]] = {
    "flip": _flip,
    "cut": _cut,
    "splice": _splice,
    "whole": _whole,
    "set": _set,
    "unset": _unset,
    "crc": _crc,
    "delete": lambda _name, _content, _change: None,
}

SPECIAL = ("fifo", "loop", "folder", "dangling", "device", "sparse")
"""What is no file of bytes, or of too many."""


def make_special(path: Path, kind: str) -> None:
    """Puts such a thing in place of a file, if there is one."""
    content = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    if kind == "sparse":
        path.write_bytes(content)
        os.truncate(path, 6 << 30)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"loop": path.name, "dangling": "nothing", "device": "/dev/zero"}[kind])


# --- documents inside files ---------------------------------------------------------------------


def document_in(name: str, content: bytes) -> Any:
    """What a file says in JSON; None where it says nothing. Nested texts of JSON are unfolded."""
    if name.endswith(".json"):
        return json.loads(content)
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in content.splitlines()]
    if name.endswith(".safetensors"):
        return _unfolded(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))
    if name.endswith(".onnx"):
        return {entry.key: _unfolded(entry.value) for entry in _onnx(content).metadata_props}
    if name.endswith(".pt2"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".json")]
            return {name: json.loads(archive.read(name)) for name in names}
    return None


def _edited(name: str, content: bytes, edit: Callable[[Any], Any], raw: str = "") -> bytes:
    """The file with its document edited; where the place is gone, the file as it was."""
    try:
        document = edit(document_in(name, content))
    except Exception:  # a change before has damaged it
        return content
    if name.endswith(".jsonl"):
        lines = document if isinstance(document, list) else [document]
        return b"".join(_dumped(line, raw) + b"\n" for line in lines)
    if name.endswith(".safetensors"):
        header = _dumped(_folded(document), raw)
        length = int.from_bytes(content[:8], "little")
        return len(header).to_bytes(8, "little") + header + content[8 + length :]
    if name.endswith(".onnx") and isinstance(document, dict):
        model = _onnx(content)
        del model.metadata_props[:]
        for key, value in _folded({"__metadata__": document}, raw)["__metadata__"].items():
            model.metadata_props.add(key=str(key), value=value)
        return model.SerializeToString()
    if name.endswith(".pt2") and isinstance(document, dict):
        with contextlib.suppress(Exception):  # a change before has damaged it
            return _rezipped(content, {k: _dumped(v, raw) for k, v in document.items()})
        return content
    return _dumped(document, raw)


def _dumped(value: Any, raw: str = "") -> bytes:
    text = json.dumps(value, ensure_ascii=True)
    return text.replace(f'"{RAW}"', raw).encode("utf-8", "surrogatepass")


def _unfolded(value: Any) -> Any:
    """Metadata are texts; ours are JSON."""
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    if isinstance(value, dict) and "__metadata__" in value:
        inner = {key: _unfolded(text) for key, text in value["__metadata__"].items()}
        return value | {"__metadata__": inner}
    return value


def _folded(value: Any, raw: str = "") -> Any:
    """The checksum is left out: it would hide everything behind it."""
    if isinstance(value, dict) and isinstance(value.get("__metadata__"), dict):
        inner = {k: v for k, v in value["__metadata__"].items() if not k.endswith("checksum")}
        texts = {k: v if isinstance(v, str) else _dumped(v, raw).decode() for k, v in inner.items()}
        return value | {"__metadata__": texts}
    return value


def _rezipped(content: bytes, members: dict[str, bytes]) -> bytes:
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(new, "w") as archive:
        for name in old.namelist():
            archive.writestr(name, members.get(name, old.read(name)))
    return new.getvalue()


def _onnx(content: bytes) -> Any:
    import onnx

    return onnx.load_from_string(content)

"""Damaged and hostile images, to `train` in batches and to `predict` one by one.

They are read, refused in one line, or skipped with --skip-corrupt; nothing hangs, and nothing takes
more than the memory that all commands may take.
"""

import base64
import io
import json
import os
import random
import shlex
import struct
import zlib
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torture import drawing
from torture.damage import SPECIAL, damaged, make_special
from torture.facts import complaint
from torture.server import command
from torture.workshop import CLASSES, Workshop, done

BATCH = 20
"""Images beside good ones in one folder that `train` reads."""
TRAIN: list[str] = shlex.split(
    "train --run run --data mixed --cache cache --steps 1 --batch-size 4 --width 0.05 "
    "--method baseline --image-size 28 --no-tensorboard"
)
ONE_TABLE_PER = 50
NO_IMAGE = {
    "null": None,
    "null bytes": {"bytes": None, "path": None},
    "elsewhere": {"bytes": None, "path": "/dev/zero"},
    "text": {"bytes": b"no image", "path": "\x1b[31m"},
}
"""What stands in every fifth row of a table in place of an image."""
LABELS = {"whole": int, "null labels": lambda n: int(n) or None, "float labels": lambda n: n / 3,
          "huge labels": lambda n: n << 60, "names": lambda n: f"\x1b[31m{n}"}  # fmt: skip
"""What labels of a table become."""
WAYS = ([], ["--skip-corrupt"], ["--skip-corrupt", "--stream", "--workers", "0"])


def prepare(workshop: Workshop, only: str = "") -> None:
    """A trained network to predict with."""
    if not (workshop.home / "network").exists():
        with workshop.room() as room:
            words = [*TRAIN, "--data", "data"]
            done(words, room)
            done(["export", "run", "--format", "safetensors", "--out", "network.safetensors"], room)
            for name in ("run", "cache", "tmp"):
                os.rename(room / name, workshop.home / f"unused-{name}-{room.name}")
            workshop.keep(room, "network")
    workshop.references["images"] = originals()


def originals() -> dict[str, bytes]:
    """Small pictures in every format that Pillow writes here, by file name."""
    import numpy as np
    from PIL import Image, features

    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 256, (30, 40, 4), dtype=np.uint8)
    rgb, rgba = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels)
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) << 8)
    frames = {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "turned"
    wanted: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "plain.jpg": (rgb, {"exif": exif}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "grey.jpg": (rgb.convert("L"), {}),
        "inks.jpg": (rgb.convert("CMYK"), {}),
        "plain.png": (rgb, {}),
        "alpha.png": (rgba, {}),
        "palette.png": (rgb.quantize(16), {"transparency": 3}),
        "deep.png": (deep, {}),
        "bit.png": (rgb.convert("1"), {}),
        "moving.png": (rgb, frames),
        "moving.gif": (rgb.quantize(16), frames | {"append_images": [rgb.quantize(8)]}),
        "plain.bmp": (rgb, {}),
        "palette.bmp": (rgb.quantize(16), {}),
        "plain.tiff": (rgb, {}),
        "deflated.tiff": (rgba, {"compression": "tiff_deflate"}),
        "lzw.tiff": (rgb, {"compression": "tiff_lzw"}),
        "pages.tiff": (rgb, frames),
        "floats.tiff": (rgb.convert("F"), {}),
        "plain.ppm": (rgb, {}),
        "plain.tga": (rgb, {}),
        "plain.ico": (rgb, {}),
    }
    if features.check("webp"):
        wanted |= {"lossy.webp": (rgb, {}), "lossless.webp": (rgba, {"lossless": True})}
        wanted["moving.webp"] = (rgb, frames)
    if features.check("avif"):
        wanted |= {"plain.avif": (rgb, {}), "alpha.avif": (rgba, {})}
    if features.check("jpg_2000"):
        wanted["plain.jp2"] = (rgb, {})
    return {name: _encoded(name, image, options) for name, (image, options) in wanted.items()}


def _encoded(name: str, image: Any, options: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.name = name
    image.save(out, **options)
    return out.getvalue()


def cases(workshop: Workshop, seed: int, count: int) -> list[dict[str, Any]]:
    """Batches of changed pictures, of which each is a case; on top, tables of good pictures, some
    of them damaged."""
    images = workshop.references["images"]
    numbers = st.sampled_from(("\xff\xff\xff\xff", "\x7f\xff\xff\xff", "\0\0\xff\xff", "\0\0\0\0"))
    early = st.floats(0, 0.2).map(lambda share: round(share, 4))
    header = st.builds(
        lambda at, new: {"change": "splice", "at": at, "remove": len(new), "bytes": new},
        early,
        numbers,
    )
    changes = st.lists(drawing.BYTES | header, min_size=1, max_size=3)
    checked = st.booleans().map(lambda right: [{"change": "crc"}] if right else [])
    picture = st.builds(
        lambda name, some, last: {
            "name": name, "changes": some + (last if name.endswith(".png") else [])
        },
        st.sampled_from(sorted(images)),
        changes,
        checked,
    )  # fmt: skip
    drawn = drawing.drawn(picture, count, seed)
    random.Random(seed).shuffle(drawn)
    batches = [drawn[i : i + BATCH] for i in range(0, len(drawn), BATCH)]
    found: list[dict[str, Any]] = [
        {"part": "images", "pictures": batch, "way": place % len(WAYS)}
        for place, batch in enumerate(batches)
    ]
    return found + drawing.drawn(_tables(), max(count // ONE_TABLE_PER, 1), seed + 1)


def _tables() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda kind, some, way: {"part": "images", "table": kind, "changes": some, "way": way},
        st.sampled_from([*NO_IMAGE, *LABELS]),
        st.lists(drawing.BYTES, max_size=2),
        st.integers(0, len(WAYS) - 1),
    )


def run(workshop: Workshop, case: dict[str, Any]) -> str | None:
    """Gives the pictures to both commands; returns what is wrong.

    A batch that fails is narrowed to the first of its pictures that fails alone.
    """
    if "table" in case:
        return _tabulated(workshop, case)
    problem = _given(workshop, case)
    if problem and len(case["pictures"]) > 1:
        for picture in case["pictures"]:
            if found := _given(workshop, case | {"pictures": [picture]}):
                case["pictures"] = [picture]
                return found
    return problem


def _given(workshop: Workshop, case: dict[str, Any]) -> str | None:
    with workshop.room("network") as room:
        for number, picture in enumerate(case["pictures"]):
            if problem := _predicted(workshop, picture, room, f"{number}-{picture['name']}"):
                return problem
        return _trained(workshop, case, room)


def _predicted(workshop: Workshop, picture: dict[str, Any], room: Path, name: str) -> str | None:
    place(workshop, picture, room / name)
    outcome = command(["predict", "network.safetensors", name, "--json"], room)
    if problem := complaint(outcome, (0, 1)):
        return f"predict: {problem}"
    if outcome.code == 0 and not sum(json.loads(outcome.out)["probabilities"]) > 0.99:
        return f"predict: no probabilities: {outcome.out[:200]}"
    return None


def _trained(workshop: Workshop, case: dict[str, Any], room: Path) -> str | None:
    """With good pictures in every class, skipping leaves enough to train on."""
    (room / "mixed").mkdir()
    for number, name in enumerate(CLASSES):
        folder = room / "mixed" / Path(name).name
        folder.mkdir()
        for good in sorted((room / "data" / name).iterdir()):
            (folder / good.name).symlink_to(good.resolve())
        for place_in_batch, picture in enumerate(case["pictures"][number :: len(CLASSES)]):
            place(workshop, picture, folder / f"bad{place_in_batch}-{picture['name']}")
    skips = WAYS[case["way"]]
    outcome = command([*TRAIN, *skips], room, seconds=60)
    found = complaint(outcome, (0,) if skips else (0, 1))
    return f"train {' '.join(skips)}: {found}" if found else None


def _tabulated(workshop: Workshop, case: dict[str, Any]) -> str | None:
    """A parquet file of images, some of them null, or changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with workshop.room("network") as room:
        good = sorted((room / "data").rglob("*.png"))
        rows: list[Any] = [{"bytes": path.read_bytes(), "path": path.name} for path in good]
        if case["table"] in NO_IMAGE:
            rows[::5] = [NO_IMAGE[case["table"]]] * len(rows[::5])
        label = LABELS.get(case["table"], int)
        labels = [label(path.parent.parent.name == "warm") for path in good]
        pq.write_table(pa.table({"image": rows, "label": labels}), room / "table.parquet")
        content = (room / "table.parquet").read_bytes()
        (room / "table.parquet").write_bytes(damaged("", content, case["changes"]) or b"")
        words = [*TRAIN, "--data", "table.parquet", *WAYS[case["way"]]]
        readable = case["table"] in (*NO_IMAGE, "whole") and not case["changes"]
        codes = (0,) if readable and WAYS[case["way"]] else (0, 1)
        return complaint(command(words, room, seconds=60), codes)


def place(workshop: Workshop, picture: dict[str, Any], path: Path) -> None:
    """Writes one picture of a case, or what is none."""
    special = picture.get("special")
    if special in SPECIAL:
        make_special(path, special)
    elif special is not None:
        path.write_bytes(HOSTILE[special]())
    else:
        content = base64.b64decode(picture["base64"]) if "base64" in picture else None
        original = content or workshop.references["images"][picture["name"]]
        path.write_bytes(damaged(path.name, original, picture["changes"]) or b"")


# --- pictures that chance would not find ----------------------------------------------------------


def _png(width: int, height: int, bits: int, colour: int, data: bytes, extra: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    pieces = _chunk(b"IHDR", head) + extra + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + pieces


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def _zeros(count: int) -> bytes:
    """Compressed, block by block."""
    packer, block, found = zlib.compressobj(9), bytes(1 << 20), []
    found += [packer.compress(block) for _ in range(count >> 20)]
    return b"".join(found) + packer.compress(bytes(count & (1 << 20) - 1)) + packer.flush()


def _bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def _gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\x00;"
    return b"GIF89a" + screen + frame


EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%Creator: x\n%%BoundingBox: 0 0 20 20\n%%EndComments\n"
    b"(/tmp/owned) (w) file closefile\nshowpage\n%%EOF\n"
)
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
BOMB = b"a\0\0"
HOSTILE = {
    "eps": lambda: EPS,
    "svg": lambda: SVG,
    "empty": lambda: b"",
    "bomb of zeros": lambda: _png(25000, 25000, 1, 0, _zeros(25000 * 3126)),
    "bomb below the limit": lambda: _png(13300, 13300, 8, 0, _zeros(13300 * 13301)),
    "bomb with alpha": lambda: _png(9000, 9000, 8, 4, _zeros(9000 * 18001)),
    "deep bomb": lambda: _png(9000, 9000, 16, 0, _zeros(9000 * 18001)),
    "announced bomb": lambda: _png(2**31 - 1, 2**31 - 1, 8, 2, _zeros(100)),
    "long and thin": lambda: _png(1, 50_000_000, 8, 0, _zeros(100_000_000)),
    "text bomb": lambda: _png(4, 4, 8, 0, _zeros(20), _chunk(b"zTXt", BOMB + _zeros(300 << 20))),
    "profile bomb": lambda: _png(4, 4, 8, 0, _zeros(20), _chunk(b"iCCP", BOMB + _zeros(300 << 20))),
    "announced bmp": lambda: _bmp(30000, 30000),
    "negative bmp": lambda: _bmp(-5, -(2**31)),
    "announced gif": lambda: _gif(65535, 65535),
    "endless tiff": lambda: b"II*\0\x08\0\0\0" + b"\0\0" + b"\x08\0\0\0",
    "postscript in jpeg": lambda: b"\xff\xd8\xff\xe0" + EPS,
}  # fmt: skip

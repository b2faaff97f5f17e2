"""docs/architecture.md is true: every room is on the map, and knows what it says."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "blockout"
TABLE = (ROOT / "docs" / "architecture.md").read_text().split("| room |")[1].split("\n\n")[0]
ROWS = [
    (re.findall(r"`(\w+)/?`", cells[1]), cells[3])
    for cells in (line.split("|") for line in TABLE.splitlines()[2:])
]
CORE, BASE = (set(rooms) for rooms, _ in ROWS[-2:])
ROOMS = {room: cell for rooms, cell in ROWS for room in rooms}


def test_every_room_is_on_the_map_once():
    there = {
        p.stem for p in SOURCE.iterdir() if not p.name.startswith("_") and p.suffix != ".typed"
    }
    assert sorted(room for rooms, _ in ROWS for room in rooms) == sorted(there)


def imported(room: str) -> set[str]:
    """The other rooms that the files of a room import."""
    files = [SOURCE / f"{room}.py", *(SOURCE / room).rglob("*.py")]
    found = set()
    for node in (n for f in files if f.exists() for n in ast.walk(ast.parse(f.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module == "blockout":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blockout."):
            found.add((node.module or "").split(".")[1])
    return (found & ROOMS.keys()) - {room}


@pytest.mark.parametrize("room", sorted(ROOMS.keys() - CORE - BASE - {"commands"}))
def test_a_room_knows_what_the_map_says(room):
    cell = ROOMS[room]
    said = {name for name in ROOMS if re.search(rf"\b{name}\b", cell)}
    assert imported(room) - BASE - CORE <= said
    together = next(rooms for rooms, _ in ROWS if room in rooms)
    assert said <= set().union(*map(imported, together)), "the map allows what nobody needs"

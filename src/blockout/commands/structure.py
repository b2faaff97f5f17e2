"""``blockout structure``."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockout.commands.flags import Parser, at_least, between, flag, refuse
from blockout.commands.runs import open_run
from blockout.files import write_text
from blockout.structure import Structure
from blockout.structure.sources import read_taxonomy
from blockout.terminal import printable_json, printable_lines

if TYPE_CHECKING:
    from blockout.structure.groups import Consistency

DESCRIPTION = """Shows which classes a trained network groups together, which clusters they use,
what they share, and how many connections are left at a threshold. With --nearest or --against it
answers only that question."""
SOURCE = "folder of a finished run, or a file written with --format json"
THRESHOLD = "a node belongs to a cluster where P >= T (default: 0.5, or the file's own)"
GROUPS = """form N groups of classes (default: as many as are known from the data or from
--taxonomy; without known groups, the number that separates best)"""
TAXONOMY = "compare with known groups: lines of class,group (default: the data's own)"
AGAINST = "another run on the same classes: are the same ones put together?"
FORMAT = "a description, all facts as JSON, or the network as a diagram for Graphviz or Mermaid"


def run(arguments: list[str]) -> int:
    values = _parser().parse_args(arguments)
    asks = values.nearest is not None or values.against is not None
    if asks and values.format not in ("text", "json"):
        refuse(
            "blockout structure",
            f"--nearest and --against are no part of a {values.format} "
            "diagram; say --format text or json",
        )
    structure = _structure(values)
    text = _text(structure, values) if values.format == "text" else _document(structure, values)
    if values.out is None:
        safe = printable_json if values.format == "json" else printable_lines
        print(safe(text.rstrip("\n")))
    else:
        write_text(values.out, text.rstrip("\n") + "\n")
        print(f"written to {values.out}")
    return 0


def _parser() -> Parser:
    parser = Parser("structure", DESCRIPTION)
    parser.add_argument("source", type=Path, metavar="RUN", help=SOURCE)
    flag(parser, "--threshold T", THRESHOLD, between(0, 1))
    flag(parser, "--groups N", GROUPS, at_least(1))
    flag(parser, "--taxonomy CSV", TAXONOMY, Path)
    flag(parser, "--nearest CLASS", "the classes most like this one")
    flag(parser, "--top N", "how many classes --nearest names", at_least(1), 5)
    flag(parser, "--against RUN", AGAINST, Path)
    flag(parser, "--format", FORMAT, ("text", "json", "dot", "mermaid"), "text")
    flag(parser, "--out FILE", "write to a file instead of printing", Path)
    return parser


def _structure(values: argparse.Namespace) -> Structure:
    structure = _load(values.source)
    if values.groups is not None and values.groups > len(structure.classes):
        raise ValueError(
            f"--groups must be at most the number of classes, {len(structure.classes)}, "
            f"got {values.groups}"
        )
    changes: dict[str, Any] = {"threshold": values.threshold, "group_count": values.groups}
    if values.taxonomy is not None:
        changes["taxonomy"] = read_taxonomy(values.taxonomy, structure.classes)
    given = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(structure, **given)


def _load(source: Path) -> Structure:
    """Of a run folder, or of a file that ``--format json`` has written."""
    if not source.exists():
        raise FileNotFoundError(
            f"there is no run folder or structure file {source}; `blockout train` makes a run"
        )
    return open_run(source).require_structure() if source.is_dir() else Structure.load(source)


def _against(structure: Structure, values: argparse.Namespace) -> "Consistency | None":
    return None if values.against is None else structure.compare(_load(values.against))


def _text(structure: Structure, values: argparse.Namespace) -> str:
    parts = []
    if values.nearest is not None:
        rows = structure.nearest(values.nearest, values.top)
        lines = [f"  {row.similarity:6.2f}  {row.name}" for row in rows]
        title = f"nearest to {values.nearest} by memberships, from -1 (opposite) to 1 (the same)"
        parts.append("\n".join([title, *lines]))
    if found := _against(structure, values):
        parts.append(
            f"{values.source} and {values.against} put the same classes together with correlation "
            f"{found.correlation:.2f} (1 the same groups, 0 unrelated), p = {found.p_value:.2g} by "
            "permutation"
        )
    return "\n\n".join(parts) if parts else str(structure)


def _document(structure: Structure, values: argparse.Namespace) -> str:
    if values.format == "dot":
        return structure.to_dot()
    if values.format == "mermaid":
        return structure.to_mermaid()
    document = structure.document()
    if values.nearest is not None:
        near = structure.nearest(values.nearest, values.top)
        document["derived"]["nearest"] = {values.nearest: [row._asdict() for row in near]}
    if found := _against(structure, values):
        document["derived"]["against"] = dataclasses.asdict(found)
    return json.dumps(document, ensure_ascii=False, allow_nan=False)

"""Writes what results/kernels.json measured into docs/library.md and README.md: `make bench`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- from kernels.json -->\n", "<!-- end -->\n"
IN_README = (4096, 6, 0.5), (4096, 1, 0.5), (4096, 6, "settled"), (2048, 6, 0.5)
HEAD = """\
| d | k, p | pairs of nodes that share a cluster | written out in torch | torch alone | compiled |
|---|---|---|---|---|---|
"""
HALF = """
In bfloat16, beside a plain layer in the same precision. On this machine a product in bfloat16
takes {time:.2f} of the time of one in float32.

| precision | d | k, p | written out in torch | torch alone | compiled where it pays |
|---|---|---|---|---|---|
"""
CONVOLUTIONS = """
1×1 convolutions of as many channels as they read, k = 6, beside `nn.Conv2d` with Dropout:

| channels | places | batch | p | layout | written out in torch | here |
|---|---|---|---|---|---|---|
"""
BELOW = """
A training step of the small CIFAR-100 network takes {cifar} times that with Dropout; of a head of
2048 nodes on features {drawn} times with memberships that are drawn, {given} with settled ones; all
steps of its training run {given_run} times if settled memberships are given at 35 % of them,
{guided_run} with the guided default (40 steps: the guide's own work, about a second per training
run of any length, weighs most in a short one). At d = 4096 a step adds {megabytes:.0f} MB to the
memory of a process, {compiled:.2f} times what `nn.Linear` with Dropout adds (torch alone
{torch:.2f}, written out {reference:.2f}).
"""


def table(record: Mapping[str, Any]) -> str:
    """The rows of docs/library.md: batch 128, those that the record begins with."""
    lines = []
    for row in record["layers"][:7]:
        what = f"{row['k']}, {row['p']}".replace("settled", "settled at 1.15 clusters per node")
        lines.append(
            f"| {row['d']} | {what} | {100 * row['share']:.0f} % | {row['reference']:.1f}× | "
            f"{row['torch']:.2f}× ± {row['torch_spread']:.2f} | "
            f"{row['ratio']:.2f}× ± {row['spread']:.2f} |\n"
        )
    return HEAD + "".join(lines)


def below(record: Mapping[str, Any]) -> str:
    """Whole steps and memory."""
    steps = [f"{row['ratio']:.2f} (torch alone {row['torch']:.2f})" for row in record["training"]]
    memory = {row["way"]: row for row in record["memory"]}
    return BELOW.format(
        cifar=steps[0],
        drawn=steps[1],
        given=steps[2],
        given_run=steps[3],
        guided_run=steps[4],
        megabytes=memory["kernels"]["megabytes"],
        compiled=memory["kernels"]["ratio"],
        torch=memory["torch"]["ratio"],
        reference=memory["reference"]["ratio"],
    )


def in_half(record: Mapping[str, Any]) -> str:
    """Layers in bfloat16, batch 128; nothing for records of before they were measured."""
    rows = [row for row in record.get("bfloat16", ()) if row["batch"] == 128]
    if not rows:
        return ""
    lines = [
        f"| {row['precision']} | {row['d']} | {row['k']}, {row['p']} | {row['reference']:.1f}× | "
        f"{row['torch']:.2f}× ± {row['torch_spread']:.2f} | "
        f"{row['ratio']:.2f}× ± {row['spread']:.2f} |\n"
        for row in rows
    ]
    return HALF.format(time=record["rates"]["bfloat16_time"]) + "".join(lines)


def convolutions(record: Mapping[str, Any]) -> str:
    """Those that may be computed as linear layers."""
    lines = [
        f"| {row['channels']} | {row['side']} × {row['side']} | {row['batch']} | {row['p']} | "
        f"{'channels last' if row['channels_last'] else 'contiguous'} | {row['reference']:.2f}× | "
        f"{row['ratio']:.2f}× ± {row['spread']:.2f} |\n"
        for row in record["convolutions"]
        if row["channels"] >= 512
    ]
    return CONVOLUTIONS + "".join(lines)


def in_readme(record: Mapping[str, Any], text: str) -> str:
    """The README with its row about layers."""
    rows = {(row["d"], row["k"], row["p"]): row for row in record["layers"][:7]}
    kinds = ("", "ratio"), ("without a compiler ", "torch"), ("written out ", "reference")
    said = "; ".join(
        title + ", ".join(f"{rows[at][name]:.2f}×" for at in IN_README) for title, name in kinds
    )
    row = re.compile(r"^(\| a Blockout layer beside `nn\.Linear`[^|]*\|)[^|]*(\| `kernels)", re.M)
    text, count = row.subn(lambda found: f"{found[1]} {said} {found[2]}", text)
    assert count == 1, "README.md has no row about a Blockout layer beside nn.Linear"
    return text


def main() -> None:
    record = json.loads((ROOT / "results" / "kernels.json").read_text())
    docs, readme = ROOT / "docs" / "library.md", ROOT / "README.md"
    before, begin, rest = docs.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"docs/library.md has no place for the table, from {BEGIN!r} to {END!r}"
    written = table(record) + below(record) + in_half(record) + convolutions(record)
    docs.write_text(before + BEGIN + written + END + after)
    readme.write_text(in_readme(record, readme.read_text()))


if __name__ == "__main__":
    main()

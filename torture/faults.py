"""Each call that changes a file fails once, or is the last; the same command then ends well."""

import dataclasses
import errno
import re
from pathlib import Path
from typing import Any

from torture.calls import KILL, MISSED, Call, Supervisor
from torture.facts import complaint, difference, essence
from torture.server import command
from torture.workshop import PHOTOGRAPHS, TRAIN, Workshop, done

NO_EVENTS = ("--tensorboard", "false")
"""Those of the first command are enough."""
COMMANDS = {
    "train": TRAIN,
    "streamed": [*TRAIN, "--stream", "--workers", "0", "--skip-corrupt", *NO_EVENTS],
    "photographs": [*TRAIN, *PHOTOGRAPHS, *NO_EVENTS],
    "compact": ["compact", "run"],
    "onnx": ["export", "run", "--format", "onnx"],
    "pt2": ["export", "run", "--format", "pt2"],
    "safetensors": ["export", "run", "--format", "safetensors"],
    "report": ["report", "run"],
    "structure": ["structure", "run", "--format", "json", "--out", "structure.json"],
    "figures": ["figures", "run", "--out", "figures", "--only", "9", "--format", "png"],
}
TRAINS = ("train", "streamed", "photographs")
ANSWERS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "KILL": KILL}
KILLED_AROUND = ("fsync", "fdatasync", "rename", "renameat", "renameat2")
SECONDS = 60.0
TRIED = re.compile(r"writes: (/tmp|/var/tmp|/usr/tmp)/[a-z0-9_]{8}")


def prepare(workshop: Workshop, only: str = "") -> None:
    """Runs every command undisturbed and notes what it writes."""
    with workshop.room() as room:
        done(TRAIN, room)
        (room / "run" / "report.html").unlink()
        workshop.keep(room, "trained")
    for name in (name for name in COMMANDS if only in name):
        with workshop.room(_start(name)) as room:
            supervisor = Supervisor(room, lambda _: None)
            done(COMMANDS[name], room, supervisor=supervisor)
            reference = {"calls": supervisor.calls, "essence": essence(room)}
            workshop.references[f"faults {name}"] = reference


def cases(workshop: Workshop, seed: int, count: int | None) -> list[dict[str, Any]]:
    """Every call with one of the errors in turn, another with the next seed; and a kill before and
    after each fsync and rename.

    With a ``count``, so many of them, spread evenly.
    """
    found = []
    for name in COMMANDS:
        calls = workshop.references.get(f"faults {name}", {"calls": []})["calls"]
        for number, call in enumerate(calls):
            around = calls[max(number - 1, 0) : number + 1]  # itself, and the one before it
            kill = ["KILL"] if any(one.name in KILLED_AROUND for one in around) else []
            error = ("ENOSPC", "EIO")[(number + seed) % 2]
            for answer in (error, *kill):
                found.append(
                    {"part": "faults", "command": name, "call": list(call), "answer": answer}
                )
    if count is None or count >= len(found):
        return found
    return [found[(i * len(found) // count + seed) % len(found)] for i in range(count)]


def run(workshop: Workshop, case: dict[str, Any]) -> str | None:
    """Lets one call fail and repeats the command; returns what is wrong."""
    name, wanted, answer = case["command"], Call(*case["call"]), ANSWERS[case["answer"]]
    with workshop.room(_start(name)) as room:
        supervisor = Supervisor(room, lambda call: answer if call == wanted else None)
        outcome = command(COMMANDS[name], room, supervisor=supervisor, seconds=SECONDS)
        if not supervisor.met:
            return MISSED
        if wanted.file.startswith("tmp/"):  # Python then tries other folders for temporary files
            beyond = tuple(one for one in outcome.breaches if not TRIED.fullmatch(one))
            outcome = dataclasses.replace(outcome, breaches=beyond)
            if wanted.name.startswith("unlink"):  # what it tried the folder with could not go
                for left in (room / "tmp").iterdir():
                    left.unlink()
        if problem := complaint(outcome, (-9,) if supervisor.killed else (0, 1)):
            return problem
        return _repeated(workshop, name, room, "TensorBoard is left out" in outcome.out)


def _repeated(workshop: Workshop, name: str, room: Path, no_events: bool) -> str | None:
    """What is wrong after the command has run again; a logger that was left out, and said so, may
    have written nothing."""
    again = command(COMMANDS[name], room, seconds=SECONDS)
    if problem := complaint(again, (0,)):
        return f"afterwards: {problem}"
    found = essence(room)
    wanted = dict(workshop.references[f"faults {name}"]["essence"])
    for events in [file for file in wanted if no_events and file.endswith("/events")]:
        found.pop(events, None)
        wanted.pop(events)
    return difference(found, wanted)


def _start(name: str) -> str:
    return "" if name in TRAINS else "trained"

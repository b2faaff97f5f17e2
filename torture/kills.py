"""kill -9 at every kind of write and at random times; the same command then ends undisturbed."""

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from torture.calls import KILL, MISSED, Call, Supervisor
from torture.facts import complaint, difference, essence
from torture.server import command
from torture.workshop import EACH_STEP, PHOTOGRAPHS, TRAIN, Workshop, done

MEASURED = ["--affinity", "true"]
"""What the guide sees of classes is a part of every checkpoint."""
CONFIGURATIONS = {
    "default": [],
    "ema": ["--ema", "0.9"],
    "dropconnect": ["--method", "dropconnect"],
    "streamed": ["--stream", "--workers", "1"],
    "soft": ["--soft"],
    "bf16": ["--precision", "bf16-mixed"],
    "photographs": [*PHOTOGRAPHS, "--workers", "1"],
    "ddp": ["--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"],
    "fsdp2": ["--accelerator", "cpu", "--devices", "2", "--strategy", "fsdp2", "--paper"],
}
OF_SEVERAL_PROCESSES = ("ddp", "fsdp2")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
SECONDS = 180.0


def prepare(workshop: Workshop, only: str = "") -> None:
    """Trains every configuration undisturbed and notes what it writes."""
    for name in (name for name in CONFIGURATIONS if only in name):
        with workshop.room() as room:
            supervisor = Supervisor(room, lambda _: None)
            outcome = done(words(name), room, supervisor=supervisor, fresh=_fresh(name))
            workshop.references[name] = {
                "calls": supervisor.calls,
                "seconds": outcome.seconds,
                "essence": essence(room),
            }


def cases(workshop: Workshop, seed: int, count: int) -> list[dict[str, Any]]:
    """One in 25 for each configuration of several processes, the others in turn.

    Kinds of writes are dealt out over the configurations, so that together they meet every kind.
    One in eight comes at a random time instead; as many signals that a run obeys come on top.
    """
    chance = random.Random(seed)
    single = [name for name in workshop.references if name not in OF_SEVERAL_PROCESSES]
    several = [name for name in workshop.references if name in OF_SEVERAL_PROCESSES]
    turns = [name for name in several for _ in range(max(count // 25, 1))]
    others = single or several
    turns += [others[i % len(others)] for i in range(max(count - len(turns), 0))]
    met: Counter[tuple[str, str]] = Counter()
    found = []
    for number, name in enumerate(turns[:count]):
        case = {"part": "kills", "configuration": name}
        share = {"share_of_time": round(chance.random(), 3)}
        if number % 8 == 7:
            found.append(case | share)
            found.append(
                case | share | {"signal": chance.choice(SIGNALS), "fresh": number % 3 == 0}
            )
        else:
            calls = workshop.references[name]["calls"]
            kinds = dict.fromkeys(call[:2] for call in calls)
            kind = min(kinds, key=lambda kind: (met[kind], chance.random()))
            met[kind] += 1
            chosen = chance.choice([call for call in calls if call[:2] == kind])
            found.append(case | {"call": list(chosen)})
    return found


def run(workshop: Workshop, case: dict[str, Any]) -> str | None:
    """Kills one training and repeats its command; returns what is wrong afterwards."""
    name = case["configuration"]
    with workshop.room() as room:
        if problem := _disturbed(workshop, case, room):
            return problem
        again = command(words(name), room, seconds=SECONDS, fresh=_fresh(name))
        if problem := complaint(again, (0,)):
            return f"afterwards: {problem}"
        return difference(essence(room), workshop.references[name]["essence"])


def _disturbed(workshop: Workshop, case: dict[str, Any], room: Path) -> str | None:
    name, number = case["configuration"], signal.Signals[case.get("signal", "SIGKILL")]
    options: dict[str, Any] = {"fresh": case.get("fresh") or _fresh(name)}
    if "call" in case:
        wanted = Call(*case["call"])
        options["supervisor"] = Supervisor(room, lambda call: KILL if call == wanted else None)
    else:
        options["kill_after"] = case["share_of_time"] * workshop.references[name]["seconds"]
        options["kill_with"] = number
    outcome = command(words(name), room, seconds=SECONDS, **options)
    if "call" in case and not options["supervisor"].met:
        return MISSED
    codes = (0, -number) if number != signal.SIGINT else (0,)
    lost = (1,) if "call" in case else ()  # it was one of its processes, and the first says so
    return complaint(outcome, (*codes, *lost, 128 + number))


def words(name: str) -> list[str]:
    return [*TRAIN, *MEASURED, *EACH_STEP, *CONFIGURATIONS[name]]


def _fresh(name: str) -> bool:
    return name in OF_SEVERAL_PROCESSES

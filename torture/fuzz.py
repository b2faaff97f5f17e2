"""Damaged and forged files, configs and flags: every command ends in plain words.

A damaged file is as chance leaves it. A command may end with exit code 0 only with the numbers that
the undamaged file gives. A forged one carries a digest that fits: its numbers may differ, but
nothing may break, reach out or hang.
"""

import hashlib
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torture import drawing
from torture.calls import KILL, Supervisor
from torture.damage import damaged, document_in, make_special
from torture.facts import complaint, difference, essence, held, obeyed, timeless
from torture.server import SECONDS, Outcome, command
from torture.workshop import CLASSES, EACH_STEP, PHOTOGRAPHS, TRAIN, Workshop, done

RESUME = [*TRAIN, *EACH_STEP]
PICTURE = f"data/{CLASSES[0]}/0.png"
FINISHED = {
    "evaluate run --json": 3,
    "evaluate run --weights best --json": 1,
    "evaluate run --weights compact --json": 2,
    "evaluate run --draws 2 --json": 1,
    f"predict run {PICTURE} --json": 3,
    f"predict run {PICTURE}": 1,
    f"predict run --compact {PICTURE} --json": 2,
    "structure run": 2,
    "structure run --format json": 2,
    "structure run --format dot": 1,
    "structure run --nearest ant": 1,
    "report run --out page.html": 2,
    "figures run --out figures --only 9 --format png": 1,
    "compact run --json": 1,
    "export run --format safetensors --out model.safetensors": 1,
    " ".join(RESUME): 2,
    " ".join([*TRAIN, "--run", "other", "--init-from", "run"]): 1,
    "predict run data/warm --csv table.csv": 1,
    "structure run --taxonomy groups.csv": 1,
    "structure twin --against run": 1,
    "report twin run --out page.html": 1,
    "cache": 1,
    "cache --json": 1,
    "cache --clean all": 1,
}
UNFINISHED = {" ".join(RESUME): 3, "report run --out page.html": 1, "structure run": 1}
PHOTOGRAPH = "photos/plum/0.jpg"
PHOTOGRAPHED = {
    "evaluate run --json": 2,
    f"predict run {PHOTOGRAPH} --json": 2,
    f"predict run --compact {PHOTOGRAPH} --json": 1,
    "structure run": 1,
    "report run --out page.html": 1,
    "compact run --json": 1,
}
BEGUN = {" ".join([*RESUME, *PHOTOGRAPHS]): 1}
BASES = {
    "finished": (FINISHED, 0.47),
    "unfinished": (UNFINISHED, 0.15),
    "photographs": (PHOTOGRAPHED, 0.02),
    "begun photographs": (BEGUN, 0.02),
}
"""Folders with a run and a cache: the commands that read them, and their share of all cases."""
EXPORTED = {name: {f"predict {name} {PICTURE} --json": 1} for name in
            ("model.onnx", "model.pt2", "model.safetensors")}  # fmt: skip
CONFIG, GROUPS = "given.json", "groups.csv"
GIVEN = (CONFIG, GROUPS)
"""Files from the user, who may write into them what he likes."""
COMMANDS = (
    "evaluate", "predict", "structure", "report", "figures", "compact", "export", "cache", "train",
)  # fmt: skip
WRITTEN = ("page.html", "figures", "model.safetensors", "table.csv", "other", "run")
"""What commands write, compared where they end well."""
FLAG_VALUES = (
    "", "-1", "0", "1", "2", "0.5", "1e308", "-1e-320", "nan", "inf", "1" + "0" * 400, "true",
    "9999999999999", "null", "[]", "{}", "\x1b[31mred", "x" * 5000, "../x", "/dev/full", "data",
    "run", "é\u202e", "a\nb", "hf://a/b", "final", "json", "/proc/self/mem", "200000", "~root",
)  # fmt: skip
FEW_PROCESSES = ("devices", "num-nodes", "workers")
MEMORY_LIMIT = 2 << 30
BEGINS = 8.0
"""Seconds of computing after which a training run has begun."""


def prepare(workshop: Workshop, only: str = "") -> None:
    """A finished run, an unfinished one, exports; and what each command says of them."""
    if only in "unfinished":
        _begin(workshop, "unfinished", RESUME)
    if only in "begun photographs":
        _begin(workshop, "begun photographs", [*RESUME, *PHOTOGRAPHS])
    if not only:
        _finish(workshop)
    for base, (commands, _) in BASES.items():
        for words in commands if (workshop.home / base).exists() else ():
            _refer(workshop, base, words)
    for commands in () if only else EXPORTED.values():
        for words in commands:
            _refer(workshop, "exported", words)


def _finish(workshop: Workshop) -> None:
    """Finished runs and their exports."""
    with workshop.room() as room:
        done(TRAIN, room)
        done(["compact", "run"], room)
        for form in ("onnx", "pt2", "safetensors"):
            done(["export", "run", "--format", form, "--out", f"model.{form}"], room)
        (room / "run" / "report.html").unlink()
        workshop.keep(room, "exported")
        for name in EXPORTED:
            (room / name).unlink()
        config = json.loads((room / "run" / "config.json").read_text())
        (room / CONFIG).write_text(json.dumps(config | {"epochs": 1, "run": "other"}))
        (room / GROUPS).write_text("".join(f"{Path(c).name},{Path(c).parent}\n" for c in CLASSES))
        shutil.copytree(room / "run", room / "twin")
        workshop.keep(room, "finished")
    with workshop.room() as room:
        done([*TRAIN, *PHOTOGRAPHS], room)
        done(["compact", "run"], room)
        (room / "run" / "report.html").unlink()
        workshop.keep(room, "photographs")


def _begin(workshop: Workshop, name: str, words: list[str]) -> None:
    """Keeps a run that was killed before its second checkpoint appeared."""
    with workshop.room() as room:
        last = ("rename", "run/checkpoint.pt", 2)
        supervisor = Supervisor(room, lambda call: KILL if call == last else None)
        outcome = command(words, room, supervisor=supervisor, seconds=120)
        if not supervisor.killed:
            raise RuntimeError(f"there was nothing to kill: {outcome.err or outcome.out}")
        (room / "run" / "report.html").unlink(missing_ok=True)
        workshop.keep(room, name)


def _refer(workshop: Workshop, base: str, words: str) -> None:
    """Notes what a command says of undamaged files; of a run that has not ended, some refuse."""
    with workshop.room(base) as room:
        refuses = base in ("unfinished", "begun photographs")
        outcome = (command if refuses else done)(words.split(), room, seconds=120)
        workshop.references[f"{base}: {words}"] = _facts(outcome, words, room)


def _facts(outcome: Outcome, words: str, room: Path) -> dict[str, Any]:
    """The numbers that a command prints and writes, without what the clock decides."""
    said = [line for line in outcome.out.splitlines() if not re.match("(note|warning): ", line)]
    if "--json" in words:
        said = [timeless(json.loads(line)) for line in said]
    facts: dict[str, Any] = {"code": outcome.code, "printed": said if "train" not in words else []}
    for name in WRITTEN:
        path = room / name
        if path.is_file():
            facts[name] = held(path, room)
        elif path.is_dir() and (name != "run" or words.startswith("train")):
            facts |= {f"{name}/{k}": v for k, v in essence(path, room).items()}
    return facts


def cases(workshop: Workshop, seed: int, count: int) -> list[dict[str, Any]]:
    """Three quarters of the cases change a file of a run, its cache or an export."""
    found = []
    for place, (strategy, share) in enumerate(_strategies(workshop)):
        found += drawing.drawn(strategy, max(round(share * count), 1), seed + place)
    random.Random(seed).shuffle(found)
    return found


def _strategies(workshop: Workshop) -> list[tuple[st.SearchStrategy[Any], float]]:
    fitting = drawing.documents()
    found = []
    there = {base: BASES[base] for base in BASES if (workshop.home / base).exists()}
    for base, (commands, share) in there.items():
        strategies = [
            _changed(workshop, base, file, commands, fitting.get(Path(file).name))
            for file in _files(workshop.home / base)
        ]
        found.append((st.one_of(strategies), share))
    if not (workshop.home / "exported").exists():
        return [
            (strategy, share / sum(BASES[base][1] for base in there)) for strategy, share in found
        ]
    exported = [_changed(workshop, "exported", file, EXPORTED[file]) for file in EXPORTED]
    found.append((st.one_of(exported), 0.1))
    found.append((_configs(workshop, fitting["config.json"]), 0.08))
    groups = _changed(workshop, "finished", GROUPS, {f"structure run --taxonomy {GROUPS}": 1})
    found.append((groups, 0.01))
    found.append((_flags(workshop), 0.15))
    return found


def _files(base: Path) -> list[str]:
    """What a command may read back: files of the run and of the cache, keys in names as stars."""
    found = [path for name in ("run", "cache") for path in sorted((base / name).rglob("*"))]
    names = [
        re.sub("[0-9a-f]{16,}", "*", str(path.relative_to(base)))
        for path in found
        if path.is_file()
        and "tfevents" not in path.name
        and path.name[0] != "."
        and path.suffix != ".lock"
    ]
    return list(dict.fromkeys(names))


def _found(base: Path, name: str) -> Path:
    return min(base.glob(name))


def _changed(
    workshop: Workshop,
    base: str,
    file: str,
    commands: dict[str, int],
    fitting: st.SearchStrategy[Any] | None = None,
) -> st.SearchStrategy[dict[str, Any]]:
    document = document_in(file, _found(workshop.home / base, file).read_bytes())
    others = st.sampled_from([name for name in _files(workshop.home / base) if name != file])
    swapped = others.map(lambda other: [{"change": "swap", "with": other}])
    weighted = [words for words, weight in commands.items() for _ in range(weight)]
    return st.builds(
        lambda changes, words, forged: {
            "part": "fuzz", "base": base, "file": file, "changes": changes, "command": words,
            "forged": forged and file.startswith("run/"),
        },
        drawing.weighted((drawing.changes(document, fitting), 15), (swapped, 1)),
        st.sampled_from(weighted),
        st.booleans(),
    )  # fmt: skip


def _configs(
    workshop: Workshop, fitting: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Files for ``--config``, from that of a run."""
    known = json.loads((workshop.home / "finished" / CONFIG).read_text())
    return st.builds(
        lambda changes: {
            "part": "fuzz", "base": "finished", "file": CONFIG, "changes": changes,
            "command": f"train --config {CONFIG}",
        },
        drawing.changes(known, fitting),
    )  # fmt: skip


def _flags(workshop: Workshop) -> st.SearchStrategy[dict[str, Any]]:
    """One to three flags of a command with values of all kinds."""
    strategies = []
    for name in COMMANDS:
        with workshop.room() as room:
            text = command([name, "--help"], room).out
        flags = sorted(set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"})
        typed = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
        values = st.sampled_from(FLAG_VALUES) | st.integers().map(str) | typed
        pair = st.tuples(st.sampled_from(flags), values).filter(_is_safe)
        start = {
            "train": [*TRAIN, "--epochs", "1"], "predict": ["predict", "run", PICTURE],
            "export": ["export", "run", "--format", "safetensors"],
            "figures": ["figures", "run", "--only", "9", "--format", "png", "--out", "figures"],
            "cache": ["cache"],
        }.get(name, [name, "run"])  # fmt: skip
        strategies.append(
            st.lists(pair, min_size=1, max_size=3).map(
                lambda pairs, start=start: {
                    "part": "fuzz",
                    "base": "finished",
                    "command": [*start, *sum(pairs, ())],
                }
            )
        )
    return drawing.weighted(*((one, 1) for one in strategies[:-1]), (strategies[-1], 2))


def _is_safe(pair: tuple[str, str]) -> bool:
    """Not more processes than the machine that does this can bear."""
    return pair[0][2:] not in FEW_PROCESSES or pair[1] in ("", "-1", "0", "1", "9999999999999")


def run(workshop: Workshop, case: dict[str, Any]) -> str | None:
    """Changes the file, runs the command; returns what is wrong.

    Training runs that the user asked for are ended soon; what has not begun by then may take as
    long as any command.
    """
    given = "file" not in case or case["file"] in GIVEN
    problem = _tried(workshop, case, given, BEGINS if given else SECONDS)
    if given and problem is not None and problem.startswith("it hangs"):
        problem = _tried(workshop, case, given, SECONDS)
    return problem


def _tried(workshop: Workshop, case: dict[str, Any], given: bool, seconds: float) -> str | None:
    words = case["command"]
    with workshop.room(case["base"]) as room:
        if "file" in case:
            _change(room, case)
        arguments = words.split() if isinstance(words, str) else words
        memory = MEMORY_LIMIT if given else None
        outcome = command(arguments, room, seconds=seconds, memory=memory)
        if given:
            outcome = _without_what_the_user_asks_for(outcome)
        if problem := complaint(outcome) or _obeyed(room):
            return problem
        if outcome.code != 0 or given:
            return None
        return _numbers(workshop, case, outcome, room)


def _without_what_the_user_asks_for(outcome: Outcome) -> Outcome:
    """A user may name a hub, a path or a long training; they were refused or ended here."""
    import dataclasses

    tells = " steps of " in outcome.out or "fine-tuning 1/" in outcome.out
    began = bool(outcome.stopped) and tells
    return dataclasses.replace(
        outcome, breaches=(), stopped="" if began else outcome.stopped,
        code=0 if began else outcome.code,
    )  # fmt: skip


def _obeyed(room: Path) -> str | None:
    pages = [path for path in (room / "page.html", room / "run" / "report.html") if path.is_file()]
    return next(filter(None, map(obeyed, pages)), None)


def _says_what_it_lacks(page: Path, file: str) -> bool:
    """Whether a page is without some pictures, and says that a damaged file is the reason."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return re.search(f"not shown, because[^<]*{re.escape(file)}", text) is not None


def _change(room: Path, case: dict[str, Any]) -> None:
    path = _found(room, case["file"])
    if kind := next((c["kind"] for c in case["changes"] if c["change"] == "special"), None):
        make_special(path, kind)
        return
    other = next((c["with"] for c in case["changes"] if c["change"] == "swap"), None)
    changes = [change for change in case["changes"] if change["change"] != "swap"]
    content = (_found(room, other) if other else path).read_bytes()
    content = damaged(path.name, content, changes)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        if case.get("forged"):
            sign(path, content)


def sign(path: Path, content: bytes) -> None:
    """Adds a digest that fits, as somebody would who gives a forged run to others."""
    with (path.parent / "digests.txt").open("a") as digests:
        digests.write(f"{hashlib.sha256(content).hexdigest()}  {len(content)}  {path.name}\n")


def _numbers(workshop: Workshop, case: dict[str, Any], outcome: Outcome, room: Path) -> str | None:
    """What a command says may differ only where a file was forged, and is JSON in any case."""
    try:
        found = _facts(outcome, case["command"], room)
    except ValueError as error:
        return f"prints no JSON: {error}"
    if re.search(r"\b(nan|inf|infinity)\b", outcome.out, re.IGNORECASE):
        return "prints numbers that are not finite"
    edited = any(change["change"] in ("set", "unset") for change in case["changes"])
    if case.get("forged") or (case["base"] == "exported" and edited):
        return None
    if Path(case["file"]).name == "compaction.json" and "report" in case["command"]:
        return None  # measured anew
    if case["command"].startswith("cache"):
        return None  # says how large files are, and when they were used
    wanted = dict(workshop.references[f"{case['base']}: {case['command']}"])
    if _says_what_it_lacks(room / "page.html", Path(case["file"]).name):
        del found["page.html"], wanted["page.html"]
    if case["base"] == "finished" and case["command"].startswith("train"):
        for facts in (found, wanted):  # nothing is written again, and this file may not be read
            facts.pop(case["file"], None)
            if "report.html could not be drawn" in outcome.out:
                facts.pop("run/report.html", None)
                facts.pop("other/report.html", None)
    return difference(found, wanted)

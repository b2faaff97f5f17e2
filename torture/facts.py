"""What must hold after a command, whatever was done to it."""

import contextlib
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from torture.server import MEMORY, Outcome

EXIT_CODES = (0, 1, 2)
OF_THE_CLOCK = {
    "seconds", "images_per_second", "milliseconds", "times", "notes", "multiply_adds", "bytes",
}  # fmt: skip
"""Keys whose values depend on how fast a machine is; compaction keeps what measures faster."""
MEASURED = ("dense_milliseconds", "compact_milliseconds", "carried_out")
UNCOMPARED = (
    "checkpoint.pt", "report.html", "environment.json", "compact.safetensors", "digests.txt",
)  # fmt: skip
"""Must be there, but hold times, or one line per attempt."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What moves the cursor, changes colours or turns text around in a terminal."""
HUGE = 1 << 28
"""Bytes beyond which no file of these runs goes by itself."""
HARMLESS = re.compile(
    r"(note|warning): |Initializing distributed|distributed_backend|All distributed|-{9}|\s*$"
)


def complaint(done: Outcome, codes: tuple[int, ...] = EXIT_CODES) -> str | None:
    """What is wrong with the way a command ended, or None: it ends by itself, in plain words."""
    if done.stopped:
        return f"it {done.stopped} ({done.seconds:.0f} s, {done.peak >> 20} MB)"
    if done.peak > MEMORY:
        return f"it took {done.peak >> 20} MB"
    if done.breaches:
        return f"it reached out: {'; '.join(done.breaches)}"
    if done.left:
        return f"{len(done.left)} processes were left"
    if "Traceback" in done.out + done.err or "unexpected error" in done.out + done.err:
        return f"a traceback: {done.err.strip().splitlines()[-1:]}"
    if done.code not in codes:
        return f"exit code {done.code}: {done.err[-300:]!r}"
    if found := CONTROL.search(done.out + done.err):
        return f"it prints the control character {found[0]!r}"
    lines = [line for line in done.err.splitlines() if not HARMLESS.match(line)]
    if len(lines) != {0: 0, 1: 1, 2: 2}.get(done.code, len(lines)):
        return f"exit code {done.code} with {len(lines)} lines of error: {done.err[-500:]!r}"
    return None


class Markup(HTMLParser):
    """Finds what a text from a file has become that a browser would obey."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "meta" and (given.get("http-equiv") or "").lower() == "refresh":
            self.found.append("a page that leaves itself")
        if "onerror" in given or "torture" in given:
            self.found.append(f"<{tag}> from a file")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and data.startswith("alert("):
            self.found.append("a script from a file")


def obeyed(page: Path) -> str | None:
    """What a page holds that came from a file and that a browser obeys."""
    parser = Markup()
    parser.feed(page.read_text(encoding="utf-8"))
    return f"{page.name} holds {parser.found[0]}" if parser.found else None


def essence(folder: Path, room: Path | None = None) -> dict[str, Any]:
    """Names of all files below and what they hold, without what the clock decides.

    Two folders with the same essence hold the same run, and no litter. Where files name the room
    that they are in, they may differ.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        name = re.sub(r"[0-9a-f]{16,}", "#", str(path.relative_to(folder)))
        if "tfevents" in name:
            found[str(Path(name).parent / "events")] = None
        elif path.name in UNCOMPARED or path.suffix in (".pt2", ".onnx", ".lock"):
            found[name] = None
        else:
            found[name] = held(path, room or folder)
    return found


def held(path: Path, room: Path) -> Any:
    """What a file holds, without what the clock decides; of one that is damaged, its digest, and
    of one that was made huge, its size."""
    if (size := path.stat().st_size) > HUGE:
        return size
    content = path.read_bytes().replace(bytes(room), b"room")
    content = re.sub(rb"\d{4}-\d\d-\d\d, \d\d:\d\d", b"now", content)
    with contextlib.suppress(ValueError, RecursionError):
        if path.suffix == ".jsonl":
            return [timeless(json.loads(line)) for line in content.splitlines()]
        if path.suffix == ".json":
            return timeless(_any_layout(path.name, json.loads(content)))
    return hashlib.sha256(content).hexdigest()


def _any_layout(name: str, value: Any) -> Any:
    """A compact network without its layers: it keeps dense blocks where these measure faster."""
    with contextlib.suppress(KeyError, TypeError):
        if name == "compact.json":
            del value["model"]["head"]["layers"]
    return value


def timeless(value: Any) -> Any:
    """JSON without what the clock decides."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in OF_THE_CLOCK and k not in MEASURED}
        return {k: timeless(v) for k, v in kept.items()}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def difference(got: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first thing in which two essences differ."""
    if surplus := sorted(got.keys() - wanted.keys()):
        return f"litter: {', '.join(surplus[:4])}"
    if missing := sorted(wanted.keys() - got.keys()):
        return f"missing: {', '.join(missing[:4])}"
    for name, value in wanted.items():
        if got[name] != value:
            return f"{name} differs: {_first_difference(got[name], value)}"
    return None


def _first_difference(got: Any, wanted: Any) -> str:
    if isinstance(got, list) and isinstance(wanted, list):
        if len(got) != len(wanted):
            return f"{len(got)} entries in place of {len(wanted)}"
        return next(_first_difference(a, b) for a, b in zip(got, wanted, strict=True) if a != b)
    if isinstance(got, dict) and isinstance(wanted, dict):
        key = next(k for k in got | wanted if got.get(k) != wanted.get(k))
        return f"{key}: {_first_difference(got.get(key), wanted.get(key))}"
    return f"{str(got)[:80]} in place of {str(wanted)[:80]}"

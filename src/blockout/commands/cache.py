"""``blockout cache``: what is kept of data sets for a faster start, and how to be rid of it."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import require_training

if TYPE_CHECKING:
    from blockout.data.entries import Entry

DAY = 86400


def run(arguments: list[str]) -> int:
    parser = Parser("cache", "Decoded images and features of trunks: lists them, or deletes some.")
    flag(parser, "--cache DIR", "the folder, instead of the one that training uses", Path)
    which = parser.add_mutually_exclusive_group()
    about = "delete these entries, by name as listed, a kind such as features, or all of them: all"
    which.add_argument("--clean", nargs="+", metavar="NAME", help=about)
    flag(which, "--older-than DAYS", "delete what was not used for so many days", at_least(0))
    flag(parser, "--json", "print a JSON object for each entry")
    values = parser.parse_args(arguments)
    require_training()
    from blockout.data import DataConfig
    from blockout.data.entries import entries, remove

    folder = DataConfig(cache=values.cache).cache_folder
    found = entries(folder)
    chosen = _chosen(found, values.clean, values.older_than)
    for entry in chosen or ():
        remove(folder, entry)
    listed, deleted = found if chosen is None else chosen, chosen is not None
    if values.json:
        for entry in listed:
            print(json.dumps({**entry._asdict(), "deleted": deleted}))
    else:
        print("\n".join(in_words(listed, folder, deleted=deleted)))
    return 0


def in_words(found: "list[Entry]", folder: Path, *, deleted: bool) -> list[str]:
    """Two lines per entry: what it is, and its name. Small results stand together."""
    small = [entry for entry in found if entry.name.startswith("results/")]
    rows = [entry for entry in found if entry not in small]
    if small:
        size, used = sum(entry.bytes for entry in small), max(entry.used for entry in small)
        kinds = f"{len(small)} small results: {', '.join(sorted({e.about for e in small}))}"
        rows.append(small[0]._replace(name="results", bytes=size, used=used, about=kinds))
    lines = []
    for entry in sorted(rows, key=lambda entry: (-entry.bytes, entry.name)):
        lines.append(f"{entry.bytes / 1e6:10.1f} MB  {_age(entry.used):>12}  {entry.about}")
        lines.append(f"{'':27}{'deleted ' if deleted else ''}{entry.name}")
    total = sum(entry.bytes for entry in found) / 1e6
    return [*lines, f"{total:10.1f} MB {'deleted from' if deleted else 'in'} {folder}"]


def _age(used: float) -> str:
    days = int((time.time() - used) // DAY)
    return "today" if days < 1 else f"{days} day{'s' if days > 1 else ''} ago"


def _chosen(
    found: "list[Entry]", names: list[str] | None, days: int | None
) -> "list[Entry] | None":
    """Which entries to delete; None if only a list is wanted."""
    from blockout.data import DataError

    if days is not None:
        return [entry for entry in found if entry.used < time.time() - DAY * days]
    if names is None or names == ["all"]:
        return None if names is None else found
    chosen = []
    for name in names:
        meant = [e for e in found if name in (e.name, e.name.partition("/")[0])]
        if not meant:
            raise DataError(f"there is no {name!r} in the cache; `blockout cache` lists what is")
        chosen += [entry for entry in meant if entry not in chosen]
    return chosen

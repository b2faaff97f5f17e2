"""``blockout cache``: what is kept of data sets for a faster start, and how to be rid of it."""

import json
import time
from pathlib import Path

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import require_training


def run(arguments: list[str]) -> int:
    parser = Parser("cache", "Decoded images and features of trunks: lists them, or deletes some.")
    flag(parser, "--cache DIR", "the folder, instead of the one that training uses", Path)
    which = parser.add_mutually_exclusive_group()
    about = "delete these entries, by name as listed, or all of them: --clean all"
    which.add_argument("--clean", nargs="+", metavar="NAME", help=about)
    flag(which, "--older-than DAYS", "delete what was not used for so many days", at_least(0))
    flag(parser, "--json", "print a JSON object for each entry")
    values = parser.parse_args(arguments)
    require_training()
    from blockout.data import DataConfig
    from blockout.data.cache import entries, remove

    folder = DataConfig(cache=values.cache).cache_folder
    found = entries(folder)
    chosen = _chosen(found, values.clean, values.older_than)
    for entry in found if chosen is None else chosen:
        if chosen is not None:
            remove(folder, entry)
        age = (time.time() - entry.used) / 86400
        if values.json:
            print(json.dumps({**entry._asdict(), "deleted": chosen is not None}))
        else:
            said = "deleted " if chosen is not None else ""
            print(f"{said}{entry.bytes / 1e6:10.1f} MB  {age:5.0f} days ago  {entry.name}")
    if not values.json:
        total = sum(entry.bytes for entry in (found if chosen is None else chosen)) / 1e6
        what = "in" if chosen is None else "deleted from"
        print(f"{total:10.1f} MB {what} {folder}")
    return 0


def _chosen(found: list, names: list[str] | None, days: int | None) -> list | None:
    """Which entries to delete; None if only a list is wanted."""
    from blockout.data import DataError

    if days is not None:
        return [entry for entry in found if entry.used < time.time() - 86400 * days]
    if names is None or names == ["all"]:
        return None if names is None else found
    known = {entry.name: entry for entry in found}
    if unknown := [name for name in names if name not in known]:
        raise DataError(f"there is no {unknown[0]!r} in the cache; `blockout cache` lists what is")
    return [known[name] for name in names]

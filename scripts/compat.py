"""Runs the core's tests on the oldest, the pinned and the newest torch we claim: `make compat`.

Says first what it will download (`--list` says only that). Then, for every Python among the
classifiers of pyproject.toml that this machine has, it builds three throw-away environments:

  minimum   the lower bounds of pyproject.toml
  pinned    the versions of requirements.lock
  newest    whatever the package index holds

Each holds the wheel of this checkout, what it needs to be imported, and what runs tests. The tests
of the core run there against the installed wheel; warnings of other versions are counted, not
raised. A fourth environment, `extras`, on the oldest Python and the pinned torch, holds the lower
bounds of [train,pretrained,export] and runs the other tests. Ends in a table and in
results/compat.json; exit code 1 if a test failed.

pip's own settings apply, so an index with CPU builds of torch saves gigabytes.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json

ROOT = Path(__file__).resolve().parent.parent
WHICH = ("minimum", "pinned", "newest", "extras")
TOOLS = ("pytest", "hypothesis", "setuptools")  # the last for the compiler of old versions of torch
PIP = "pip==26.3"  # earlier ones download whole wheels to learn what these need
CORE_TOO = ("estimators", "family", "seam", "processes")
"""Tests of the core that are not named after one of its modules."""
ABOVE = (
    "commands",
    "data",
    "estimator",
    "export",
    "models",
    "runs",
    "show",
    "structure",
    "training",
)
NEEDS_DEV = ("tests/models/test_efficientnet.py", "tests/show/page/test_page.py")


@dataclass(frozen=True)
class Claims:
    """What pyproject.toml and the lock file say we support."""

    pythons: tuple[str, ...]
    """Of the classifiers, as 3.11."""
    minimum: dict[str, str]
    """Lower bound per package that the core needs."""
    extras: tuple[str, ...]
    """Of [train,pretrained,export], each at its lower bound."""
    pinned: dict[str, str]
    core: tuple[str, ...]
    """Modules of the library that need no more than the packages of ``minimum``."""

    @classmethod
    def read(cls) -> "Claims":
        about = tomllib.loads((ROOT / "pyproject.toml").read_text())
        project, contracts = about["project"], about["tool"]["importlinter"]["contracts"]
        python = re.compile(r".* :: Python :: (3\.\d+)")
        optional = [project["optional-dependencies"][e] for e in ("train", "pretrained", "export")]
        lock = (ROOT / "requirements.lock").read_text().split()
        core = next(c["source_modules"] for c in contracts if c["type"] == "forbidden")
        return cls(
            pythons=tuple(m[1] for m in map(python.fullmatch, project["classifiers"]) if m),
            minimum=dict(line.split(">=") for line in project["dependencies"]),
            extras=tuple(line.replace(">=", "==") for extra in optional for line in extra),
            pinned=dict(line.split("==") for line in lock),
            core=tuple(name.removeprefix("blockout.") for name in core),
        )

    def requirements(self, which: str) -> list[str]:
        """What pip is asked for; ``which`` is one of ``WHICH`` or a version of torch."""
        minimum = [f"{name}=={version}" for name, version in self.minimum.items()]
        pinned = [f"{name}=={self.pinned[name]}" for name in self.minimum]
        others = [name for name in self.minimum if name != "torch"]
        known = {
            "minimum": minimum,
            "pinned": pinned,
            "newest": list(self.minimum),
            "extras": [f"torch=={self.pinned['torch']}", *minimum[1:], *self.extras],
        }
        return known.get(which, [f"torch=={which}", *others])

    def tools(self) -> list[str]:
        return [f"{name}=={self.pinned[name]}" if name in self.pinned else name for name in TOOLS]

    def tests(self, which: str) -> list[str]:
        """Files and folders of the suite, and what to leave out of them."""
        names = ABOVE if which == "extras" else (*self.core, *CORE_TOO)
        places = (path for name in names for path in (f"tests/{name}", f"tests/test_{name}.py"))
        found = [place for place in places if (ROOT / place).exists()]
        return [*found, *(f"--ignore={file}" for file in NEEDS_DEV)]


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    url: str
    size: int | None = None
    """Bytes to download: 0 if the file lies on this disk, None if nobody says."""


@dataclass(frozen=True)
class Case:
    """One environment: a Python and a set of versions."""

    python: str
    which: str
    interpreter: Path | None
    packages: tuple[Package, ...] = ()
    not_run: str = ""
    """Why it cannot be run here."""

    def version(self, name: str) -> str:
        return next((p.version for p in self.packages if plain(p.name) == plain(name)), "")


def plain(name: str) -> str:
    """The name of a package without spelling or extras.

    >>> plain("Jinja_2[i18n]==3.1")
    'jinja-2'
    """
    return re.split(r"[\[=]", name)[0].lower().replace("_", "-")


def find_python(version: str) -> Path | None:
    """An interpreter of this version: on the PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [sys.executable, on_path, *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        run = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if run.returncode == 0 and run.stdout.strip() == version:
            return Path(candidate)
    return None


class Workshop:
    """A folder with a recent pip, the downloaded wheels and one environment at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir(parents=True, exist_ok=True)
        self.pip = folder / "pip"
        if not self.pip.exists():
            call(sys.executable, "-m", "pip", "install", "--quiet", "--target", self.pip, PIP)

    def resolve(self, case: Case, requirements: list[str]) -> Case:
        """Finds the packages that pip would install, without downloading them."""
        if case.interpreter is None:
            return replace(case, not_run=f"no Python {case.python} on this machine")
        report = self.folder / "report.json"
        python = self._new_environment(case)
        asked = ("install", "--dry-run", "--use-feature=fast-deps", "--report", report)
        run = self._pip(python, *asked, *requirements)
        if run.returncode:
            return replace(case, not_run=last_error(run.stderr))
        return replace(case, packages=tuple(read_report(json.loads(report.read_text()))))

    def run(self, case: Case, wheel: Path, tests: list[str]) -> dict[str, Any]:
        """Installs exactly what was announced, tests it, and removes it again."""
        python = self._new_environment(case)
        exactly = [f"{package.name}=={package.version}" for package in case.packages]
        found = ("--no-deps", "--only-binary", ":all:")
        self._must(python, "download", *found, "--dest", self.wheels, *exactly)
        offline = ("--no-index", "--find-links", self.wheels)
        self._must(python, "install", *found, *offline, *exactly, wheel)
        self._must(python, "check")
        started = starts(python)
        result = self._tested(python, tests)
        return {"starts": started, **result}

    def _new_environment(self, case: Case) -> Path:
        place = self.folder / "environment"
        call(case.interpreter, "-m", "venv", "--clear", "--without-pip", place)
        return place / "bin" / "python"

    def _pip(self, python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(python), str(self.pip / "pip"), *map(str, arguments), "--quiet"]
        where = {"TMPDIR": str(self.folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.run(
            words, env=clean_environment() | where, capture_output=True, text=True
        )

    def _must(self, python: Path, *arguments: object) -> None:
        run = self._pip(python, *arguments)
        if run.returncode:
            raise SystemExit(f"pip {arguments[0]} failed: {last_error(run.stderr + run.stdout)}")

    def _tested(self, python: Path, tests: list[str]) -> dict[str, Any]:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = ("-W", "default", "-p", "no:cacheprovider", "--tb=short", "-rfE")
        run = subprocess.run(
            [str(python), "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=clean_environment() | caches,
            capture_output=True,
            text=True,
        )
        print(run.stdout.rpartition("short test summary info")[2].strip(" =\n"), flush=True)
        shutil.rmtree(self.folder / "inductor", ignore_errors=True)
        return read_summary(run.stdout)


def clean_environment() -> dict[str, str]:
    """Ours, without what would put this checkout beside the installed wheel."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def starts(python: Path) -> bool:
    """Whether the library imports and the command answers, with the core's packages alone."""
    here = "import blockout, sys; sys.exit(not blockout.__file__.startswith(sys.prefix))"
    tried = (
        [python, "-P", "-c", here],
        [python.with_name("blockout"), "--help"],
        [python, "-P", "-m", "blockout", "--version"],
    )
    runs = [subprocess.run(words, env=clean_environment(), capture_output=True) for words in tried]
    return all(run.returncode == 0 for run in runs)


def read_report(report: dict[str, Any]) -> list[Package]:
    """The packages of ``pip install --report``, with the size of their files."""
    found = []
    for entry in report["install"]:
        url, about = entry["download_info"]["url"], entry["metadata"]
        found.append(Package(about["name"], about["version"], url, size_of(url)))
    return found


def size_of(url: str) -> int | None:
    if url.startswith("file:"):
        return 0
    try:
        question = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(question, timeout=60) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def read_summary(output: str) -> dict[str, Any]:
    """Counts and names of failed tests, from what pytest prints last.

    >>> read_summary("FAILED tests/test_a.py::test_b - Oops\\n1 failed, 2 passed in 3.21s")
    {'passed': 2, 'failed': 1, 'skipped': 0, 'warnings': 0, 'failures': ['tests/test_a.py::test_b']}
    """
    last = output.strip().rpartition("\n")[2]
    counts: dict[str, int] = dict.fromkeys(("passed", "failed", "skipped", "warnings"), 0)
    for count, what in re.findall(r"(\d+) (passed|failed|error|skipped|warning)", last):
        name = {"error": "failed", "warning": "warnings"}.get(what, what)
        counts[str(name)] += int(count)
    if not counts["passed"] and not counts["failed"]:
        raise SystemExit(f"pytest ran no test: {last or 'it said nothing'}")
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return {**counts, "failures": failures}


def last_error(text: str) -> str:
    """The last line that says ERROR, without addresses."""
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or [text.strip()]
    return re.sub(r"\S+://\S+", "(an address)", lines[-1].removeprefix("ERROR: "))


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, env=clean_environment())


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def print_plan(cases: Iterable[Case]) -> None:
    """Every environment with its downloads; a file that several need is downloaded once."""
    known: dict[str, int | None] = {}
    for case in cases:
        print(f"Python {case.python}, {case.which}: ", end="")
        if case.not_run:
            print(f"not run, {case.not_run}")
            continue
        new = [p for p in case.packages if p.url not in known and p.size != 0]
        known.update({p.url: p.size for p in new})
        print(
            f"torch {case.version('torch')}, {megabytes(sum(p.size or 0 for p in new))} to download"
        )
        large = [p for p in new if p.size is None or p.size > 5e6]
        for package in sorted(large, key=lambda p: -(p.size or 0)):
            size = "size unknown" if package.size is None else megabytes(package.size)
            print(f"    {package.name} {package.version}: {size}")
        if rest := [p.size or 0 for p in new if p not in large]:
            print(f"    {len(rest)} small ones: {megabytes(sum(rest))}")
    print(f"in all {megabytes(sum(size or 0 for size in known.values()))}", flush=True)


def row_of(case: Case, asked: list[str], result: dict[str, Any]) -> dict[str, Any]:
    """One line of the record."""
    about = {"python": case.python, "which": case.which}
    if case.not_run:
        return {**about, "not_run": case.not_run}
    return {**about, "packages": {plain(name): case.version(name) for name in asked}, **result}


def print_table(rows: Iterable[dict[str, Any]]) -> None:
    print("\nPython  versions  torch        passed  failed  skipped  warnings  imports and starts")
    for row in rows:
        print(f"{row['python']:<6}  {row['which']:<8}  ", end="")
        if "not_run" in row:
            print(f"not run: {row['not_run']}")
            continue
        counts = (
            f"{row['passed']:>6}  {row['failed']:>6}  {row['skipped']:>7}  {row['warnings']:>8}"
        )
        print(f"{row['packages']['torch']:<11}  {counts}  {'yes' if row['starts'] else 'NO'}")


def kept_rows(record: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an earlier record, of environments that these rows do not repeat."""
    if not record.exists():
        return []
    before, repeated = json.loads(record.read_text()), {(r["python"], r["which"]) for r in rows}
    kept = [row for row in before["rows"] if (row["python"], row["which"]) not in repeated]
    return [{"commit": before["commit"], **row} for row in kept]


def built_wheel(folder: Path) -> Path:
    """Of this checkout."""
    shutil.rmtree(folder / "dist", ignore_errors=True)
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist")
    return next((folder / "dist").glob("*.whl"))


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # tests of Ctrl-C inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    claims = Claims.read()
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--list", action="store_true", help="only say what would be downloaded")
    options.add_argument("--python", nargs="+", default=claims.pythons, metavar="3.X")
    options.add_argument("--torch", nargs="+", default=WHICH, help="some of these, or a version")
    options.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "compat", help="for downloads"
    )
    options.add_argument("--keep", action="store_true", help="keep the downloads for another time")
    options.add_argument(
        "--add", action="store_true", help="keep the rows of the record that are not run now"
    )
    options.add_argument("--out", type=Path, default=ROOT / "results" / "compat.json")
    chosen = options.parse_args()
    print(f"finding out what is to be downloaded (for this, {PIP} itself: 2 MB)", flush=True)
    folder = chosen.folder.resolve() / "blockout-compat"  # ours, so that it may be deleted
    try:
        return compare(claims, chosen, Workshop(folder))
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)


def compare(claims: Claims, chosen: argparse.Namespace, workshop: Workshop) -> int:
    """Plans, runs, records; returns the exit code."""
    tools = claims.tools()
    cases = [
        workshop.resolve(
            Case(python, which, find_python(python)), claims.requirements(which) + tools
        )
        for python in chosen.python
        for which in chosen.torch
        if which != "extras" or python == claims.pythons[0]
    ]
    print_plan(cases)
    if chosen.list:
        return 0
    wheel, rows = built_wheel(workshop.folder), []
    for case in cases:
        result = {} if case.not_run else workshop.run(case, wheel, claims.tests(case.which))
        made_with = as_json(environment())["commit"]
        rows.append(row_of(case, claims.requirements(case.which), result) | {"commit": made_with})
        print_table(rows[-1:])
    rows = [*(kept_rows(chosen.out, rows) if chosen.add else ()), *rows]
    print_table(rows)
    write_json(chosen.out, {"rows": rows, **as_json(environment())})
    return int(any(row.get("failed") or not row.get("starts", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())

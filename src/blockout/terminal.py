"""Text that a terminal shows and does not obey."""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Control characters, line breaks, marks that turn the direction of writing, lone surrogates."""


def printable(text: str) -> str:
    """Escapes what would move the cursor, colour, clear, or turn the text around.

    Names of classes, files and runs may come from anybody.

    >>> print(printable("cat\\x1b[2J"), printable("two\\nlines"), printable("Zürich 猫"))
    cat\\x1b[2J two\\nlines Zürich 猫
    """
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable_lines(text: str) -> str:
    """The same, with line breaks as they are."""
    return "\n".join(printable(line) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """JSON of the same meaning without such characters.

    >>> import json
    >>> print(printable_json(json.dumps("\\u202etac", ensure_ascii=False)))
    "\\u202etac"
    """
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def tell(text: str) -> None:
    """Says a line on standard error."""
    print(printable_lines(text), file=sys.stderr, flush=True)


class Shown:
    """A stream whose text is shown and not obeyed, whatever names are in it.

    Progress bars, which move the cursor, write to its ``raw`` stream.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        return self.raw.write(printable_lines(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """Inside, nothing that is printed moves the cursor, colours or clears."""
    before = sys.stdout
    sys.stdout = Shown(before)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout = before


def raw_output() -> TextIO:
    """Standard output for what draws: it obeys."""
    return sys.stdout.raw if isinstance(sys.stdout, Shown) else sys.stdout

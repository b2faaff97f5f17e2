"""``blockout doctor``."""

from blockout.flags import Parser


def run(arguments: list[str]) -> int:
    description = "What this machine has, and what is in the way: exit code 1 where something is."
    Parser("doctor", description).parse_args(arguments)
    from blockout.doctor import diagnose

    marks = {"ok": "  ok     ", "note": "  note   ", "problem": "  PROBLEM"}
    states = set()
    for finding in diagnose():
        states.add(finding.state)
        print(marks[finding.state], finding.text)
    return int("problem" in states)

"""Copies what finished runs say of themselves into one record, and what Blockout runs say together:
config, environment, result; which outcome each P had, how many connections are left, whether harder
classes have more clusters, and how far each two runs agree on that and on who shares clusters.

python scripts/record_run.py results/mine.json runs/mine-0 runs/mine-1 runs/mine-2
"""

import argparse
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from blockout.runs import Run
from blockout.runs import folder as files
from blockout.runs.documents import as_json
from blockout.show.classes import correlation, expected_clusters, quartiles
from blockout.show.distributions import outcomes
from blockout.show.selection import with_branches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, help="JSON file to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--note", default="", help="what a reader of the figures must know")
    arguments = parser.parse_args()
    views = [Run.open(run) for run in arguments.runs]
    if unfinished := [view.name for view in views if not view.finished]:
        raise SystemExit(f"not finished yet: {', '.join(unfinished)}")
    record = {
        "note": arguments.note,
        "runs": [_said_by(view) for view in views],
        "pairs": [_agreement(a, b) for a, b in combinations(with_branches(views), 2)],
    }
    arguments.record.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(arguments.record, record)


def _said_by(view: Run) -> dict[str, Any]:
    return {
        "run": view.name,
        "config": view.config.flat(),
        "result": as_json(view.result),
        "learned": _learned(view),
        "epochs": as_json(view.epochs),
        **as_json(view.environment),
    }


def _learned(view: Run) -> dict[str, Any] | None:
    p, accuracy = view.class_memberships, view.class_accuracy
    if view.structure is None or p is None or accuracy is None:
        return None
    found = correlation(expected_clusters(p), accuracy)
    return {
        "outcomes": {name: what.value for name, what in outcomes(view).items()},
        "quartiles": {name: quartiles(p) for name, p in view.memberships.items()},
        "largest_difference_between_clusters_of_a_node": {
            name: float(np.ptp(p, axis=1).max()) for name, p in view.memberships.items()
        },
        "connections_left": {cost.layer.name: cost.left for cost in view.structure.costs},
        "clusters_and_accuracy_of_classes": found and asdict(found),
    }


def _agreement(one: Run, two: Run) -> dict[str, Any]:
    assert one.structure is not None and two.structure is not None
    assert one.class_memberships is not None and two.class_memberships is not None
    sharing = one.structure.compare(two.structure)
    clusters = correlation(
        expected_clusters(one.class_memberships), expected_clusters(two.class_memberships)
    )
    return {
        "runs": [one.name, two.name],
        "who_shares": {"correlation": sharing.correlation, "p_value": sharing.p_value},
        "clusters_of_classes": clusters and asdict(clusters),
    }


if __name__ == "__main__":
    main()

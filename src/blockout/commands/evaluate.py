"""``blockout evaluate``."""

import json
from pathlib import Path

import torch

from blockout.commands.flags import Parser, at_least, flag
from blockout.commands.runs import images_of, open_run

WEIGHTS = "the last, the best on the hold-out, or the network that `blockout compact` made"
DRAWS = "average over N sampled architectures instead of using the expected weights"


def run(arguments: list[str]) -> int:
    parser = Parser("evaluate", "Accuracy of a finished run on the images it was made with.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    flag(parser, "--split", "which images", ("test", "holdout", "train"), "test")
    flag(parser, "--weights", WEIGHTS, ("final", "best", "compact"), "final")
    flag(parser, "--draws N", DRAWS, at_least(2))
    flag(parser, "--json", "print one JSON object")
    values = parser.parse_args(arguments)
    opened = open_run(values.folder)
    trained = opened.network(values.weights)
    from blockout.runs import RunError
    from blockout.sampling import SampledModel
    from blockout.training import evaluate

    split = getattr(images_of(opened, quiet=values.json), values.split)
    if not len(split):
        raise RunError(
            f"the run in {values.folder} has no images in its {values.split} split "
            f"(--holdout {opened.config.data.holdout:g}); choose another with --split"
        )
    model = SampledModel(trained.model, values.draws) if values.draws else trained.model
    torch.manual_seed(opened.seed)  # the same draws each time
    result = evaluate(model, split)
    if values.json:
        print(json.dumps({"split": values.split, "images": len(split), **result.numbers()}))
    else:
        print(
            f"{values.split}: {result.accuracy:.2f} % of {len(split)} images right, "
            f"{result.top5:.2f} % among the first five, loss {result.loss:.4f}"
        )
    return 0

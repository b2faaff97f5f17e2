"""``blockout evaluate``."""

import json
from pathlib import Path

import torch

from blockout.commands.runs import load_run
from blockout.flags import Parser, at_least


def run(arguments: list[str]) -> int:
    parser = Parser("evaluate", "Accuracy of a finished run on the images it was made with.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--split", default="test", choices=["test", "holdout", "train"],
                        help="which images (default: test)")  # fmt: skip
    parser.add_argument("--weights", default="final", choices=["final", "best", "compact"],
                        help="the last, the best on the hold-out, or the network that `blockout "
                        "compact` made (default: final)")  # fmt: skip
    parser.add_argument("--draws", type=at_least(2), metavar="N",
                        help="average over N sampled architectures instead of using the expected "
                        "weights")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    values = parser.parse_args(arguments)
    trained, config = load_run(values.folder, values.weights)
    from blockout.sampling import SampledModel
    from blockout.training import RunError, evaluate, load_images

    data = load_images(config)
    if data.classes != trained.classes:
        raise RunError(
            f"the images of {config.data.data} are not those of the run in {values.folder}: it "
            f"has {len(trained.classes)} classes, they have {len(data.classes)}, or other names"
        )
    if trained.images is not None and data.fingerprint() != trained.images and not values.json:
        print("note: the images have changed since this run; its splits are no longer the same")
    split = getattr(data.normalised_by(trained.mean, trained.std), values.split)
    if not len(split):
        raise RunError(
            f"the run in {values.folder} has no images in its {values.split} split "
            f"(--holdout {config.data.holdout:g}); choose another with --split"
        )
    model = SampledModel(trained.model, values.draws) if values.draws else trained.model
    torch.manual_seed(config.optimisation.seed)  # the same draws each time
    result = evaluate(model, split)
    if values.json:
        print(json.dumps({"split": values.split, "images": len(split), **result.numbers()}))
    else:
        print(f"{values.split}: {result.accuracy:.2f} % of {len(split)} images right, "
              f"{result.top5:.2f} % among the first five, loss {result.loss:.4f}")  # fmt: skip
    return 0

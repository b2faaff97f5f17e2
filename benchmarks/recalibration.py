"""Does it matter under which weights batch normalisation's statistics were measured?

    python benchmarks/recalibration.py runs/cifar100-blockout

Takes the final weights of a run and evaluates them with statistics measured (a) under drawn
weights, as running averages in training are, and (b) anew under the expected weights that inference
uses. Writes a record.
"""

import argparse
from pathlib import Path

import torch

from blockout.runs import Run
from blockout.runs.documents import as_json
from blockout.runs.environment import environment
from blockout.runs.folder import write_json
from blockout.training import evaluate, recalibrate

BATCHES = 100


def main() -> None:
    text = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--out", type=Path, default=Path("results/recalibration.json"))
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    data, model = run.images(), run.network().model
    rows = []
    for seed in range(3):
        torch.manual_seed(seed)
        model.train()
        with torch.no_grad():
            batches = data.train.batches(256, train=True, seed=seed)
            for (x, _), _ in zip(batches, range(BATCHES), strict=False):
                model(x)
        drawn = evaluate(model, data.test).accuracy
        recalibrate(model, data.train, batch_size=256, seed=seed)
        expected = evaluate(model, data.test).accuracy
        rows.append({"seed": seed, "drawn": drawn, "expected": expected})
        print(
            f"statistics under drawn weights {drawn:.2f} %, under expected weights {expected:.2f} %"
        )
    write_json(arguments.out, {"config": run.config.flat(), "rows": rows, **as_json(environment())})


if __name__ == "__main__":
    main()

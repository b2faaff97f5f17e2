"""How long `import blockout` takes on top of `import torch`: python benchmarks/import_time.py

Fresh processes, alternating, so that both see the same machine; prints the medians.
"""

import statistics
import subprocess
import sys

REPEATS = 7


def seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    pairs = [(seconds("import torch"), seconds("import torch, blockout")) for _ in range(REPEATS)]
    torch_alone, both = (statistics.median(column) for column in zip(*pairs, strict=True))
    extra = both - torch_alone
    print(
        f"import torch {torch_alone:.2f} s, import torch, blockout {both:.2f} s: {extra:.2f} s more"
    )


if __name__ == "__main__":
    main()

"""Seeds one-line faults into the core and checks that the suite catches every one: `make faults`.

Each fault is applied to a copy of the sources in a temporary folder; the tests of the core run
against the copy and must fail. Exit code 1 names the faults that went unnoticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "masking",
        "scale",
        "memberships",
        "layers",
        "family",
        "sampling",
        "optimisation",
        "convert",
    )
]


class Fault(NamedTuple):
    what: str
    file: str
    right: str
    wrong: str


FAULTS = [
    Fault("1/k forgotten in the mask", "masking", "c_in.to(dtype).T / c_out.shape[1]", "c_in.to(dtype).T"),
    Fault("divided by nodes, not clusters", "masking", "/ c_out.shape[1]", "/ c_out.shape[0]"),
    Fault("clusters in another order", "masking", "c_in.to(dtype).T", "c_in.to(dtype).flip(1).T"),
    Fault("1/k forgotten in Eq. 8", "masking", "(weight * g) @ c_other / c_other.shape[1]", "(weight * g) @ c_other"),
    Fault("straight-through instead of Eq. 9", "masking", "c + (p - p.detach()) * c", "c + (p - p.detach())"),
    Fault("Eq. 9 weighs by P, not C", "masking", "c + (p - p.detach()) * c", "c + (p - p.detach()) * p.detach()"),
    Fault("no gradient to P at all", "masking", "c + (p - p.detach()) * c", "c"),
    Fault("generator ignored", "masking", "torch.bernoulli(p.to(generator.device), generator=generator)", "torch.bernoulli(p)"),
    Fault("draws at one half whatever P", "masking", "        return torch.bernoulli(p)", "        return torch.bernoulli(torch.full_like(p, 0.5))"),
    Fault("mask rounded by autocast", "masking", "torch.autocast(device_type, enabled=False)", "contextlib.nullcontext()"),
    Fault("two draws instead of one", "memberships", "draws = self._drawn is None or self._begins_a_forward(seat)", "draws = True"),
    Fault("one draw for ever", "memberships", "draws = self._drawn is None or self._begins_a_forward(seat)", "draws = self._drawn is None"),
    Fault("a consumer draws for itself", "memberships", "return seat in self._used_by and not produced", "return seat in self._used_by"),
    Fault("a producer takes a consumer's draw", "memberships", "return seat in self._used_by or not produced", "return seat in self._used_by"),
    Fault("drawn in eval mode as well", "memberships", "if not (self.hard and (training or self.sampling)):", "if not self.hard:"),
    Fault("soft memberships are drawn", "memberships", "if not (self.hard and (training or self.sampling)):", "if not (training or self.sampling):"),
    Fault("a recomputed forward draws anew", "memberships", "torch._C._current_graph_task_id() != -1:", "False:"),
    Fault("a recomputed forward sees the latest draw", "memberships", "return use.drawn", "return self._drawn"),
    Fault("a recomputed forward leaves torch's stream behind", "memberships", "if use.drew and self.generator is None:", "if False:"),
    Fault("P starts at the logit", "memberships", "self.logits.copy_(torch.logit(p))", "self.logits.copy_(p)"),
    Fault("non-finite logits pass", "memberships", "self.require_finite()", "pass"),
    Fault("memberships not shared", "layers", "object.__setattr__(self, side, memberships)", "self.add_module(side, Memberships(nodes, self.clusters))"),
    Fault("two entries in the state_dict", "layers", "if seat == 0:", "if True:"),
    Fault("inference with the P of other nodes", "layers", "masked_weight(self.weight, self.outputs.probabilities, c_in)", "masked_weight(self.weight, self.outputs.probabilities.flip(0), c_in)"),
    Fault("channels tiled, not repeated", "layers", "c_in.repeat_interleave(self.features_per_node, dim=0)", "c_in.tile((self.features_per_node, 1))"),
    Fault("plain initial scale", "layers", "torch.where(moments > 0, moments, 1.0).rsqrt()", "torch.ones_like(moments)"),
    Fault("the chain forgotten in the scale", "layers", "self.outputs.profile = gram", "pass"),
    Fault("bias forgotten", "layers", "F.linear(x, self.masked_weight(), self.bias)", "F.linear(x, self.masked_weight())"),
    Fault("DropConnect keeps what it should drop", "layers", "torch.full_like(self.weight, self.keep, requires_grad=False)", "torch.full_like(self.weight, 1 - self.keep, requires_grad=False)"),
    Fault("DropConnect's variance forgotten", "layers", "* (self.keep * (1 - self.keep))", "* 0"),
]  # fmt: skip


def caught(fault: Fault) -> bool:
    """Whether the suite fails with the fault in place."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "blockout"
        shutil.copytree(ROOT / "src" / "blockout", package)
        path = package / f"{fault.file}.py"
        text = path.read_text()
        if fault.right not in text:
            raise SystemExit(f"{fault.what}: {fault.file}.py no longer has {fault.right!r}")
        path.write_text(text.replace(fault.right, fault.wrong, 1))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
    if run.returncode not in (0, 1):
        raise SystemExit(f"{fault.what}: pytest did not run\n{run.stdout}{run.stderr}")
    first = next((line for line in run.stdout.splitlines() if line.startswith("FAILED")), "")
    print(f"{'caught' if run.returncode else 'MISSED'}  {fault.what:<42} {first[7:]}", flush=True)
    return run.returncode == 1


def main() -> None:
    missed = [fault.what for fault in FAULTS if not caught(fault)]
    print(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} faults caught")
    if missed:
        raise SystemExit(f"went unnoticed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()

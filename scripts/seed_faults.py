"""Seeds one-line faults and checks that the suite catches every one: `make faults`.

Each fault is applied to a copy of the sources in a temporary folder; the tests of its room
run against the copy and must fail. Exit code 1 names the faults that went unnoticed. Words after the
command choose faults whose name has one of them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "masking",
    "estimators",
    "scale",
    "memberships",
    "layers",
    "family",
    "sampling",
    "optimisation",
    "convert",
    "guidance",
)
GUIDANCE, COMPACTION = ["tests/test_guidance.py", "tests/test_affinity.py"], ["tests/compact"]


def tests_of(file: str) -> list[str]:
    """Those that must notice a fault in a file."""
    if file in ("guidance", "affinity"):
        return GUIDANCE
    if file.startswith("compact/"):
        return COMPACTION
    return [f"tests/test_{name}.py" for name in CORE]


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
    Fault("the two-sided estimate sees one side", "masking", "(c * (1 - p) + (1 - c) * p) / 2", "c * (1 - p)"),
    Fault("DropConnect's variance forgotten", "layers", "* (self.keep * (1 - self.keep))", "* 0"),
    Fault("the budget is met at once", "guidance", "target = first + (goal - first) * share", "target = goal"),
    Fault("a class may lose all its clusters", "guidance", "poor = m.probabilities.sum(1) < 1", "poor = m.probabilities.sum(1) < 0"),
    Fault("shifts in the wrong direction", "guidance", "low, high = torch.where(too_many, low, middle), torch.where(too_many, middle, high)", "low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)"),
    Fault("memberships learn from the first step", "guidance", "learning, fixing = self.done > self._at(self.guidance.learn_from), {}", "learning, fixing = True, {}"),
    Fault("weights are not rescaled when settled", "guidance", "weight / mask.clamp_min(1e-12), layer.weight)", "layer.weight, layer.weight)"),
    Fault("settled one after another", "guidance", "            return {m: self.codes}\n", "            settle(self.layers, {m: self.codes})\n"),
    Fault("momentum moves what is settled", "guidance", "                _stay_settled(m)\n", "                pass\n"),
    Fault("settles the least probable", "guidance", "p.argsort(dim=0, descending=True, stable=True)", "p.argsort(dim=0, stable=True)"),
    Fault("predictions of evaluation are counted", "guidance", "if layer.training and not recomputing", "if not recomputing"),
    Fault("recomputed predictions are counted twice", "guidance", "if layer.training and not recomputing", "if layer.training"),
    Fault("predictions go to the wrong class", "guidance", "index_add_(0, labels, predicted)", "index_add_(0, labels.flip(0), predicted)"),
    Fault("classes never move again", "guidance", "elif share == 1 or old is None or not torch.equal(old, self.codes):", "elif share == 1:"),
    Fault("classes jump to their codes", "guidance", "first + share * (self.codes - first)", "first + 0.999 * (self.codes - first)"),
    Fault("a continued training forgets its codes", "guidance", '"codes": self.codes,', '"codes": None,'),
    Fault("a continued training forgets what it saw", "guidance", '"sums": self.sums, "counts": self.counts', '"sums": None, "counts": None'),
    Fault("a settled guide still listens", "guidance", "            hook.remove()", "            pass"),
    Fault("rows are not centred", "affinity", "normalize(rows - rows.mean(0), dim=1)", "normalize(rows, dim=1)"),
    Fault("unlike classes share clusters", "affinity", "2 * self.scale * agrees - self.scale**2 * size", "-2 * self.scale * agrees - self.scale**2 * size"),
    Fault("the budget of classes is no limit", "affinity", "        self._keep_budget()\n", "        pass\n"),
    Fault("crowded clusters cost nothing", "affinity", "CROWDING * load + self.price", "self.price"),
    Fault("earlier codes are forgotten", "affinity", "if i == 0 and near is not None:", "if False:"),
    Fault("connected only by two clusters", "compact/survivors", "self.codes_in[columns].float().T > 0", "self.codes_in[columns].float().T > 1"),
    Fault("a dead node's constant is lost", "compact/survivors", "self.bias += over_kernel", "self.bias += 0 * over_kernel"),
    Fault("padding passes for a constant", "compact/joints", "if _pads_with_zeros(read_by):", "if False:"),
    Fault("a residual sum is overlooked", "compact/joints", "if step.all_input_nodes != [source]:", "if False:"),
    Fault("connections are computed twice", "compact/cover", "return shared & ~(codes_out[:, :cluster]", "return shared | (codes_out[:, :cluster]"),
    Fault("blocks of one output are not added", "compact/branches", "torch.cat([first + total, rest], self.dim)", "torch.cat([first, rest], self.dim)"),
    Fault("fine-tuning revives connections", "compact/branches", "weight = _connections(self.weight) if self.training else self.weight\n        return F.linear", "weight = self.weight\n        return F.linear"),
    Fault("the order of nodes is not restored", "compact/layout", "else made.argsort()", "else made"),
    Fault("the threshold excludes itself", "compact/network", "m.probabilities.detach().cpu() >= threshold", "m.probabilities.detach().cpu() > threshold"),
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
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                *tests_of(fault.file),
            ],
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
    words = sys.argv[1:]
    chosen = [f for f in FAULTS if not words or any(w in f"{f.file} {f.what}" for w in words)]
    missed = [fault.what for fault in chosen if not caught(fault)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults caught")
    if missed:
        raise SystemExit(f"went unnoticed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()

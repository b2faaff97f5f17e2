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
    "initialisation",
    "memberships",
    "draws",
    "compile",
    "layers",
    "seam",
    "family",
    "dropconnect",
    "sampling",
    "optimisation",
    "convert",
)
ROOMS = {
    "guidance": ["tests/guidance"],
    "compact": ["tests/compact", "tests/graph"],
    "graph": ["tests/graph", "tests/test_convert.py", "tests/compact"],
    "structure": ["tests/structure"],
    "show": sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/show/test_*.py")),
    "show/page": [
        f"tests/show/page/test_{name}.py"
        for name in ("confusion", "comparison", "flow", "masks", "nodes", "summary", "taxonomy")
    ],
    "show/figures": ["tests/show/figures"],
    "training": ["tests/training/test_loop.py", "tests/training/test_engine.py"],
    "estimator": ["tests/test_estimator.py"],
    "runs": ["tests/runs", "tests/training/test_loop.py", "tests/training/test_resume.py"],
    "models": [
        f"tests/models/test_{name}.py" for name in ("heads", "building", "pretrained", "config")
    ],
    "runs/run": ["tests/runs", "tests/commands/test_given.py"],
    "export": ["tests/export/test_reading.py", "tests/commands/test_given.py"],
    "commands": ["tests/commands/test_cli.py", "tests/commands/test_photographs.py"],
    "data": [
        f"tests/data/test_{name}.py"
        for name in ("images", "tables", "folders", "sources", "columns", "load")
    ],
    "data/kept": ["tests/data/test_kept.py"],
    "training/finetuning": ["tests/training/test_finetuning.py"],
    "models/trunks": ["tests/models/test_efficientnet.py"],
    "commands/evaluate": ["tests/commands/test_photographs.py"],
    "commands/flags": ["tests/commands/test_structure.py", "tests/commands/test_cli.py"],
    "commands/runs": ["tests/show/page/test_command.py"],
    "files": ["tests/structure", "tests/test_files.py"],
}


def tests_of(file: str) -> list[list[str]]:
    """Those that must notice a fault in a file: its own tests, then those of its room."""
    room, _, name = file.rpartition("/")
    own = f"tests/{room}/test_{name}.py" if room else f"tests/test_{name}.py"
    core = [f"tests/test_{name}.py" for name in CORE]
    rest = ROOMS.get(file) or ROOMS.get(room, core)
    return [tests for tests in ([own] if (ROOT / own).exists() else [], rest) if tests]


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
    Fault("two draws instead of one", "draws", "found, held = self._found(nodes), self._own().held", "found, held = Draw(None, made=False), False"),
    Fault("one draw for ever", "draws", "if not draw.held and (single or not draw.made or seat in draw.used_by):", "if draw.bits is None:"),
    Fault("a reader alone never draws again", "draws", "again = not (held or draw.made) and", "again = False and"),
    Fault("a producer takes a reader's draw", "draws", "if not draw.held and (single or not draw.made or seat in draw.used_by):", "if not draw.held and (draw.bits is None or seat in draw.used_by):"),
    Fault("a reader takes the last draw whatever its input", "draws", "found, held = self._found(nodes), self._own().held", "found, held = None, self._own().held"),
    Fault("a reader takes the nearest of two draws", "draws", "if len(found) > 1:", "if False:"),
    Fault("draws hang only at the very tensor", "draws", "elif self.producers:", "elif False:"),
    Fault("parts of a tensor share what each drew", "draws", "_notes(nodes.grad_fn)[self._key, nodes.output_nr] = draw", "_notes(nodes.grad_fn)[self._key, 0] = draw"),
    Fault("a changed view loses its draw", "draws", "nodes if nodes._base is None else nodes._base, draw", "nodes, draw"),
    Fault("a filled tensor is what it was", "draws", "found is not None and found[1] == nodes._version", "found is not None"),
    Fault("threads share the last draw", "draws", "return self._by_thread.get(threading.get_ident())", "return latest"),
    Fault("a compiled pass refuses the next", "draws", "        self.unread = False\n        if not", "        if not"),
    Fault("compiled code overlooks unread draws", "draws", "unread = self.unread if compiling else", "unread = False if compiling else"),
    Fault("several producers are one too few", "draws", "single = len(self.producers) == 1", "single = True"),
    Fault("a thread reads what another drew", "draws", "if self.producers and elsewhere:", "if False:"),
    Fault("two unread draws pass", "draws", "made=True, doubtful=unread", "made=True"),
    Fault("eval mode drops what training drew", "draws", "self._own().outdated = True", "self.forget()"),
    Fault("eval mode leaves a reader the old draw", "draws", "self._own().outdated = True", "pass"),
    Fault("stored activations get an old draw", "draws", "if not compiling and draw.times_read.get(seat, 0) >= draw.times_made:", "if False:"),
    Fault("forget leaves draws in graphs", "draws", "self._key = object()", 'self._key = "draw"'),
    Fault("a held draw is drawn again", "draws", "if not draw.held and (single or not draw.made or seat in draw.used_by):", "if single or not draw.made or seat in draw.used_by:"),
    Fault("a held draw stays for ever", "draws", "            draw.held = False\n", "            pass\n"),
    Fault("a held pass forgets the one around it", "draws", "self._by_thread[threading.get_ident()] = before", "pass"),
    Fault("a recomputed forward sees the latest draw", "memberships", "bits, drew = self.draws.recall(mark)", "bits, drew = self.drawn, self.draws.recall(mark)[1]"),
    Fault("a recomputed forward leaves torch's stream behind", "memberships", "if drew and self.generator is None:", "if False:"),
    Fault("loading lowers the precision", "memberships", "if value.dtype != wide:", "if False:"),
    Fault("a fixed P of two is loaded", "memberships", "wrong = None if self.learned or value.is_meta else _outside(value)", "wrong = None"),
    Fault("True is a number of clusters", "memberships", "0 if _is_bool(value) else operator.index(value)", "operator.index(value)"),
    Fault("drawn in eval mode as well", "memberships", "if not (self.hard and (training or self.sampling)):", "if not self.hard:"),
    Fault("soft memberships are drawn", "memberships", "if not (self.hard and (training or self.sampling)):", "if not (training or self.sampling):"),
    Fault("a recomputed forward draws anew", "memberships", "torch._C._current_graph_task_id() != -1:", "False:"),
    Fault("P starts at the logit", "memberships", "self.logits.copy_(torch.logit(p))", "self.logits.copy_(p)"),
    Fault("non-finite logits pass", "memberships", "self.require_valid()", "pass"),
    Fault("memberships not shared", "layers", "object.__setattr__(self, side, memberships)", "self.add_module(side, Memberships(nodes, self.clusters))"),
    Fault("two entries in the state_dict", "layers", "if seat == 0:", "if True:"),
    Fault("inference with the P of other nodes", "layers", "masking.masked_weight(self.weight, p_out, p_in)", "masking.masked_weight(self.weight, p_out.flip(0), p_in)"),
    Fault("channels tiled, not repeated", "masking", "c_in.repeat_interleave(weight.shape[1] // len(c_in), dim=0)", "c_in.tile((weight.shape[1] // len(c_in), 1))"),
    Fault("plain initial scale", "layers", "torch.where(moments > 0, moments, 1.0).rsqrt()", "torch.ones_like(moments)"),
    Fault("the chain forgotten in the scale", "layers", "self.outputs.profile = gram", "pass"),
    Fault("bias forgotten", "layers", "masking.masked_linear(x, self.weight, c_out, c_in, self.bias)", "masking.masked_linear(x, self.weight, c_out, c_in)"),
    Fault("a layer goes past the seam", "layers", "masking.masked_linear(x, self.weight, c_out, c_in, self.bias)", "F.linear(x, masking.masked_weight(self.weight, c_out, c_in), self.bias)"),
    Fault("a convolution goes past the seam", "layers", "masking.masked_conv2d(x, self.weight, c_out, c_in, self.bias, *geometry)", "F.conv2d(x, masking.masked_weight(self.weight, c_out, c_in), self.bias, *geometry)"),
    Fault("padded twice", "layers", "mode=self.padding_mode), 0", "mode=self.padding_mode), padding"),
    Fault("both estimators are Eq. 9", "masking", 'with_gradient_to if c.estimator == "eq9" else with_two_sided_gradient_to', "with_gradient_to"),
    Fault("a draw carries its gradient", "memberships", "bits = self._used(seat, mark, p, nodes)", "bits = self._used(seat, mark, p, nodes) + p - p.detach()"),
    Fault("fixed memberships name something that learns", "memberships", "return Assignments(bits)", "return Assignments(bits, p)"),
    Fault("the dilation is forgotten", "masking", "bias, stride, padding, dilation)", "bias, stride, padding)"),
    Fault("DropConnect keeps what it should drop", "dropconnect", "torch.full_like(self.weight, self.keep, requires_grad=False)", "torch.full_like(self.weight, 1 - self.keep, requires_grad=False)"),
    Fault("the two-sided estimate sees one side", "masking", "(c * (1 - p) + (1 - c) * p) / 2", "c * (1 - p)"),
    Fault("DropConnect's variance forgotten", "dropconnect", "* (self.keep * (1 - self.keep))", "* 0"),
    Fault("the guide does not wait for its time", "guidance/guide", "if self.done < round(g.narrow_from * self.steps) or self.whole:", "if self.whole:"),
    Fault("the guide believes chance", "guidance/guide", "if self.reliability >= RELIABLE and self.told_apart >= TOLD_APART:", "if True:"),
    Fault("classes that look alike are grouped", "guidance/guide", "if self.reliability >= RELIABLE and self.told_apart >= TOLD_APART:", "if self.reliability >= RELIABLE:"),
    Fault("memberships jump to their codes", "guidance/guide", "(self.done - self.begun) / (self._end - self.begun)", "0.999"),
    Fault("classes are drawn on", "guidance/guide", "kept = 1.0 if m is self.classes else p", "kept = p"),
    Fault("starting changes the network", "guidance/guide", "torch.where(mask > 0, weight / mask, layer.weight)", "layer.weight"),
    Fault("momentum moves what is settled", "guidance/guide", "        for m in self.sets:\n            m.put(self._wanted(m))\n        if self.pace", "        for m in self.sets if not self.settled else ():\n            m.put(self._wanted(m))\n        if self.pace"),
    Fault("predictions of evaluation are counted", "guidance/guide", "if layer.training and not recomputing", "if not recomputing"),
    Fault("recomputed predictions are counted twice", "guidance/guide", "if layer.training and not recomputing", "if layer.training"),
    Fault("a continued training forgets its codes", "guidance/guide", "            if code is not None\n", "            if code is None\n"),
    Fault("a continued training forgets what it saw", "guidance/guide", 'self.measured.load_state_dict(state["likeness"])', "pass"),
    Fault("a continued training paces by other masks", "guidance/guide", "            self._stop_reading()\n        if self.pace is not None:\n            self.pace.resume()", "            self._stop_reading()"),
    Fault("a settled guide still listens", "guidance/guide", "            hook.remove()", "            pass"),
    Fault("predictions go to the wrong class", "guidance/similarity", "seen.index_add_(0, labels, ", "seen.index_add_(0, labels.flip(0), "),
    Fault("both halves see the same steps", "guidance/similarity", "self.turn = 1 - self.turn", "self.turn = 0"),
    Fault("nothing is forgotten", "guidance/similarity", "self.sums.mul_(self.keep)", "self.sums.mul_(1)"),
    Fault("nodes take what they serve least", "guidance/node_codes", "argsort(descending=True, stable=True)", "argsort(stable=True)"),
    Fault("branches have equal sizes", "guidance/node_codes", "share = serves / serves.sum()", "share = (serves > 0) / (serves > 0).sum()"),
    Fault("a branch without a class has nodes", "guidance/node_codes", "share.clamp_min(SMALLEST_SHARE / int(used.sum())), 0.0)", "share.clamp_min(SMALLEST_SHARE / int(used.sum())), 0.1)"),
    Fault("weights stay as masks get thinner", "guidance/pace", "layer.weight.mul_(self.scales[i] / scale)", "layer.weight.mul_(1)"),
    Fault("gradients keep the mask's scale", "guidance/pace", "gradient / self.scales[i]", "gradient"),
    Fault("steps keep the mask's scale", "guidance/pace", "layer.weight.sub_(before).div_(scale).add_(before)", "pass"),
    Fault("rows are not centred", "guidance/class_codes", "normalize(means - means.mean(0), dim=1)", "normalize(means, dim=1)"),
    Fault("unlike classes share clusters", "guidance/class_codes", "2 * self.scale * agrees - self.scale**2 * size", "-2 * self.scale * agrees - self.scale**2 * size"),
    Fault("the budget of classes is no limit", "guidance/class_codes", "        self._keep_budget()\n", "        pass\n"),
    Fault("crowded clusters cost nothing", "guidance/class_codes", "CROWDING * load + self.price", "self.price"),
    Fault("earlier codes are forgotten", "guidance/class_codes", "if i == 0 and near is not None:", "if False:"),
    Fault("connected only by two clusters", "compact/survivors", "self.codes_in[columns].float().T > 0", "self.codes_in[columns].float().T > 1"),
    Fault("a dead node's constant is lost", "compact/survivors", "self.bias += over_kernel", "self.bias += 0 * over_kernel"),
    Fault("padding passes for a constant", "graph/joints", "if _pads_with_zeros(read_by):", "if False:"),
    Fault("a residual sum is overlooked", "graph/joints", 'if kind != "reshaping" and step.all_input_nodes != [source]:', "if False:"),
    Fault("connections are computed twice", "compact/cover", "return shared & ~(codes_out[:, :cluster]", "return shared | (codes_out[:, :cluster]"),
    Fault("blocks of one output are not added", "compact/blocks", "torch.cat([first + total, rest], self.dim)", "torch.cat([first, rest], self.dim)"),
    Fault("fine-tuning revives connections", "compact/blocks", "weight = _connections(self.weight) if self.training else self.weight\n        return F.linear", "weight = self.weight\n        return F.linear"),
    Fault("the order of nodes is not restored", "compact/layout", "else made.argsort()", "else made"),
    Fault("the threshold excludes itself", "compact/network", "m.probabilities.detach().cpu() >= threshold", "m.probabilities.detach().cpu() > threshold"),
    Fault("seeds make different methods", "show/methods", "json.dumps(run.recipe,", "json.dumps(run.config.flat(),"),
    Fault("differences between groups go unsaid", "show/methods", "any(other.get(name, value) != value for other in others)", "False"),
    Fault("rare codes are dropped", "show/boxes", "for size in sorted({len(code) for code in rare}):", "for size in []:"),
    Fault("boxes in the order of their size", "show/boxes", "key=lambda code: _gray_rank(code, nodes.clusters)", "key=len"),
    Fault("the final P is left out", "show/distributions", "if run.result is not None and p is not None:", "if False:"),
    Fault("both ends are the low one", "show/distributions", "float(histogram[-bins:].sum() / total)", "float(histogram[:bins].sum() / total)"),
    Fault("a mask of the inputs alone", "show/masks", "expected_mask(*ordered)", "expected_mask(*reversed(list(ordered)))"),
    Fault("a one-sided p-value", "show/classes", "np.abs((a * b).mean(axis))", "(a * b).mean(axis)"),
    Fault("classes without images count as wrong", "show/classes", "known = ~(np.isnan(x) | np.isnan(y))", "known, y = ~np.isnan(x), np.nan_to_num(y)"),
    Fault("costs stand at the end of their steps", "show/convergence", "(1 + start / max(entry.step, 1)) / 2", "1"),
    Fault("the last seed alone", "show/convergence", "values.mean(0)", "values[-1]"),
    Fault("mistakes across groups count as within", "show/mistakes", "groups[true] == groups[predicted]", "groups[true] >= groups[predicted]"),
    Fault("single linkage", "structure/groups", 'squareform(_distances(p)), "average")', 'squareform(_distances(p)), "single")'),
    Fault("the page forgets to escape", "show/page/section", "return Markup(text).format(*values, **named)", "return Markup(text.format(*values, **named))"),
    Fault("templates do not escape", "show/page/section", "autoescape=True", "autoescape=False"),
    Fault("no scale beside learned masks", "show/page/masks", "showscale=True", "showscale=False"),
    Fault("merged boxes drawn as dead nodes", "show/figures/flow", "if box.merged:", "if False:"),
    Fault("ribbons of merged boxes as high as the box", "show/boxes", "heights = [box.height * box.share_in(cluster)", "heights = [box.height * bool(box.share_in(cluster))"),
    Fault("ribbons of clusters that only one side has", "show/boxes", "and (leaves := _strands(cluster, outputs))", "and ((leaves := _strands(cluster, outputs)) or True)"),
    Fault("the gap between boxes is no longer in inches", "show/figures/flow", "gap / frame.high", "gap"),
    Fault("Fig. 9 without the final P", "show/figures/distributions", "seen = through_training(run)", "seen = run.distributions"),
    Fault("Fig. 9 draws the lower quartile", "show/figures/distributions", "seen.quartiles[:, 1]", "seen.quartiles[:, 0]"),
    Fault("Fig. 8 draws the best seed as the mean", "show/figures/convergence", "band.epochs, band.mean", "band.epochs, band.most"),
    Fault("Fig. 8 in other colours than the page", "show/figures/convergence", "sorted(by_method(runs), key=lambda group: METHODS.index(group.runs[0].method))", "by_method(sorted(runs, key=lambda run: METHODS.index(run.method)))"),
    Fault("every seed is a row", "show/figures/selection", "first = [group.runs[0] for group in by_method(found)]", "first = found"),
    Fault("one branch is the most branched", "show/figures/selection", "[run for run in found if not run.one_branch] or found", "found"),
    Fault("soft runs before hard ones", "show/figures/selection", "(not run.config.model.hard,", "(run.config.model.hard,"),
    Fault("Fig. 5 shows the unordered mask twice", "show/figures/masks", "(mask.as_it_is, mask.in_order)", "(mask.as_it_is, mask.as_it_is)"),
    Fault("Fig. 10 marks other classes", "show/figures/nodes", "seen.points[chosen]", "seen.points[: len(chosen)]"),
    Fault("Fig. 11 in another order per run", "show/figures/classes", "_draw(axes, values[order])", "_draw(axes, np.sort(values))"),
    Fault("Fig. 7 counts the weights of one model", "show/figures/models", "for p in model.parameters()", "for p in built[0].parameters()"),
    Fault("the schedule is not continued", "training/engine", 'self.schedule.load_state_dict(state["schedule"])', "pass"),
    Fault("the shortest warm-up divides by zero", "training/engine", "rise = max(warmup * steps, 1.0)", "rise = warmup * steps"),
    Fault("the last step learns nothing", "training/engine", "total_steps=steps + 1,", "total_steps=max(steps, 2),"),
    Fault("every step draws alike", "training/engine", "mixed_seed(seed, self.done, own, 1 << 32)", "mixed_seed(seed, 0, own, 1 << 32)"),
    Fault("processes draw their own unasked", "training/engine", "own = rank if self.recipe.own_draws else 0", "own = rank"),
    Fault("parts are weighed as whole batches", "training/engine", "self.processes.world / examples", "self.processes.world / len(y)"),
    Fault("a loss that is not finite is learned", "training/engine", "if not math.isfinite(value):", "if False:"),
    Fault("the guide stays attached", "training/engine", "            self.guide.close()", "            pass"),
    Fault("the average spans the settling", "training/engine", "self.averaged.module.load_state_dict(self.module.state_dict())", "pass"),
    Fault("averaged weights are not handed over", "training/engine", "module.load_state_dict(engine.result.state_dict())", "pass"),
    Fault("seeds make another experiment", "runs/config", 'unused = {"seed", *WHERE_IT_RAN', 'unused = {*WHERE_IT_RAN'),
    Fault("the rate is stored as it was typed", "runs/config", "lr=o.lr or fitting.lr", "lr=o.lr"),
    Fault("identity holds a path", "runs/config", '"data": data_name or name_of(self.data.data),', '"data": self.data.data,'),
    Fault("streaming is left open", "runs/config", "stream=isinstance(images.train, StreamSplit),", "stream=None,"),
    Fault("changed images go unnoticed", "runs/run", "images.fingerprint() != known", "False"),
    Fault("images of other classes pass", "runs/run", "found.classes != self.classes:", "False:"),
    Fault("a run continues on other images", "runs/config", '"images": images.fingerprint()}', "}"),
    Fault("features are not standardised", "estimator", "self.scaler_.transform(table)", "table"),
    Fault("statistics of drawn weights stay", "estimator", "measure_statistics(network, [inputs])", "pass"),
    Fault("unread nodes count as alive", "graph/liveness", "filter(None, (feeding, reading))", "filter(None, (feeding,))"),
    Fault("nodes without inputs count as alive", "graph/liveness", "filter(None, (feeding, reading))", "filter(None, (reading,))"),
    Fault("death does not spread", "graph/liveness", "changed |= bool(dying.any())", "pass"),
    Fault("liveness changes the codes it was given", "graph/liveness", "found.clone() for name, found", "found for name, found"),
    Fault("a pair counts once per shared cluster", "graph/liveness", "codes_in.float().T > 0", "codes_in.float().T"),
    Fault("LayerNorm keeps nodes apart", "graph/steps", 'dict.fromkeys(MIXING_MODULES, "mixing")', 'dict.fromkeys(MIXING_MODULES, "elementwise")'),
    Fault("softmax keeps nodes apart", "graph/steps", '("mixing", MIXING_CALLS)', '("elementwise", MIXING_CALLS)'),
    Fault("a module with hooks counts as known", "graph/steps", "if why_unknown(module) or", "if"),
    Fault("a subclass counts as known", "graph/steps", "KINDS_OF_MODULES.get(type(module), ", "next((k for t, k in KINDS_OF_MODULES.items() if isinstance(module, t)), "),
    Fault("a depthwise convolution makes new nodes", "graph/steps", 'if getattr(module, "groups", 1) != 1:', "if False:"),
    Fault("dropout that stays on is overlooked", "graph/joints", "or is_random(step, self.modules)", ""),
    Fault("a change in place at a fork is overlooked", "graph/joints", "and not self.in_place_at_a_fork(node)", ""),
    Fault("positions pass for channels", "graph/layout", "if _is_batch_size(first, source, modules):", "if True:"),
    Fault("any axis is squeezed", "graph/layout", 'or any(axes[i] != "1" for i in chosen)', ""),
    Fault("any mean is over positions", "graph/layout", "or _dims(axes, dims) != {2, 3}", ""),
    Fault("a layer along another axis makes new nodes", "graph/layout", "return known and reads_nodes(module, axes)", "return known"),
    Fault("a state makes new nodes", "graph/layout", "if isinstance(module, READ_FIRST_INPUT) and", "if False and"),
    Fault("a layer that is never called passes", "graph/producers", "if name not in found and name not in links:", "if False:"),
    Fault("a layer inside a leaf passes", "graph/producers", "for name in set(self.names) & set(self.hidden) - set(self.links):", "for name in ():"),
    Fault("a view is changed unnoticed", "graph/producers", "for other in self._views(changed) - {node}:", "for other in {changed}:"),
    Fault("one mode is traced", "graph/tracing", "modes: tuple[bool, ...] = (True, False)", "modes: tuple[bool, ...] = (False,)"),
    Fault("defaults are not traced", "graph/tracing", "if defaults else []", "if False else []"),
    Fault("a layer held in a list is replaced", "graph/holders", "elif isinstance(value, list | tuple | set | frozenset):", "elif False:"),
    Fault("a transposition keeps nodes in place", "graph/producers", "if origin.layer is not None and origin.unclear:", "if False:"),
    Fault("weights read directly pass", "graph/tracing", 'if node.op == "get_attr" and name and name in names:', "if False:"),
    Fault("compaction keeps unread nodes", "compact/survivors", "self._drop(joint, torch.stack(unread).all(0))", "pass"),
    Fault("a node one reader needs is dropped", "compact/survivors", "torch.stack(unread).all(0)", "torch.stack(unread).any(0)"),
    Fault("a dead node's weights stay", "compact/survivors", "self.layers[reader.layer].codes_in[dying] = False", "pass"),
    Fault("all dead nodes go, also the last", "compact/survivors", "max(int(self.alive[name].sum()), 2)", "int(self.alive[name].sum())"),
    Fault("plain neighbours count in full", "compact/network", "pairs = len(survivors.outputs(name)) * len(survivors.inputs(name))", "pairs = len(layers[name].codes_out) * len(layers[name].codes_in)"),
    Fault("what is left counts dead nodes", "structure/structure", "codes = self._living\n", "codes = {name: nodes.assignments for name, nodes in self.sets.items()}\n"),
    Fault("the total is the last layer's", "structure/nodes", "sum(getattr(cost, name) for cost in costs)", "getattr(costs[-1], name)"),
    Fault("positions forgotten in multiply-adds", "structure/nodes", "each * (1 if layer.positions is None else layer.positions)", "each"),
    Fault("the taxonomy is lost in JSON", "structure/sources", "None if taxonomy is None else tuple(taxonomy)", "None"),
    Fault("complete instead of average linkage", "structure/groups", 'linkage(squareform(_distances(p)), "average")', 'linkage(squareform(_distances(p)), "complete")'),
    Fault("ties are ranked by their order", "structure/groups", "rankdata(scores)", 'rankdata(scores, "ordinal")'),
    Fault("rows of P are not centred", "structure/groups", "centred = p - p.mean(0)", "centred = p"),
    Fault("a compact head calls itself trained", "models/heads", 'return "compact"', 'return "trained"'),
    Fault("earlier descriptions of compact heads fail", "models/heads", 'if layers is not None and method == "fc":', "if False:"),
    Fault("a run decides what is fetched", "runs/run", "fetch=self.data is not None", "fetch=True"),
    Fault("a run decides where the cache is", "runs/run", "cache=self.cache, workers=None)", "workers=None)"),
    Fault("any kind of model is built", "models/configurations", "kind not in IMAGE_MODELS", "False"),
    Fault("a configuration reaches for a kernel", "models/configurations", "if asks and value and value not in BUILT_IN:", "if False:"),
    Fault("a path passes for a word", "models/configurations", r"[\w.-]{0,60}", ".*"),
    Fault("memory is taken before weights fit", "models/building", 'with torch.device("meta"):', "if True:"),
    Fault("weights that are not finite are taken", "models/building", "if not value.isfinite().all():", "if False:"),
    Fault("a size is tried again and again", "export/archive", r'r"|-?\d++|(?:Add|Mul|Max|Min|FloorDiv|CleanDiv|Mod|PythonMod)\(|, |\))++"', r'r"|-?\d+|(?:Add|Mul|Max|Min|FloorDiv|CleanDiv|Mod|PythonMod)\(|, |\))+"'),
    Fault("records share their bytes", "export/archive", "if sum(entry.file_size for entry in entries) > path.stat().st_size:", "if False:"),
    Fault("ONNX reads the file beside it", "export/reading", "    options.add_session_config_entry(EXTERNAL_FILES, NOWHERE)\n", ""),
    Fault("outputs that are not finite pass", "export/reading", "if not logits.isfinite().all():", "if False:"),
    Fault("Pillow opens whatever it knows", "data/images", ", formats=FORMATS", ""),
    Fault("a pipe is waited for", "data/images", "if not stat.S_ISREG(status.st_mode):", "if False:"),
    Fault("pixels are counted after decoding", "data/images", "    _require_moderate(*image.size)\n", ""),
    Fault("tiles are not counted", "data/images", 'if image.format == "TIFF":', "if False:"),
    Fault("a JPEG decodes itself a thousand times", "data/images", "content.count(JPEG_SCAN) > MOST_SCANS", "False"),
    Fault("damage ends in another error", "data/images", "except Exception as error:", "except OSError as error:"),
    Fault("bands lose their transparency", "data/images", "if image.has_transparency_data:", "if image.mode == 'RGBA':"),
    Fault("a row without an image is no error", "data/tables", "if path.is_valid:", "if True:"),
    Fault("links are followed in circles", "data/folders", "if known != place:", "if False:"),
    Fault("a folder's name is asked of the hub", "data/sources", "fetch and (data in HUB_IDS or data.startswith(HUB))", "fetch"),
    Fault("a trunk's folder is asked of the hub", "models/pretrained", "    if name == trunk:\n", "    if False:\n"),
    Fault("the hub is asked though it must not", "data/sources", "when=not (fetch and _reachable())", "when=not _reachable()"),
    Fault("row groups of any size are read", "data/sources", "if largest > LARGEST_ROW_GROUP:", "if False:"),
    Fault("half a file replaces a whole one", "files", "write(beside)", "write(path)"),
    Fault("the spread over draws is biased", "sampling", "(squares / (draws - 1)).sqrt()", "(squares / draws).sqrt()"),
    Fault("sampling moves on the generators", "sampling", "            generator.set_state(state)", "            pass"),
    Fault("memberships learn as slowly as weights", "optimisation", '"lr": lr * membership_scale', '"lr": lr'),
    Fault("biases decay", "optimisation", "elif parameter.dim() <= 1 or isinstance(", "elif isinstance("),
    Fault("draws have no variance at the start", "initialisation", " + (p * (1 - p)) @ q.diagonal()", ""),
    Fault("the mask's square forgets a k", "initialisation", "moments / outputs.clusters**2", "moments / outputs.clusters"),
    Fault("tied weights are converted", "convert", "if other is not modules[name] and any(", "if False and any("),
    Fault("memberships stay in the dense model", "convert", "                delattr(parent, child_name)", "                pass"),
    Fault("a training image becomes a test image", "data/kept", "TRAIN if TRAIN in (part, known.part) else part", "part"),
    Fault("images that are gone are not missed", "data/kept", "if there[image.content] < 0:", "if False:"),
    Fault("a run's own data counts as new", "data/kept", "return all(known and 2 * len(known & there) >= len(known) for known in parts)", "return False"),
    Fault("training images are not counted", "data/kept", "known = self._contents(TRAIN)", "known = self._contents(TEST)"),
    Fault("a burst is the whole test of a class", "data/division", "(sizes > 1) & (excess == 0)", "(sizes > 1)"),
    Fault("every seed divides alike", "data/division", "key=salt,", 'key=b"",'),
    Fault("a class is never tested", "data/division", "if needed and not taken.any() and len(sizes):", "if False:"),
    Fault("mirrored copies pass", "data/duplicates", "np.maximum((one * other).sum(1), (one * mirrored).sum(1))", "(one * other).sum(1)"),
    Fault("the last of equal files is named", "data/duplicates", "first.setdefault(content, place)", "first[content] = place"),
    Fault("a label judges itself", "data/labels", "(scores - pull * self._targets(self.labels[place])) / (1 - pull)", "scores"),
    Fault("any unusual image is mislabelled", "data/labels", "            & (typical >= TYPICAL)\n", ""),
    Fault("a damaged cache is read", "data/cache", 'about.pop("checksums") != _checksums(place)', 'about.pop("checksums") is None'),
    Fault("an epoch begins with its first batch", "data/splits", "for b in range(start, count)]", "for b in range(count - start)]"),
    Fault("borders wrap around", "data/splits", "return torch.minimum(index, 2 * (size - 1) - index)", "return index % size"),
    Fault("workers change the draws", "data/streams", "        generator=torch.Generator(),\n", ""),
    Fault("every epoch sees one view", "data/features", "views = rng.integers(0, self.features.shape[1], len(order))", "pass"),
    Fault("damaged features are used", "data/features", ".hexdigest() != path.stem:", ".hexdigest() == 0:"),
    Fault("an unlabelled test split is a class", "data/columns", "bool(np.all(_column(split, label) == -1))", "False"),
    Fault("the named cache folder is ignored", "data/config", "if named := os.environ.get(CACHE_DIR_VARIABLE):", "if named := None:"),
    Fault("the network need not agree on a label", "training/checks", "    if said is None:\n        return doubts", "    if True:\n        return doubts"),
    Fault("--keep goes too far", "training/compaction", "first = bisect_left(levels, True,", "first = len(levels) - 1 if True else bisect_left(levels, True,"),
    Fault("--max-loss looks at no loss", "training/compaction", "before - tried.accuracy <= points and", "True and"),
    Fault("the checkpoint of before is refused", "training/checkpoint", "    if state[\"format\"] == BEFORE:\n", "    if False:\n"),
    Fault("a guide that waits is warned of", "training/recording", "        if not self.config.guided:\n", "        if True:\n"),
    Fault("the worst weights are the best", "training/recording", 'tests["holdout"].accuracy > tally.best_accuracy', 'tests["holdout"].accuracy < tally.best_accuracy'),
    Fault("dead nodes are not noticed", "training/watch", "homeless.float().mean() > DEAD", "homeless.float().mean() > 1"),
    Fault("a worse network is kept", "training/finetuning", "return not (after.accuracy, -after.loss) >= (before.accuracy, -before.loss)", "return False"),
    Fault("a logger that fails ends the run", "training/loggers", "except Exception as error:", "except KeyError as error:"),
    Fault("chance makes a hold-out easy", "show/verdict", "max(MUCH, SURE_ERRORS * error)", "MUCH"),
    Fault("what is learned by heart is not said", "show/verdict", "known - test < BEHIND", "known - test < 101"),
    Fault("a config overrides flags", "commands/flags", 'key=lambda word: not word.startswith("--config=")', 'key=lambda word: word.startswith("--config=")'),
    Fault("hidden files are classified", "commands/prediction", "return not hidden and", "return"),
    Fault("a mistake of ours passes for the user's", "commands/endings", "isinstance(error, ValueError) and _raised_by_us(error)", "isinstance(error, ValueError)"),
    Fault("the doctor is always content", "commands/doctor", 'if name in NEEDED:', "if False:"),
    Fault("weights of one name are the same", "runs/config", "self.recipe(images.name) | self.origins() | seed", "self.recipe(images.name) | seed"),
    Fault("hub models of one name are the same", "runs/config", "return trunk.removeprefix(HUB) if is_hub_id(trunk) else name_of(trunk)", "return name_of(trunk)"),
    Fault("an older run has other clusters now", "runs/config", "begun = self if self.run.restart else self.as_begun()", "begun = self"),
    Fault("steps and epochs make two runs", "runs/config", "chosen = chosen._in_whole_epochs(images)", "pass"),
    Fault("a flipped bit goes unnoticed", "runs/digests", "if known and not fits:", "if False:"),
    Fault("a run continues from other weights", "runs/start", "            _require_same_origins(folder, config)\n", ""),
    Fault("chance knows the test", "training/reference", "torch.bincount(data.train.labels).argmax()", "torch.bincount(data.test.labels).argmax()"),
    Fault("views of one image are computed twice", "training/features", "if key not in store and key not in planned:", "if key not in store:"),
    Fault("exact copies are found twice", "training/checks", "~np.isin(found.places, exact.places)", "found.places >= 0"),
    Fault("another config continues", "training/checkpoint", "    if changed:\n", "    if False:\n"),
    Fault("the head's gain is the whole's", "training/whole", "at.dense / (at.dense - at.dense_head + at.compact_head)", "at.dense_head / at.compact_head"),
    Fault("rows of padding are counted", "training/evaluation", "return rows[rows[:, 0] >= 0]", "return rows"),
    Fault("statistics are a running average", "training/evaluation", "            m.momentum = None  # a plain average over the batches\n", ""),
    Fault("nothing is said to start fresh", "training/finish", "fresh = [k for k in wanted if k not in fitting]", "fresh = []"),
    Fault("normalisations are fine-tuned", "training/finetuning", "if isinstance(module, NORMALISATIONS):", "if False:"),
    Fault("classes are not weighed", "training/assembly", "class_weights=data.class_weights,", "class_weights=None,"),
    Fault("a second Ctrl-C waits for the step", "training/interrupts", "signal.signal(signal.SIGINT, signal.default_int_handler)", "pass"),
    Fault("momentum takes no memory", "training/memory", "weights * BYTES * copies", "weights * BYTES"),
    Fault("mirror images say how alike crops are", "training/images", "views[:, CROP_VIEW])", "views[:, 0])"),
    Fault("alike images are parted", "data/sides", "groups[pool] = len(groups) + joined(groups[pool], alike.groups)", "pass"),
    Fault("groups of other images are taken", "data/sides", "cache.key_of(source.fingerprint, config.skip_corrupt, len(labels))", "cache.key_of(config.skip_corrupt, len(labels))"),
    Fault("large sets are compared too", "data/sides", "if len(labels) > MOST_COMPARED:", "if False:"),
    Fault("in a small set no image may be unreadable", "data/unreadable", "max(1, FEW * len(rows))", "FEW * len(rows)"),
    Fault("unreadable images are counted from the chunk", "data/unreadable", "for p, i in zip(places, images, strict=True)", "for p, i in enumerate(images)"),
    Fault("new classes have a part", "data/kept", "np.where(labels == OPEN, OPEN, self.parts(catalogue, name))", "self.parts(catalogue, name)"),
    Fault("of two labels that fit one is wrong", "data/labels", "            & (scores[every, labels] <= UNLIKE)\n", ""),
    Fault("large classes weigh more", "data/load", "len(train) / (len(counts) * counts)", "len(counts) * counts / len(train)"),
    Fault("any number is a probability", "runs/arrays", "bool(((p >= 0) & (p <= 1)).all())", "True"),
    Fault("a class that is not is predicted", "runs/arrays", "(known >= 0) & (known < most)", "known >= 0"),
    Fault("files have no digests", "runs/folder", "if path.name in READ_BACK:", "if False:"),
    Fault("a run goes on without its images", "runs/images", "if not found.changes.harmless:", "if False:"),
    Fault("nobody says who holds a folder", "runs/lock", "        _sign(path, work)\n", ""),
    Fault("lost lines go unnoticed", "runs/logs", "if len(found) < count:", "if False:"),
    Fault("the rate does not follow the batch", "runs/schedule", "rate * min(size / usual, 1)", "rate"),
    Fault("a run is tested on its hold-out", "runs/split", "parts = (split.train, split.holdout, split.test)", "parts = (split.train, split.test, split.holdout)"),
    Fault("the whole image is seen", "runs/trained", "        said.crop,\n", "        1.0,\n"),
    Fault("images of a class without a name", "runs/documents", "max(labels, default=-1) >= len(self.classes)", "False"),
    Fault("a stage is computed twice", "models/trunks", "first = dict(list(stages(trunk).items())[:-count])", "first = dict(list(stages(trunk).items())[: 1 - count])"),
    Fault("a frozen trunk trains with the head", "models/classifier", "        if self.freeze_trunk:\n            self.trunk.eval()", "        if False:\n            self.trunk.eval()"),
    Fault("the spare zero comes before the image", "models/efficientnet", "(total // 2, total - total // 2)", "(total - total // 2, total // 2)"),
    Fault("what something else reads is folded", "models/folding", "if len(node.users) == 1 else None", "if node.users else None"),
    Fault("features depend on the batch", "models/features", "CHUNK - len(images)", "0"),
    Fault("what speaks against a class counts", "models/gradcam", ".sum(1).relu()", ".sum(1).abs()"),
    Fault("borders average their padding", "models/inception", "count_include_pad=False", "count_include_pad=True"),
    Fault("a rebuilt normalisation has the usual eps", "compact/description", 'described["eps"]', "1e-5"),
    Fault("every block adds the bias", "compact/layout", "module.bias.data[seen[block.rows].to(module.bias.device)] = 0", "pass"),
    Fault("several calls pass for one", "compact/timing", "(time.perf_counter() - start) / calls)", "time.perf_counter() - start)"),
    Fault("grouped convolutions are plain", "graph/plain", "and layer.groups != 1:", "and False:"),
    Fault("numbers outside are taken", "commands/flags", "if not least <= value <= most:", "if False:"),
    Fault("other labels keep their numbers", "commands/evaluate", "split.labels = places[split.labels]", "pass"),
    Fault("a run is compared with itself", "commands/runs", "found.setdefault(folder.resolve(), folder)", "found.setdefault(folder, folder)"),
    Fault("a taxonomy changes nothing", "commands/structure", "return dataclasses.replace(structure, **given)", "return structure"),
    Fault("the made compact network is not exported", "commands/export", "if (values.folder / files.COMPACT_MODEL).exists():", "if False:"),
    Fault("the threshold is the usual one", "commands/compact", "return 0.5 if values.threshold is None else values.threshold", "return 0.5"),
    Fault("a figure that fails is no failure", "commands/figures", "return 1 if values.only and drawn < len(numbers) else 0", "return 0"),
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
        for tests in tests_of(fault.file):
            run = _run(tests, folder)
            if run.returncode:
                break
    if run.returncode not in (0, 1):
        raise SystemExit(f"{fault.what}: pytest did not run\n{run.stdout}{run.stderr}")
    first = next((line for line in run.stdout.splitlines() if line.startswith("FAILED")), "")
    print(f"{'caught' if run.returncode else 'MISSED'}  {fault.what:<42} {first[7:]}", flush=True)
    return run.returncode == 1


def _run(tests: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """The tests, with the sources in ``folder`` in place of the installed ones."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
    )


def main() -> None:
    words = sys.argv[1:]
    chosen = [f for f in FAULTS if not words or any(w in f"{f.file} {f.what}" for w in words)]
    missed = [fault.what for fault in chosen if not caught(fault)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults caught")
    if missed:
        raise SystemExit(f"went unnoticed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()

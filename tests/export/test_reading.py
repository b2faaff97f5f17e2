"""What is not an export of ours is told in a line, and nothing in a file is ever executed."""

import contextlib
import copy
import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import safetensors.torch
import torch
from torch import nn

from blockout.export import FORMATS, ExportError, export, load_exported
from blockout.export.archive import SIZE
from blockout.models import ModelConfig, build_model
from blockout.training import TrainedModel

CLASSES = ("ant", "bee", "cat")


def trained_on(trunk: nn.Module | None) -> TrainedModel:
    config = ModelConfig(width=0.05, nodes=8, clusters=2)
    model = build_model(config, classes=3, data_name="own", image_size=32, trunk=trunk)
    return TrainedModel(model.eval(), CLASSES, None, 32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture(scope="module")
def trained() -> dict[str, TrainedModel]:
    """For the graphs a trunk that is quickly traced; only ours can be described as JSON."""
    torch.manual_seed(0)
    quick = trained_on(nn.Sequential(nn.Conv2d(3, 32, 3, stride=4), nn.ReLU()))
    return {"onnx": quick, "pt2": quick, "safetensors": trained_on(None)}


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("exported")
    paths = [export(trained[form], folder / f"net.{form}", form).path for form in FORMATS]
    return {form: path.read_bytes() for form, path in zip(FORMATS, paths, strict=True)}


@pytest.fixture
def complaint(tmp_path):
    """What is said of a file with these contents."""

    def of(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ExportError) as caught:
            load_exported(tmp_path / name)
        said = str(caught.value)
        assert said.startswith(str(tmp_path / name)) and len(said.splitlines()) == 1
        return said.removeprefix(str(tmp_path / name))

    return of


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("content", [b"", b"just some text, by another name\n" * 99, b"\x80" * 999])
def test_rubbish_is_damaged(complaint, form, content):
    assert complaint(f"a.{form}", content).startswith(" is damaged or ")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_truncated_file_is_damaged(complaint, exported, form, share):
    content = exported[form]
    assert complaint(f"a.{form}", content[: int(len(content) * share)]).startswith(" is damaged ")


@pytest.mark.parametrize("form", FORMATS)
def test_a_flipped_bit_anywhere_is_damage_or_does_not_matter(trained, exported, tmp_path, form):
    """Twelve places spread over the file, most of them in the weights."""
    images = torch.randn(2, 3, 32, 32)
    content, path = exported[form], tmp_path / f"a.{form}"
    with torch.no_grad():
        expected = trained[form].model(images)
    noticed = 0
    for place in range(len(content) // 13, len(content), len(content) // 13):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            got = load_exported(path).model(images)
        except ExportError as error:
            noticed += "damaged" in str(error)
        else:
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)  # float32, other order
    assert noticed >= 9  # the rest fell on padding


def foreign(form: str) -> bytes:
    linear, buffer = nn.Linear(3, 2), io.BytesIO()
    if form == "safetensors":
        return safetensors.torch.save(dict(linear.state_dict()))
    if form == "pt2":
        torch.export.save(torch.export.export(linear, (torch.zeros(1, 3),)), buffer)
        return buffer.getvalue()
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(n, 1, [1, 3]) for n in ("x", "y")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", values[:1], values[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10,
    )  # fmt: skip
    return model.SerializeToString()


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_somebody_else_is_told_from_ours(complaint, form):
    assert complaint(f"a.{form}", foreign(form)).startswith(" is not an export of blockout: ")


def with_about(exported: dict[str, bytes], form: str, change: Callable[[dict], object]) -> bytes:
    """The file with another description of itself, and without the checksum that would tell."""
    if form == "pt2":
        return repacked(exported["pt2"], {"extra/blockout.json": lambda b: edited(b, change)})
    if form == "onnx":
        model = onnx.load_model_from_string(exported["onnx"])
        noted = {entry.key: entry.value for entry in model.metadata_props}
        del model.metadata_props[:]
        text = edited(noted["blockout"].encode(), change).decode()
        onnx.helper.set_model_props(model, {"blockout": text})
        return model.SerializeToString()
    weights = safetensors.torch.load(exported["safetensors"])
    return safetensors.torch.save(
        weights, {"blockout": edited(about_of(exported["safetensors"]), change).decode()}
    )


def about_of(content: bytes) -> bytes:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header["__metadata__"]["blockout"].encode()


def edited(text: bytes, change: Callable[[dict], object]) -> bytes:
    described = json.loads(text)
    change(described)
    return json.dumps(described).encode()


def repacked(content: bytes, changes: dict[str, Callable[[bytes], bytes]]) -> bytes:
    """The archive with some records changed, or added where there was none."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        names = [n.partition("/")[2] for n in old.namelist()]
        for name in names:
            record = old.read(f"archive/{name}")
            new.writestr(f"archive/{name}", changes.get(name, bytes)(record))
        for name in set(changes) - set(names):
            new.writestr(f"archive/{name}", changes[name](b""))
    return buffer.getvalue()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d.update(format=2),
            "was written by a newer blockout (format 2; this version reads",
        ),
        (lambda d: d.update(format="1"), "is damaged: its description is wrong"),
        (lambda d: d.pop("format"), "is damaged: its description is wrong"),
        (lambda d: d.pop("classes"), "is damaged: its description is wrong"),
        (lambda d: d.update(classes=["a", 3, None]), "is damaged: its description is wrong"),
        (lambda d: d["classes"].append("x"), "is damaged: it names 4 classes but its outputs are"),
        (
            lambda d: d["preprocessing"].update(image_size=0),
            "Expected `int` >= 1 - at `$.image_size`",
        ),
        (
            lambda d: d["preprocessing"].update(std=[1, 1, 0]),
            "Expected `float` > 0.0 - at `$.std[2]`",
        ),
        (lambda d: d["preprocessing"].update(mean=[1, 1]), "length 3, got 2 - at `$.mean`"),
    ],
)
def test_newer_and_wrong_descriptions_are_told(complaint, exported, form, change, said):
    assert said in complaint(f"a.{form}", with_about(exported, form, change))


@pytest.mark.parametrize("form", FORMATS)
def test_a_description_left_alone_still_loads(exported, tmp_path, form):
    """So that the test above fails for the change and not for the rewriting."""
    path = tmp_path / f"a.{form}"
    path.write_bytes(with_about(exported, form, lambda d: None))
    assert load_exported(path).classes == CLASSES


def test_versions_beyond_these_libraries_are_told(complaint, exported):
    model = onnx.load_model_from_string(exported["onnx"])
    model.ir_version = 999
    said = complaint("a.onnx", model.SerializeToString())
    assert "needs a newer onnxruntime" in said and "999" in said
    newer = repacked(exported["pt2"], {"archive_version": lambda _: b"7"})
    assert "from another version of torch" in complaint("a.pt2", newer)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "asks for auto_map"),
        ({"_attn_implementation": "someone/kernel"}, "asks for _attn_implementation"),
        ({"model_type": "timm_wrapper"}, "no image model that we know"),
        ({"hidden_size": 12 * 80_000}, "and the weights hold"),
    ],
)
def test_a_description_that_would_fetch_code_or_fill_the_memory_is_refused(
    complaint, exported, more, said
):
    def change(described: dict) -> None:
        configuration = {"model_type": "vit", **more}
        trunk = {"kind": "pretrained", "configuration": configuration, "readout": "map"}
        described["architecture"]["trunk"] = {**trunk, "features": 8}

    refused = complaint("a.safetensors", with_about(exported, "safetensors", change))
    assert refused.startswith(" is refused: ") and said in refused


def test_weights_and_outputs_that_are_not_finite_are_told(complaint, trained, exported):
    weights = safetensors.torch.load(exported["safetensors"])
    weights["head.fc1.weight"][0, 0] = float("nan")
    noted = {"blockout": about_of(exported["safetensors"]).decode()}
    said = complaint("a.safetensors", safetensors.torch.save(weights, noted))
    assert said.startswith(" is refused: head.fc1.weight has values that are not finite")
    model = onnx.load_model_from_string(exported["onnx"])
    del model.metadata_props[1:]  # the checksum
    for tensor in model.graph.initializer:
        if tensor.name == "head.classifier.bias":
            tensor.raw_data = b"\x00\x00\xc0\x7f" * 3
    said = complaint("a.onnx", model.SerializeToString())
    assert said == " is damaged: its outputs are not finite (nan or infinite)"


def test_an_onnx_file_reads_no_other_file(complaint, tmp_path, monkeypatch):
    """onnxruntime would read weights from the working folder, and then tell that it is not ours."""
    (tmp_path / "beside.bin").write_bytes(bytes(16))
    monkeypatch.chdir(tmp_path)
    weight = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location="EXTERNAL")
    for key, value in (("location", "beside.bin"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    values = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "y")]
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([add], "g", values[:1], values[1:], [weight]),
        opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10,
    )  # fmt: skip
    said = complaint("a.onnx", model.SerializeToString())
    assert said.startswith(" is damaged or needs a newer onnxruntime: ")
    assert "xternal" in said or "nowhere" in said  # until onnxruntime 1.22: no such file there


@pytest.mark.usefixtures("_patience")
@pytest.mark.parametrize(
    "size", ["1" * 40, "Symbol('s0'" * 20, "Add(" * 90, "-1" * 150, ", " * 150]
)
def test_a_size_of_any_length_is_read_once(complaint, exported, size):
    """A pattern that goes back and tries again takes twice as long for every digit."""
    assert re.fullmatch(SIZE, size + "!") is None
    assert re.fullmatch(SIZE, 1000 * size + "!") is None

    def change(program: dict) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": {"expr_str": size + "!", "hint": {"as_int": 2}}}

    assert " is refused: it holds " in complaint("a.pt2", in_graph(exported["pt2"], change))


@pytest.mark.parametrize(
    "size",
    ["2", "-1", "Symbol('s0')", "Symbol('s77', positive=True, integer=True)",
     "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
     "FloorDiv(Add(Symbol('s0'), 1), Integer(2))"],
)  # fmt: skip
def test_sizes_as_sympy_writes_them_pass(size):
    assert re.fullmatch(SIZE, size)


def deep_of(depth: int) -> Callable[[bytes], bytes]:
    return lambda _: b'{"a": ' * depth + b"1" + b"}" * depth


def test_a_name_that_never_ends_and_nesting_that_never_ends_are_refused(complaint, exported):
    def long(program: dict) -> None:
        program["graph_module"]["graph"]["nodes"][0]["name"] = "x" * 1000

    assert " is refused: it holds " in complaint("a.pt2", in_graph(exported["pt2"], long))
    for depth in (900, 100_000):
        said = complaint("b.pt2", repacked(exported["pt2"], {"models/model.json": deep_of(depth)}))
        assert said.startswith(" is damaged: ")


def test_records_that_share_their_bytes_are_refused(complaint, exported):
    """A thousand entries for one record of a megabyte are a gigabyte."""
    content = bytearray(exported["pt2"])
    buffer = io.BytesIO(bytes(content))
    with zipfile.ZipFile(buffer, "a") as file:
        largest = max(file.infolist(), key=lambda entry: entry.file_size)
        for number in range(200):
            twin = copy.copy(largest)
            twin.filename = f"archive/data/weights/weight_{1000 + number}"
            file.filelist.append(twin)
            file.NameToInfo[twin.filename] = twin
        file._didModify = True
    assert "its records overlap" in complaint("a.pt2", buffer.getvalue())


class Planted:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return exec, (f"open({str(self.mark)!r}, 'w').close()",)


def plant_sample_inputs(content: bytes, mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Planted(mark), buffer)
    return repacked(content, {"data/sample_inputs/model.pt": lambda _: buffer.getvalue()})


def plant_weight(content: bytes, mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Planted(mark), buffer)

    def pickled(config: bytes) -> bytes:
        described = json.loads(config)
        next(iter(described["config"].values())).update(use_pickle=True, path_name="weight_0")
        return json.dumps(described).encode()

    return repacked(content, {
        "data/weights/model_weights_config.json": pickled,
        "data/weights/weight_0": lambda _: buffer.getvalue(),
    })  # fmt: skip


def plant_object(content: bytes, mark: Path) -> bytes:
    payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True,
               "tensor_meta": None}  # fmt: skip
    return repacked(content, {
        "data/constants/model_constants_config.json":
            lambda _: json.dumps({"config": {"x": payload}}).encode(),
        "data/constants/opaque_obj_0": lambda _: pickle.dumps(Planted(mark)),
    })  # fmt: skip


def plant_old_weights(content: bytes, mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Planted(mark), buffer)
    return repacked(content, {"data/weights/model.pt": lambda _: buffer.getvalue()})


def in_graph(content: bytes, change: Callable[[dict], object]) -> bytes:
    return repacked(content, {"models/model.json": lambda b: edited(b, change)})


def plant_size(content: bytes, mark: Path) -> bytes:
    code = f"open({str(mark)!r}, 'w').close()"

    def change(program: dict) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}

    return in_graph(content, change)


def plant_guard(content: bytes, mark: Path) -> bytes:
    """Torch looks at guards where there are sample inputs, here honest ones."""
    buffer = io.BytesIO()
    torch.save(((torch.zeros(2, 3, 32, 32),), {}), buffer)
    guarded = in_graph(
        content, lambda p: p.update(guards_code=[f"open({str(mark)!r}, 'w').close()"])
    )
    return repacked(guarded, {"data/sample_inputs/model.pt": lambda _: buffer.getvalue()})


def plant_name(content: bytes, mark: Path) -> bytes:
    """Names are pasted into the code of the graph."""
    code = json.dumps(f"x=open({str(mark)!r}, 'w').close()").encode()

    def change(record: bytes) -> bytes:
        record = record.replace(b'"name": "x"', b'"name": ' + code)
        return record.replace(b'"x": {"dtype"', code + b': {"dtype"')

    return repacked(content, {"models/model.json": change})


PLANTS = [plant_sample_inputs, plant_weight, plant_object, plant_old_weights, plant_size,
          plant_guard, plant_name]  # fmt: skip


def run_as_torch_does(path: Path) -> None:
    torch.export.load(path).module()(torch.zeros(2, 3, 32, 32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_in_a_pt2_is_unpickled_or_executed(complaint, exported, tmp_path, caplog, plant):
    """Torch itself runs what is planted, whether it complains afterwards or not."""
    mark = tmp_path / "mark"
    planted = plant(exported["pt2"], mark)
    assert " is refused: " in complaint("a.pt2", planted) and not mark.exists()
    caplog.set_level("CRITICAL")
    with contextlib.suppress(Exception):
        run_as_torch_does(tmp_path / "a.pt2")
    assert mark.exists()


def test_a_pickle_by_another_name_is_not_unpickled(complaint, tmp_path):
    mark, buffer = tmp_path / "mark", io.BytesIO()
    torch.save(Planted(mark), buffer)
    for form in FORMATS:
        complaint(f"zip.{form}", buffer.getvalue())
        complaint(f"plain.{form}", pickle.dumps(Planted(mark)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "target",
    ["torch.ops.aten.from_file.default", "torch.os.system", "_operator.methodcaller",
     "torch.ops.aten.relu.__class__", "torch.ops.aten.set_.source_Tensor", "#evil:relu"],
)  # fmt: skip
def test_only_operators_of_networks_are_called(complaint, exported, target):
    """Others read files or memory that is not theirs, or are no operators at all."""

    def change(program: dict) -> None:
        program["graph_module"]["graph"]["nodes"][-1]["target"] = target

    assert f"calls {target!r}" in complaint("a.pt2", in_graph(exported["pt2"], change))


@pytest.mark.parametrize("place", ["name", "key", "as_string"])
def test_a_text_that_is_no_name_is_refused_wherever_it_stands(complaint, exported, place):
    code = "__import__('os')"

    def change(program: dict) -> None:
        node = program["graph_module"]["graph"]["nodes"][0]
        if place == "as_string":
            node["inputs"][0]["arg"] = {"as_string": code}
        else:
            node.update({"name": code} if place == "name" else {code: 1})

    assert f'is refused: it holds "{code}" in place of' in complaint(
        "a.pt2", in_graph(exported["pt2"], change)
    )


def test_torch_is_given_only_what_was_checked(exported, tmp_path, monkeypatch):
    def change(program: dict) -> None:
        program["guards_code"] = ["planted()"]
        program["graph_module"]["graph"]["nodes"][0]["metadata"]["custom"] = '"planted()"'

    given, load = [], torch.export.load
    monkeypatch.setattr(torch.export, "load", lambda f: given.append(f.getvalue()) or load(f))
    (tmp_path / "a.pt2").write_bytes(in_graph(exported["pt2"], change))
    assert load_exported(tmp_path / "a.pt2").classes == CLASSES
    assert b"planted" in (tmp_path / "a.pt2").read_bytes() and b"planted" not in given[0]

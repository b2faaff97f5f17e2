"""A resolved config leaves nothing open, and says which runs are the same but for their seed."""

import dataclasses
import json

import pytest

from blockout.data import DataConfig
from blockout.models import ModelConfig
from blockout.runs import ComputeConfig, OptimisationConfig, RunConfig, RunError, TrainConfig
from blockout.runs.config import read_config

from ..training.conftest import make_images

OPEN = {"per_class", "workers", "cache", "run", "init_from", "wandb", "mlflow", "steps"}
"""None means something there: all images, chosen by the machine, none."""


def with_values(config: TrainConfig, part: str, **values) -> TrainConfig:
    return dataclasses.replace(
        config, **{part: dataclasses.replace(getattr(config, part), **values)}
    )


def test_a_resolved_config_has_every_value_that_training_uses():
    images = make_images(size=32)
    resolved = TrainConfig(DataConfig("cifar100")).for_images(images).flat()
    left = {name for name, value in resolved.items() if value is None}
    assert left == OPEN
    expected = {
        "image_size": 32,
        "trunk": "inception-small",
        "nodes": 512,
        "clusters": 6,
        "dropout": 0.3,
        "epochs": 10,
        "batch_size": 256,
        "lr": 0.4,
        "paper": True,
        "draw_on": 1.0,
        "steady": True,
        "stream": False,
        "log_every": 1,
    }
    assert {name: resolved[name] for name in expected} == expected


def test_steps_that_are_no_whole_epochs_leave_epochs_open():
    config = TrainConfig(optimisation=OptimisationConfig(steps=701, batch_size=16))
    config = config.for_images(make_images())  # five steps per epoch
    assert (config.optimisation.steps, config.optimisation.epochs) == (701, None)
    assert config.run.log_every == 17


def test_one_length_of_training_has_one_name():
    """However it was asked for: two folders would hold the same run."""
    images = make_images()
    steps, epochs = (
        TrainConfig(optimisation=OptimisationConfig(batch_size=16, **length)).for_images(images)
        for length in ({"steps": 10}, {"epochs": 2})
    )
    assert steps == epochs and steps.optimisation.epochs == 2
    assert steps.folder_for(images) == epochs.folder_for(images)


def test_guided_layers_are_drawn_to_the_end_on_a_frozen_trunk_only():
    images = make_images()
    frozen = TrainConfig(model=ModelConfig(freeze_trunk=True)).for_images(images).guidance
    assert (frozen.draw_on, frozen.steady) == (0.3, False), "of few classes"
    learning = TrainConfig(model=ModelConfig(freeze_trunk=False)).for_images(images).guidance
    assert (learning.draw_on, learning.steady) == (1.0, True)


def test_resolving_twice_changes_nothing():
    images = make_images()
    once = TrainConfig().for_images(images)
    assert once.for_images(images) == once == TrainConfig.from_flat(once.flat())


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("model", {"nodes": 512, "clusters": 6}),
        ("model", {"trunk": "compact"}),  # what inception-small was called before
        ("optimisation", {"epochs": 10, "batch_size": 256, "lr": 0.4}),
        ("optimisation", {"paper": True}),
        ("data", {"image_size": 16}),
        ("data", {"cache": "/somewhere/else", "workers": 3}),
        ("compute", {"devices": "1", "accelerator": "cpu"}),
        ("run", {"log_every": 5, "checkpoint_minutes": 1.0}),
        ("model", {"dropout": 0.7}),  # Blockout has no Dropout
        ("guidance", {"budget": 3.0}),  # nothing is guided on CIFAR-100
    ],
)
def test_commands_that_resolve_alike_have_one_folder(part, values):
    images = make_images()
    plain = TrainConfig(DataConfig("cifar100"))
    other = with_values(plain, part, **values).for_images(images)
    assert other.folder_for(images) == plain.for_images(images).folder_for(images)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("model", {"nodes": 256}),
        ("model", {"method": "fc"}),
        ("optimisation", {"seed": 1}),
        ("optimisation", {"lr": 0.1}),
        ("optimisation", {"paper": False}),
        ("data", {"holdout": 0.2}),
        ("data", {"stream": True}),  # other crops
        ("data", {"augment": False}),
        ("optimisation", {"decay": "exponential"}),
        ("compute", {"precision": "bf16-mixed"}),
        ("compute", {"own_draws": True}),
    ],
)
def test_what_changes_the_result_changes_the_folder(part, values):
    images = make_images()
    plain = TrainConfig(DataConfig("cifar100"))
    other = with_values(plain, part, **values).for_images(images)
    assert other.folder_for(images) != plain.for_images(images).folder_for(images)


def test_identity_and_folder_name_no_path_of_this_machine(tmp_path):
    images = make_images()
    config = TrainConfig(
        DataConfig(str(tmp_path / "photos"), cache=tmp_path / "cache"),
        ModelConfig(trunk=str(saved_trunk(tmp_path / "resnet", b"weights"))),
        run=RunConfig(init_from=finished(tmp_path / "earlier", b"weights")),
    ).for_images(images)
    assert config.origins().keys() == {"trunk_weights", "init_from_weights"}
    assert str(tmp_path) not in json.dumps(config.identity(images))
    assert str(tmp_path) not in str(config.folder_for(images))
    assert config.recipe()["data"] == "photos" and config.recipe()["trunk"] == "resnet"


def saved_trunk(folder, weights: bytes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def finished(folder, weights: bytes):
    folder.mkdir(parents=True)
    (folder / "final.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize(
    ("make", "part", "flag"), [(saved_trunk, "model", "trunk"), (finished, "run", "init_from")]
)
def test_what_a_path_stands_for_decides_the_folder_and_not_where_it_lies(
    make, part, flag, tmp_path
):
    images = make_images()
    places = {"a": b"one", "b": b"two", "c": b"one"}
    folders = {}
    for place, weights in places.items():
        path = make(tmp_path / place / "demo", weights)
        given = str(path) if flag == "trunk" else path
        config = with_values(TrainConfig(DataConfig("cifar100")), part, **{flag: given})
        folders[place] = config.for_images(images).folder_for(images)
    assert folders["a"] != folders["b"] and folders["a"] == folders["c"]


def test_a_hub_id_is_kept_whole():
    one, other = (
        TrainConfig(model=ModelConfig(trunk=trunk)).resolved(image_size=224).recipe()
        for trunk in ("hf://org1/vit", "org2/vit")  # the second as older runs have it
    )
    assert (one["trunk"], other["trunk"]) == ("org1/vit", "org2/vit")


def test_an_older_run_goes_on_with_the_clusters_it_began_with(tmp_path):
    images = make_images()  # of four classes
    config = TrainConfig(DataConfig("noise"), run=RunConfig(run=tmp_path))
    now = config.for_images(images)
    assert now.model.clusters == 4
    for begun, clusters in ((6, 6), (None, 6), (4, 4)):  # the oldest left them open
        before = now.flat() | {"clusters": begun}
        (tmp_path / "config.json").write_text(json.dumps(before))
        assert config.for_images(images).model.clusters == clusters
        again = with_values(config, "run", restart=True)
        assert again.for_images(images).model.clusters == 4
        chosen = with_values(config, "model", clusters=3)
        assert chosen.for_images(images).model.clusters == 3


def test_other_images_of_the_same_name_have_another_folder():
    config = TrainConfig(DataConfig("photos"))
    few, many = make_images(80), make_images(120)
    assert config.for_images(few).folder_for(few) != config.for_images(many).folder_for(many)


def test_seeds_and_devices_do_not_make_another_experiment():
    one = TrainConfig(compute=ComputeConfig(devices="1")).resolved(image_size=32, steps=100)
    two = TrainConfig(
        optimisation=OptimisationConfig(seed=7),
        compute=ComputeConfig(devices="4", strategy="ddp", num_nodes=2),
    ).resolved(image_size=32, steps=100)
    assert one.recipe() == two.recipe()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "config.json is damaged"),
        ("[]", "config.json is damaged"),
        ('{"method": "fc"}', "does not say 'data'"),
        ('{"data": "shapes", "method": "fc", "epochs": "ten"}', r"damaged: .*epochs"),
        ('{"data": "shapes", "method": "fc", "epochs": 0}', "--epochs must be at least 1"),
        ('{"data": "shapes", "method": "rose"}', "damaged: .*rose"),
        ('{"data": "shapes", "method": "fc", "lr": 1e400}', "config.json is damaged"),
    ],
)
def test_a_config_that_no_run_wrote_is_refused_by_name(text, complaint, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match=complaint):
        read_config(tmp_path / "config.json")


def test_a_config_is_read_back_as_it_was_written(tmp_path):
    config = TrainConfig(
        run=RunConfig(run=tmp_path, init_from=tmp_path / "earlier"),
        optimisation=OptimisationConfig(steps=3, lr=1),
    ).for_images(make_images())
    (tmp_path / "config.json").write_text(json.dumps(config.flat()))
    assert read_config(tmp_path / "config.json") == config

"""The scikit-learn classifier: its conventions, its accuracy, its structure."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.nn import functional as F

from blockout import Structure
from blockout.estimator import BlockoutClassifier

EXCEPTIONS: dict[str, str] = {}
"""scikit-learn's checks that do not hold, with the reason for each: there are none."""


@parametrize_with_checks(
    [BlockoutClassifier(nodes=16, clusters=2, epochs=20)],
    expected_failed_checks=lambda _: EXCEPTIONS,
)
def test_the_conventions_of_scikit_learn_hold(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine():
    x, y = load_wine(return_X_y=True)
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    return train_test_split(x, names, test_size=0.5, random_state=0, stratify=y)


def test_digits_are_read_about_as_well_as_by_logistic_regression():
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.3, random_state=0)
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    theirs = plain.fit(train_x, train_y).score(test_x, test_y)
    ours = BlockoutClassifier(epochs=10, random_state=0).fit(train_x, train_y)
    assert ours.score(test_x, test_y) > theirs - 0.02
    assert theirs > 0.95
    assert np.mean(ours.loss_curve_[-20:]) < np.mean(ours.loss_curve_[:20]) / 4


@pytest.mark.parametrize("method", ["blockout", "fc", "dropout", "dropconnect", "baseline"])
def test_every_method_learns_wine_with_the_classes_own_names(wine, method):
    train_x, test_x, train_y, test_y = wine
    classifier = BlockoutClassifier(method=method, random_state=0).fit(train_x, train_y)
    assert classifier.score(test_x, test_y) > 0.9
    assert classifier.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    assert hasattr(classifier, "structure_") == (method == "blockout")


def test_guided_memberships_give_a_settled_structure_of_the_named_classes(wine):
    train_x, test_x, train_y, test_y = wine
    classifier = BlockoutClassifier(guided=True, random_state=0).fit(train_x, train_y)
    structure = classifier.structure_
    assert isinstance(structure, Structure)
    assert structure.classes == ("barbera", "barolo", "grignolino")
    rows = np.concatenate([np.ravel(rows) for _, rows in structure.memberships])
    assert set(rows.tolist()) == {0.0, 1.0}
    assert classifier.score(test_x, test_y) > 0.9


def test_the_seed_decides_and_torchs_random_state_is_left_alone(wine):
    train_x, test_x, train_y, _ = wine
    state = torch.random.get_rng_state()
    first, again, other = (
        BlockoutClassifier(epochs=3, random_state=seed).fit(train_x, train_y).predict_proba(test_x)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_normalisation_has_the_statistics_of_the_whole_table_under_expected_weights(wine):
    train_x, _, train_y, _ = wine
    classifier = BlockoutClassifier(epochs=5, random_state=0).fit(train_x, train_y)
    network = classifier.network_
    with torch.no_grad():
        inputs = torch.as_tensor((train_x - train_x.mean(0)) / train_x.std(0))
        norm = network.norm1
        first = F.batch_norm(network.fc1(inputs), None, None, norm.weight, norm.bias, training=True)
        sums = network.fc2(network.act1(first))
    torch.testing.assert_close(network.norm2.running_mean, sums.mean(0))


def test_a_grid_search_chooses_among_clusters(wine):
    train_x, _, train_y, _ = wine
    search = GridSearchCV(
        BlockoutClassifier(epochs=3, random_state=0), {"clusters": [2, 3]}, cv=2
    ).fit(train_x, train_y)
    chosen = search.best_estimator_.network_.fc2.outputs.clusters
    assert chosen == search.best_params_["clusters"]


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("batch_size", 1)])
def test_a_parameter_that_is_too_small_is_named(wine, name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least {value + 1}, got {value}"):
        BlockoutClassifier(**{name: value}).fit(wine[0], wine[2])


def test_importing_blockout_does_not_import_scikit_learn():
    script = "import sys, blockout; print('sklearn' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False False", done.stderr

"""Blockout for tables of features, as a scikit-learn classifier."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from blockout.guidance import Guidance
from blockout.models import Head
from blockout.models.config import Method
from blockout.structure import Structure
from blockout.training.engine import fit, kept_random_state
from blockout.training.evaluation import measure_statistics
from blockout.training.processes import Processes


class BlockoutClassifier(ClassifierMixin, BaseEstimator):
    """A network of two hidden layers that learns how its classes branch.

    Features are standardised. The network is a ``blockout.models.Head``, trained on the CPU.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> classifier = BlockoutClassifier(epochs=20, random_state=0).fit(x, y)
    >>> classifier.predict(x[:2]).tolist()
    [0, 0]
    >>> classifier.structure_.classes
    ('0', '1', '2')

    Args:
        nodes: width of both hidden layers.
        clusters: how many clusters nodes and classes can belong to.
        method: how to train: ``blockout``, or to compare with it ``fc``, ``dropout``,
            ``dropconnect`` or ``baseline`` (no hidden layer).
        epochs: passes over the examples.
        batch_size: examples per step. A last batch that is not full is left out of its epoch.
        lr: peak learning rate.
        weight_decay: of the weights.
        guided: whether memberships are guided towards few clusters and a structure fixed early. By
            default they learn from the loss alone, as in the paper: on scikit-learn's digits, iris
            and wine that is as accurate and two to ten times as fast. Guide them if you want a
            structure of zeros and ones, to read or to cut the network along it; a linear classifier
            then stands beside the layers, and the answer is the mean of both.
        random_state: decides initial weights, order and draws.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: number of features.
        network_: the trained ``Head``, in eval mode; it takes standardised features.
        scaler_: the ``StandardScaler`` of the features.
        loss_curve_: loss of every step.
    """

    def __init__(
        self,
        *,
        nodes: int = 64,
        clusters: int = 4,
        method: Method = "blockout",
        epochs: int = 30,
        batch_size: int = 32,
        lr: float = 0.1,
        weight_decay: float = 1e-4,
        guided: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.nodes = nodes
        self.clusters = clusters
        self.method: Method = method
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.guided = guided
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Trains a new network on a table (examples, features) and one label per example."""
        for name, least in (("epochs", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        checked: Any = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)  # pyright: ignore
        table, names = checked
        check_classification_targets(names)
        encoder = LabelEncoder().fit(names)
        self.classes_ = np.asarray(encoder.classes_)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least two classes, got one class: {self.classes_[0]!r}"
            )
        self.scaler_ = StandardScaler().fit(table)
        labels = torch.as_tensor(encoder.transform(names)).long()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._train(self._inputs(table), labels, seed)
        return self

    def _train(
        self, inputs: Float64[Tensor, "n f"], labels: Int64[Tensor, " n"], seed: int
    ) -> None:
        size = min(self.batch_size, len(labels))
        count = len(labels) // size

        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(labels)))
            for rows in order[: count * size].split(size):
                yield inputs[rows], labels[rows]

        with kept_random_state(Processes()):
            torch.manual_seed(seed)
            network = Head(
                inputs.shape[1],
                len(self.classes_),
                method=self.method,
                nodes=self.nodes,
                clusters=self.clusters,
                with_linear=self._guides,
            ).double()
        self.loss_curve_ = fit(
            network,
            batches,
            steps=self.epochs * count,
            lr=self.lr,
            weight_decay=self.weight_decay,
            guide=Guidance() if self._guides else None,
            seed=seed,
        )
        measure_statistics(network, [inputs])
        self.network_ = network

    @property
    def _guides(self) -> bool:
        return self.guided and self.method == "blockout"

    @torch.no_grad()
    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "examples classes"]:
        """The probability of each class, in the order of ``classes_``."""
        check_is_fitted(self)
        table: Any = validate_data(self, X, dtype=np.float64, reset=False)  # pyright: ignore
        return self.network_(self._inputs(table)).softmax(1).numpy()

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each example."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    @property
    def structure_(self) -> Structure:
        """Which nodes and classes share clusters in the fitted network."""
        check_is_fitted(self)
        if self.method != "blockout":
            raise AttributeError(f"a network of method {self.method!r} has no structure_")
        return Structure.from_model(self.network_, classes=[str(c) for c in self.classes_])

    def _inputs(self, table: np.ndarray) -> Tensor:
        return torch.as_tensor(self.scaler_.transform(table))

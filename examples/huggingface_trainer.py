"""Blockout with a Hugging Face Trainer: python examples/huggingface_trainer.py"""

import tempfile

import torch
from datasets import Dataset
from generated_data import CLASSES, FEATURES, generate
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments, set_seed

import blockout


class Classifier(nn.Module):
    """A plain model for a Trainer: labels in, loss and logits out. ``convert`` adds Blockout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(FEATURES, 128), nn.Linear(128, 128)
        self.fc3 = nn.Linear(128, CLASSES)

    def forward(self, x, labels=None):
        logits = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction) -> dict[str, float]:
    right = prediction.predictions.argmax(1) == prediction.label_ids
    return {"accuracy": right.mean()}


if __name__ == "__main__":
    set_seed(0)
    model = blockout.convert(Classifier(), ["fc2", "fc3"], clusters=4)
    groups = blockout.parameter_groups(model, lr=0.05, weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    train, test = (
        Dataset.from_dict({"x": x.tolist(), "labels": y.tolist()}).with_format("torch")
        for x, y in (generate(8000, seed=1), generate(2000, seed=2))
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=8,
            per_device_train_batch_size=128,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train,
            optimizers=(optimizer, None),
            compute_metrics=accuracy,
        )
        trainer.train()
        result = trainer.evaluate(test)  # pyright: ignore[reportArgumentType]
    print(f"test accuracy {result['eval_accuracy']:.3f}")

"""Blockout with a Lightning Trainer: python examples/lightning_trainer.py"""

import lightning
import torch
from generated_data import CLASSES, FEATURES, generate
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import blockout


class Classifier(lightning.LightningModule):
    """An ordinary module: Blockout takes two layers and one line for the optimiser."""

    def __init__(self) -> None:
        super().__init__()
        fc2 = blockout.BlockoutLinear(128, 128, clusters=4)
        fc3 = blockout.BlockoutLinear(128, CLASSES, clusters=4, inputs=fc2.outputs)
        self.net = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), fc2, nn.ReLU(), fc3)

    def training_step(self, batch, batch_index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def test_step(self, batch, batch_index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        groups = blockout.parameter_groups(self, lr=0.05, weight_decay=1e-4)
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True)


if __name__ == "__main__":
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(TensorDataset(*generate(8000, seed=1)), 128, shuffle=True))
    (result,) = trainer.test(
        model, DataLoader(TensorDataset(*generate(2000, seed=2)), 500), verbose=False
    )
    print(f"test accuracy {result['accuracy']:.3f}")

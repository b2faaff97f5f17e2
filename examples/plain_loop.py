"""Blockout in a plain PyTorch loop: python examples/plain_loop.py (a few seconds on a CPU)."""

import torch
from generated_data import CLASSES, FEATURES, generate
from torch import nn
from torch.nn import functional as F

import blockout

torch.manual_seed(0)
x, y = generate(8000, seed=1)
x_test, y_test = generate(2000, seed=2)

fc2 = blockout.BlockoutLinear(128, 128, clusters=4)
fc3 = blockout.BlockoutLinear(128, CLASSES, clusters=4, inputs=fc2.outputs)
net = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), fc2, nn.ReLU(), fc3)
print(f"memberships before training: P = {fc3.outputs.probabilities.mean():.2f} everywhere")

groups = blockout.parameter_groups(net, lr=0.05, weight_decay=1e-4)
optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
for epoch in range(10):
    net.train()
    for batch in torch.randperm(len(x)).split(128):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        accuracy = (net(x_test).argmax(1) == y_test).float().mean()
    print(f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {accuracy:.3f}")

print("\nlearned P_2: the probability that each class belongs to each cluster")
for name, row in enumerate(fc3.outputs.probabilities.detach()):
    print(f"  class {name:2d}  " + "  ".join(f"{p:.2f}" for p in row))
p_1 = fc2.outputs.probabilities.detach()
low, high = (p_1 < 0.1).float().mean(), (p_1 > 0.9).float().mean()
print(f"hidden nodes: {low:.0%} of P_1 below 0.1, {high:.0%} above 0.9")

dense = blockout.to_dense(net)
with torch.no_grad():
    change = (dense(x_test) - net(x_test)).abs().max()
    sampled = blockout.sample_predictions(net, x_test[:1], transform=lambda z: z.softmax(-1))
print(f"\nas plain layers (to_dense): {dense}\nlargest change of an output: {change:.1e}")
best = int(sampled.mean.argmax())
probability, spread = sampled.mean[0, best], sampled.spread[0, best]
print("first test point, over 32 drawn architectures: ", end="")
print(f"class {best} with probability {probability:.2f} ± {spread:.2f} (truth: {int(y_test[0])})")

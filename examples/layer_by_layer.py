"""Drive twelve layers in a loop, in a fraction of the memory.

Run: python examples/layer_by_layer.py
"""

import torch
from torch import nn

from fxmem import TrainingMemoryConfig, TrainingMemoryManager
from fxmem.budget import format_bytes

BATCH, LENGTH, WIDTH = 8, 64, 64


def main() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True) for _ in range(12)
    )
    optimizer = torch.optim.AdamW(layers.parameters())
    x, target = torch.randn(2, BATCH, LENGTH, WIDTH)

    with TrainingMemoryManager(TrainingMemoryConfig.memory_efficient()) as manager:
        estimate = manager.estimate_memory_savings(0, BATCH, LENGTH, layers=list(layers))
        print(
            f"a step takes {format_bytes(estimate.with_optimization)} instead of "
            f"{format_bytes(estimate.without_optimization)} "
            f"({estimate.savings_percentage:.0f} % less)"
        )
        for step in range(3):
            y = manager.forward_sequence(layers, x)
            loss = nn.functional.mse_loss(y, target)
            loss.backward()  # as far as the last layer's output
            manager.backward_sequence(layers, y.grad)  # the layers, recomputed one by one
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

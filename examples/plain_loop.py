"""Train a plain PyTorch module in 60 % of its memory; the loop stays as it was.

Run: python examples/plain_loop.py
"""

import torch
from torch import nn

import fxmem
from fxmem.budget import format_bytes

BATCH, WIDTH = 512, 256


class Classifier(nn.Module):
    """Twelve layers; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(12)]
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.body(x)), y)


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    plain = fxmem.measure(model, x, y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = fxmem.optimize(model, budget=0.6, example_inputs=(x, y), time_limit=2)
    print(model.plan.summary())
    for step in range(3):
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")
    measured = fxmem.measure(model, x, y)
    print(
        f"peak {format_bytes(measured.peak_bytes)} instead of {format_bytes(plain.peak_bytes)}, "
        f"budget {format_bytes(model.plan.budget_bytes)}"
    )


if __name__ == "__main__":
    main()

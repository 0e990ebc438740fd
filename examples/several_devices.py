"""Train one module on two devices in one process, each with a budget of its own.

The devices are logical ones here: both are the CPU, and each accounts for its own bytes.

Run: python examples/several_devices.py
"""

import torch
from torch import nn

import fxmem
from fxmem.budget import format_bytes

BATCH, WIDTH, WORDS = 512, 192, 400
BUDGETS = {"cpu:0": "3 MiB", "cpu:1": "5 MiB"}


class Tagger(nn.Module):
    """Eight layers between an embedding and a head that share one weight; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return nn.functional.cross_entropy(self.head(x) / WIDTH**0.5, tags)


def main() -> None:
    torch.manual_seed(0)
    model = Tagger()
    words, tags = torch.randint(0, WORDS, (BATCH,)), torch.randint(0, WORDS, (BATCH,))
    plain = fxmem.measure(model, words, tags)
    print(f"on one device a step takes {format_bytes(plain.peak_bytes)}")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = fxmem.optimize(model, BUDGETS, example_inputs=(words, tags), time_limit=2)
    for step in range(3):
        loss = model(words, tags)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")
    measured = fxmem.measure(model, words, tags).device_peak_bytes
    for share in model.plan.devices:
        print(
            f"{share.device}: budget {format_bytes(share.budget_bytes)}, "
            f"predicted {format_bytes(share.peak_bytes)}, "
            f"measured {format_bytes(measured[share.device])}, begins at {share.first}"
        )


if __name__ == "__main__":
    main()

"""Three real models with their loss inside, from configurations with random weights.

The sizes are those of the published comparison (``shared/peers/README.md``): every step takes
about 0.4 s on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Loss = Callable[..., torch.Tensor]
Built = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class WithLoss(torch.nn.Module):
    """A model and its loss: forward returns the scalar loss."""

    def __init__(self, model: torch.nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, *inputs)


def gpt2(dropout: float = 0.0, layers: int = 12) -> Built:
    """GPT-2, 12 layers of width 192, on 8 x 128 tokens of 4,096."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=192,
        n_head=4,
        n_positions=128,
        vocab_size=4096,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )

    def loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens).logits[:, :-1]
        flat = logits.reshape(-1, logits.size(-1))
        return functional.cross_entropy(flat, tokens[:, 1:].reshape(-1))

    return WithLoss(GPT2LMHeadModel(config), loss), (torch.randint(0, 4096, (8, 128)),)


def resnet50() -> Built:
    """ResNet-50 on 16 images of 96 x 96."""
    from transformers import ResNetConfig, ResNetForImageClassification

    def loss(model: torch.nn.Module, images: Any, labels: Any) -> torch.Tensor:
        return functional.cross_entropy(model(pixel_values=images).logits, labels)

    model = ResNetForImageClassification(ResNetConfig(num_labels=100))
    return WithLoss(model, loss), (torch.randn(16, 3, 96, 96), torch.randint(0, 100, (16,)))


def unet() -> Built:
    """A diffusion UNet on 4 images of 32 x 32."""
    from diffusers import UNet2DModel

    def loss(model: torch.nn.Module, noisy: Any, step: Any, noise: Any) -> torch.Tensor:
        return functional.mse_loss(model(noisy, step).sample, noise)

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(64, 128, 128),
        norm_num_groups=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    images = torch.randn(4, 3, 32, 32)
    return WithLoss(model, loss), (images, torch.randint(0, 1000, (4,)), torch.randn_like(images))


MODELS: dict[str, Callable[[], Built]] = {
    "gpt2": gpt2,
    "gpt2-dropout": lambda: gpt2(dropout=0.1),
    "resnet50": resnet50,
    "unet": unet,
}


def build(name: str, seed: int = 0) -> Built:
    """A model in training mode and its inputs, the same ones for the same seed."""
    torch.manual_seed(seed)
    module, inputs = MODELS[name]()
    return module.train(), inputs

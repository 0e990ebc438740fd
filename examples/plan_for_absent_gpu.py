"""Will it fit? Plan a model for a GPU that is not here, without memory for its weights.

Run: python examples/plan_for_absent_gpu.py     (needs fxmem[models])
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fxmem

LENGTH, VOCABULARY = 1024, 50257


def main(layers: int = 24, width: int = 1024, batch: int = 16) -> None:
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, n_positions=LENGTH,
        vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
        tokens = torch.zeros(batch, LENGTH, dtype=torch.long)
    batch_of = {"input_ids": tokens, "labels": tokens}
    for device in ("rtx4090", "a100-80gb"):
        memory = fxmem.costs.DEVICES[device].memory_bytes
        try:
            plan = fxmem.plan(
                model, memory, batch_of, device=device, optimizer="adamw", time_limit=5
            )
        except fxmem.InfeasibleBudget as error:
            print(f"{device}: {error}\n")
        else:
            print(f"{device}:\n{plan.summary()}\n")


if __name__ == "__main__":
    main()

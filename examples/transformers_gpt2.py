"""Train a Transformers language model under a budget; its output object stays as it was.

Run: python examples/transformers_gpt2.py     (needs fxmem[models])
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fxmem
from fxmem.budget import format_bytes

BATCH, LENGTH, VOCABULARY = 4, 64, 512


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_embd=96, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)  # dropout 0.1: the same draws with the plan as without
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    model = fxmem.optimize(model, 0.7, batch, optimizer=optimizer, time_limit=2)
    print(model.plan.summary())
    for step in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")
    print(f"peak at most {format_bytes(model.plan.peak_bytes)}, AdamW's state included")


if __name__ == "__main__":
    main()

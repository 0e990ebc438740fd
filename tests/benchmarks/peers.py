"""The other ways to train the same module: eager, block checkpointing, torch's own planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._dynamo.backends.common import aot_autograd

TORCH_BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0)


def checkpointed(module: torch.nn.Module) -> torch.nn.Module:
    """The module with its library's own block checkpointing switched on."""
    model: Any = module.model
    for name in ("gradient_checkpointing_enable", "enable_gradient_checkpointing"):
        if hasattr(model, name):
            getattr(model, name)()
            return module
    raise ValueError("the model's library has no checkpointing for it")


def torch_budget(module: torch.nn.Module, share: float) -> Callable[..., torch.Tensor]:
    """The module under torch's ``activation_memory_budget``, run operator by operator."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition

    def compiler(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        chosen = {
            "activation_memory_budget": share,
            "activation_memory_budget_solver": "dp",
            "activation_memory_budget_runtime_estimator": "flops",
        }
        with functorch_config.patch(chosen):
            return aot_autograd(
                fw_compiler=compiler,
                bw_compiler=compiler,
                partition_fn=min_cut_rematerialization_partition,
            )(graph, inputs)

    return torch.compile(module, backend=backend, fullgraph=True)

"""The ``"inductor"`` backend: our graphs, compiled further by torch's Inductor.

Private names in use, read in torch 2.13: ``compile_fx_inner``, ``select_decomp_table`` and the
setting ``reorder_for_peak_memory``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx as fx


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What the tracer must take apart for Inductor to lower it."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def compile_graph(
    module: fx.GraphModule, inputs: Sequence[Any], is_backward: bool = False
) -> Callable[[list[Any]], Any]:
    """Compile one graph to a boxed function, in the order that the plan gave it."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    # Its own reordering knows neither our budget nor why a value is made again where it is.
    with config.patch(reorder_for_peak_memory=False):
        compiled: Any = compile_fx_inner(module, inputs, is_backward=is_backward)
    return compiled

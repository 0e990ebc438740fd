"""A plan in a few lines of text."""

from __future__ import annotations

from .budget import format_bytes
from .plan import DeviceShare, Keep, Offload, Plan, Recompute


def summarise(plan: Plan) -> str:
    """Budget, peak, what is kept, computed again and moved, time, arena and quality."""
    kept = [n for n, d in plan.decisions.items() if isinstance(d, Keep)]
    again = {n: d.times for n, d in plan.decisions.items() if isinstance(d, Recompute)}
    kept_bytes = sum(plan.value_bytes[n] for n in kept)
    again_bytes = sum(plan.value_bytes[n] for n in again)
    moved = [n for n, d in plan.decisions.items() if isinstance(d, Offload)]
    moved_bytes = sum(plan.value_bytes[n] for n in moved)
    stall = sum(t.stall for t in plan.transfers)
    toll = sum(t.toll for t in plan.transfers)
    moved_line = []
    if plan.transfers:
        moved_line = [
            f"moved       {len(moved)} values, {format_bytes(moved_bytes)}, "
            f"{len(plan.transfers)} transfers, {stall * 1e3:.1f} ms waited for, "
            f"{toll * 1e3:.1f} ms of the processor"
        ]
    limit = "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)
    arena = "none"
    if plan.pool is not None:
        arena = (
            f"{format_bytes(plan.pool.arena_bytes)}, {plan.pool.ratio:.3f} of what lives at "
            f"once; {plan.pool.share:.1%} of the bytes asked for"
        )
    return "\n".join(
        (
            f"budget      {limit}",
            f"peak        {format_bytes(plan.peak_bytes)} predicted, "
            f"{format_bytes(plan.baseline_peak_bytes)} with everything kept",
            *map(_device_line, plan.devices),
            f"residents   {format_bytes(plan.resident_bytes)}",
            f"kept        {len(kept)} values, {format_bytes(kept_bytes)}",
            f"recomputed  {len(again)} values, {format_bytes(again_bytes)}, "
            f"{sum(again.values())} runs",
            *moved_line,
            f"time        {plan.seconds * 1e3:.1f} ms predicted, {plan.overhead:+.1%} "
            f"over {plan.baseline_seconds * 1e3:.1f} ms",
            f"arena       {arena}",
            f"quality     {plan.status} by {plan.solver}, at most {plan.gap:.2%} above the bound",
        )
    )


def _device_line(share: DeviceShare) -> str:
    limit = "no limit" if share.budget_bytes is None else format_bytes(share.budget_bytes)
    first = f"from {share.first}" if share.first else "no operator"
    return (
        f"{share.device:<11} {format_bytes(share.peak_bytes)} predicted of {limit}, residents "
        f"{format_bytes(share.resident_bytes)}, {share.seconds * 1e3:.1f} ms, {first}"
    )

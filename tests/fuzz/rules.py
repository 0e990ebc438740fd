"""What a random module is made of: each rule adds lines that use the values at hand."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import strategies as st

from tests.fuzz.scope import Scope

UNARY = (
    "torch.tanh({})", "F.gelu({})", "F.relu({})", "torch.sigmoid({})", "F.silu({})",
    "torch.sin({})", "torch.exp(-{}.abs())", "F.softplus({})", "({} * 1.5 - 0.25)",
    "F.hardtanh({})", "{}.clamp(-1, 1)", "(1 / (1 + {}.square()))", "F.leaky_relu({}, 0.1)",
    "F.elu({})", "{}.abs()", "torch.sqrt({}.abs() + 0.1)", "torch.log1p({}.abs())", "{}.neg()",
    "F.mish({})", "torch.atan({})", "torch.erf({})", "F.hardswish({})", "F.logsigmoid({})",
    "torch.rsqrt({}.square() + 1)", '{}.to(torch.float32)', "{}.contiguous()", "{}.clone()",
    'F.gelu({}, approximate="tanh")', "{}.cumsum(-1)", "{}.sort(-1).values", "{}.flip(-1)",
    "{}.roll(1, -1)", "{}.softmax(-1)", "F.log_softmax({}, -1)", "F.normalize({}, dim=-1)",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "torch.where({0} > 0, {0}, {1})",
    "torch.lerp({}, {}, 0.3)", "{0} / (1 + {1}.abs())", "torch.addcmul({0}, {1}, {0}, value=0.5)",
    "torch.hypot({}, {})", "F.smooth_l1_loss({}, {}, reduction='none')",
)  # fmt: skip
REDUCTIONS = (
    "{}.sum(-1, keepdim=True)", "{}.mean(-1, keepdim=True)", "{}.amax(-1, keepdim=True)",
    "{}.var(-1, keepdim=True)", "{}.logsumexp(-1, keepdim=True)", "{}.norm(dim=-1, keepdim=True)",
    "{}.max(-1, keepdim=True).values", "{}.std(-1, keepdim=True)",
)  # fmt: skip
IN_PLACE = (
    "{}.mul_(0.5)", "{}.add_(1.0)", "{}.relu_()", "{}[..., :1].zero_()", "{}[..., ::2] *= 2",
    "{}[0] = 0.5", "{}.clamp_(-2, 2)", "{}.sigmoid_()", "{0}.add_({0}.detach())", "{}.neg_()",
    "{}.select(-1, 0).fill_(0.25)", "{0}.masked_fill_({0} > 1, 0.0)", "{}.exp_()",
    "{}.view(-1)[:3].mul_(3.0)", "F.dropout({}, 0.2, inplace=True)", "{}.uniform_()",
)  # fmt: skip
RANDOM = (
    "F.dropout({}, 0.3)", "({0} + 0.1 * torch.randn_like({0}))", "({0} * torch.rand_like({0}))",
    "({0} * torch.bernoulli(torch.full_like({0}, 0.7)))", "F.rrelu({}, training=True)",
    "({0} * torch.rand({0}.shape[-1]))", "F.alpha_dropout({}, 0.1)",
    "F.feature_alpha_dropout({}, 0.2)", "{0}[torch.randperm({0}.shape[0])]",
    "F.gumbel_softmax({}, dim=-1)", "({0} + torch.normal(0.0, 1.0, {0}.shape))",
)  # fmt: skip
INTEGERS = (
    "{}.argmax(-1)", "({}.detach() * 3).long().clamp(0, 7)", "{}.argsort(-1)",
    "torch.randint(0, 8, {}.shape)", "({} > 0).cumsum(-1)", "{}.topk(2, -1).indices",
)  # fmt: skip
BOOLEANS = ("({} > 0)", "({0} > {0}.mean())", "({}.abs() < 0.5).logical_not()", "{}.isfinite()")
BUFFERS = (
    "{buffer}.lerp_({value}.detach().mean().to({buffer}.dtype), 0.1)",
    "{buffer}.add_(1)",
    "{buffer}.copy_({value}.detach().amax())",
    "{buffer}.mul_(0.5)",
    "{buffer} += {value}.detach().sum()",
)


def unary(scope: Scope) -> None:
    name, shape = scope.value()
    scope.make(scope.choose(UNARY).format(name), shape)


def binary(scope: Scope) -> None:
    name, shape = scope.value()
    alike = [n for n, s in scope.floats.items() if s == shape]
    other = scope.choose([*alike[::-1], "parameter", "row"])
    if other == "parameter":
        other = scope.held("parameter", f"torch.randn{shape}")
    elif other == "row":
        other = scope.held("parameter", f"torch.randn({shape[-1]})")
    scope.unread.discard(other)
    scope.make(scope.choose(BINARY).format(name, other), shape)


def linear(scope: Scope) -> None:
    name, shape = scope.value()
    width = scope.choose((shape[-1], 8, 16))
    bias = scope.choose((True, False))
    layer = scope.layer(f"nn.Linear({shape[-1]}, {width}, bias={bias})")
    scope.make(f"{layer}({name})", (*shape[:-1], width))


def recurrent(scope: Scope) -> None:
    """One layer several times over."""
    name, shape = scope.value()
    layer = scope.layer(f"nn.Linear({shape[-1]}, {shape[-1]}, bias=True)")
    scope.make(f"torch.tanh({layer}({name}))", shape)
    again = next(reversed(scope.floats))
    scope.unread.discard(again)
    scope.make(f"torch.tanh({layer}({again}) + {name})", shape)


def matmul(scope: Scope) -> None:
    name, shape = scope.value()
    alike = [n for n, s in scope.floats.items() if s == shape and len(s) > 1]
    if not alike:
        return
    other = scope.choose(alike[::-1])
    scale = 1 / math.sqrt(shape[-1])
    scope.unread.discard(other)
    scope.make(f"{name} @ {other}.transpose(-1, -2) * {scale:.3f}", (*shape[:-1], shape[-2]))


def norm(scope: Scope) -> None:
    name, shape = scope.value()
    kind = scope.choose(("layer", "batch", "rms", "group", "instance"))
    width = shape[-1]
    if kind == "layer":
        scope.make(f"{scope.layer(f'nn.LayerNorm({width})')}({name})", shape)
    elif kind == "rms":
        scope.make(f"{scope.layer(f'nn.RMSNorm({width})')}({name})", shape)
    elif len(shape) < 3:
        if kind == "batch" and shape[0] > 1 and len(shape) == 2:
            scope.make(f"{scope.layer(f'nn.BatchNorm1d({width})')}({name})", shape)
    elif kind == "batch":
        dims = len(shape) - 2
        if dims <= 3:
            scope.make(f"{scope.layer(f'nn.BatchNorm{dims}d({shape[1]})')}({name})", shape)
    elif kind == "group":
        groups = 2 if shape[1] % 2 == 0 else 1
        scope.make(f"{scope.layer(f'nn.GroupNorm({groups}, {shape[1]})')}({name})", shape)
    elif math.prod(shape[2:]) > 1 and len(shape) == 3:
        layer = scope.layer(f"nn.InstanceNorm1d({shape[1]}, affine=True)")
        scope.make(f"{layer}({name})", shape)


def reduction(scope: Scope) -> None:
    name, shape = scope.value()
    if shape[-1] > 1:
        scope.make(scope.choose(REDUCTIONS).format(name), (*shape[:-1], 1))


def view(scope: Scope) -> None:
    name, shape = scope.value()
    half = max(1, shape[-1] // 2)
    views = [
        (f"{name}.transpose(0, -1)", (*shape[-1:], *shape[1:-1], *shape[:1])),
        (f"{name}[..., :{half}]", (*shape[:-1], half)),
        (f"{name}[..., ::2]", (*shape[:-1], -(-shape[-1] // 2))),
        (f"{name}.unsqueeze(0)", (1, *shape)),
        (f"{name}.unsqueeze(0).expand(2, {', '.join('-1' for _ in shape)})", (2, *shape)),
        (f"{name}.flatten(1)", (shape[0], math.prod(shape[1:])) if len(shape) > 1 else shape),
        (f"{name}.reshape({shape[-1]}, -1)", (shape[-1], math.prod(shape[:-1]))),
        (f"{name}.detach()", shape),
        (f"{name}.view_as({name})", shape),
    ]  # fmt: skip
    views = [v for v in views if len(v[1]) <= 4 and math.prod(v[1]) <= 16384]
    if len(shape) == 1:
        views = views[1:3]
    scope.make(*scope.choose(views))


def pieces(scope: Scope) -> None:
    """Several values out of one operator."""
    name, shape = scope.value()
    if shape[-1] % 2:
        return
    halves = (*shape[:-1], shape[-1] // 2)
    how = scope.choose(
        (
            ".chunk(2, -1)",
            f".split({shape[-1] // 2}, -1)",
            f".unflatten(-1, (2, -1)).unbind({len(shape) - 1})",
        )
    )
    first, second = f"v{scope.fresh + 1}", f"v{scope.fresh + 2}"
    scope.fresh += 2
    scope.line(f"{first}, {second} = {name}{how}")
    scope.floats |= {first: halves, second: halves}
    scope.unread |= {first, second}


def join(scope: Scope) -> None:
    name, shape = scope.value()
    alike = [n for n, s in scope.floats.items() if s == shape]
    other = scope.choose(alike[::-1])
    scope.unread.discard(other)
    if scope.draw(st.booleans()) and len(shape) < 4:
        scope.make(f"torch.stack([{name}, {other}])", (2, *shape))
    else:
        scope.make(f"torch.cat([{name}, {other}], -1)", (*shape[:-1], 2 * shape[-1]))


def attention(scope: Scope) -> None:
    found = scope.value(3)
    if found is None:
        return
    name, shape = found
    batch, length, width = shape
    if width % 2:
        return
    layer = scope.layer(f"nn.Linear({width}, {3 * width}, bias=True)")
    q, k, v = (f"q{scope.fresh}", f"k{scope.fresh}", f"w{scope.fresh}")
    heads = f"t.view({batch}, {length}, 2, {width // 2}).transpose(1, 2)"
    scope.line(f"{q}, {k}, {v} = ({heads} for t in {layer}({name}).chunk(3, -1))")
    causal = f"torch.ones({length}, {length}, dtype=torch.bool).tril()"
    zeros = f"{q}.new_zeros({length}, {length})"
    masks = (f", attn_mask={causal}", f", attn_mask={zeros}")
    how = scope.choose(("", ", is_causal=True", ", dropout_p=0.2", *masks))
    mixed = f"F.scaled_dot_product_attention({q}, {k}, {v}{how})"
    scope.make(f"{mixed}.transpose(1, 2).reshape({batch}, {length}, {width})", shape)


def convolution(scope: Scope) -> None:
    rank = scope.choose((3, 4))
    found = scope.value(rank)
    if found is None:
        return
    name, shape = found
    channels = scope.choose((shape[1], 4))
    layer = scope.layer(f"nn.Conv{rank - 2}d({shape[1]}, {channels}, 3, padding=1)")
    scope.make(f"{layer}({name})", (shape[0], channels, *shape[2:]))


def pool(scope: Scope) -> None:
    rank = scope.choose((3, 4))
    found = scope.value(rank)
    if found is None or min(found[1][2:]) < 2:
        return
    name, shape = found
    kind = scope.choose(("max", "avg", "interpolate"))
    if kind == "interpolate":
        mode = "nearest"
        if math.prod(shape) <= 4096:
            grown = (*shape[:2], *(2 * s for s in shape[2:]))
            scope.make(f'F.interpolate({name}, scale_factor=2, mode="{mode}")', grown)
    else:
        halved = (*shape[:2], *(s // 2 for s in shape[2:]))
        scope.make(f"F.{kind}_pool{rank - 2}d({name}, 2)", halved)


def in_place(scope: Scope) -> None:
    name, _ = scope.value()
    scope.line(scope.choose(IN_PLACE).format(name))
    scope.unread.add(name)


def random(scope: Scope) -> None:
    name, shape = scope.value()
    scope.make(scope.choose(RANDOM).format(name), shape)


def integer(scope: Scope) -> None:
    """An integer value, and sometimes a use of one."""
    name, shape = scope.value()
    text = scope.choose(INTEGERS)
    made = {"argmax": shape[:-1], "topk": (*shape[:-1], 2)}
    rank = next((s for word, s in made.items() if word in text), shape)
    if "topk" in text and shape[-1] < 2:
        return
    index = scope.make(text.format(name), rank, "integers")
    use = scope.choose(("none", "gather", "embedding", "one hot", "index"))
    if use == "gather" and text == "{}.argsort(-1)":
        scope.make(f"{name}.gather(-1, {index})", shape)
    elif use == "embedding" and math.prod(rank) <= 1024 and len(rank) <= 3:
        table = scope.layer("nn.Embedding(8, 8)")
        scope.make(f"{table}({index} % 8)", (*rank, 8))
    elif use == "one hot" and math.prod(rank) <= 1024 and len(rank) <= 3:
        scope.make(f"F.one_hot({index} % 4, 4).to({name}.dtype)", (*rank, 4))
    elif use == "index":
        scope.make(
            f"{name}[{index}.flatten()[:3] % {shape[0]}]", (min(3, math.prod(rank)), *shape[1:])
        )


def boolean(scope: Scope) -> None:
    name, shape = scope.value()
    mask = scope.make(scope.choose(BOOLEANS).format(name), shape, "booleans")
    use = scope.choose(("masked_fill", "where", "cast", "none"))
    if use == "masked_fill":
        scope.make(f"{name}.masked_fill({mask}, 0.5)", shape)
    elif use == "where":
        scope.make(f"torch.where({mask}, {name}, {name} * 2)", shape)
    elif use == "cast":
        scope.make(f"{name} * {mask}", shape)


def buffer(scope: Scope) -> None:
    name, shape = scope.value()
    kept = scope.held("buffer", scope.choose(("torch.zeros(())", f"torch.zeros({shape[-1]})")))
    if scope.draw(st.booleans()):
        scope.make(f"{name} + {kept}", shape)
    scope.line(scope.choose(BUFFERS).format(buffer=kept, value=name))
    if scope.draw(st.booleans()):
        scope.make(f"{name} * {kept}", shape)


RULES: tuple[Callable[[Scope], None], ...] = (
    unary, linear, binary, norm, view, attention, convolution, matmul, in_place, random,
    pieces, join, reduction, recurrent, integer, boolean, buffer, pool,
)  # fmt: skip

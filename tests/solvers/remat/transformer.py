"""A synthetic transformer's training step as plain numbers, of any number of layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from fxmem.solvers.remat import RematProblem

MATMUL, ELEMENT = 60, 1  # nanoseconds for each KiB that is written


@dataclass
class Tape:
    """Operators so far; ``forward`` also notes what its gradient needs."""

    time: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    backward: list[tuple[int, tuple[int, ...], tuple[int, ...], int, int]] = field(
        default_factory=list
    )

    def run(self, size: int, rate: int, reads: tuple[int, ...]) -> int:
        """One operator that writes ``size`` KiB; the number of its storage."""
        self.time.append(max(1, rate * size))
        self.size.append(size * 1024)
        self.reads.append(reads)
        return len(self.time) - 1

    def forward(
        self, size: int, rate: int, reads: tuple[int, ...], saved: tuple[int, ...], weight: int = 0
    ) -> int:
        """One operator whose gradient reads ``saved``; ``weight`` KiB of parameters."""
        out = self.run(size, rate, reads)
        self.backward.append((out, reads, saved, rate, weight))
        return out


def layer(tape: Tape, x: int, width: int) -> int:
    """Attention and a perceptron, operator by operator; ``width`` KiB of residual stream."""

    def norm(x: int) -> int:
        mean = tape.forward(1, ELEMENT, (x,), (x,))
        scale = tape.forward(1, ELEMENT, (x, mean), (x, mean))
        unit = tape.forward(width, ELEMENT, (x, mean, scale), (x, mean, scale))
        return tape.forward(width, ELEMENT, (unit,), (unit,), weight=1)

    def linear(x: int, out: int) -> int:
        y = tape.forward(out, MATMUL, (x,), (x,), weight=width // 4)
        return tape.forward(out, ELEMENT, (y,), (), weight=1)

    def dropout(x: int, size: int) -> int:
        mask = tape.run(size // 4, ELEMENT, ())
        out = tape.run(size, ELEMENT, (x, mask))
        tape.backward.append((out, (x,), (mask,), ELEMENT, 0))
        return out

    h = norm(x)
    q, k, v = (linear(h, width) for _ in range(3))
    scores = tape.forward(2 * width, MATMUL // 4, (q, k), (q, k))
    scores = tape.forward(2 * width, ELEMENT, (scores,), ())
    soft = tape.run(2 * width, ELEMENT, (scores,))
    tape.backward.append((soft, (scores,), (soft,), ELEMENT, 0))
    soft = dropout(soft, 2 * width)
    mixed = tape.forward(width, MATMUL // 4, (soft, v), (soft, v))
    x = tape.forward(width, ELEMENT, (x, dropout(linear(mixed, width), width)), ())
    h = linear(norm(x), 4 * width)
    cube = tape.forward(4 * width, ELEMENT, (h,), (h,))
    inner = tape.forward(4 * width, ELEMENT, (h, cube), ())
    bent = tape.run(4 * width, ELEMENT, (inner,))
    tape.backward.append((bent, (inner,), (bent,), ELEMENT, 0))
    one = tape.forward(4 * width, ELEMENT, (bent,), ())
    h = tape.forward(4 * width, ELEMENT, (h, one), (h, one))
    return tape.forward(width, ELEMENT, (x, dropout(linear(h, width), width)), ())


def transformer(layers: int, width: int = 64) -> RematProblem:
    """The step of ``layers`` layers, about 105 operators each; gradients of weights are kept."""
    tape = Tape()
    x = tape.run(width, ELEMENT, ())
    for _ in range(layers):
        x = layer(tape, x, width)
    loss = tape.forward(1, ELEMENT, (x,), (x,))
    turn = tape.run(0, 0, (loss,))
    gradient: dict[int, int] = {loss: turn}
    keep = [loss]
    for out, inputs, saved, rate, weight in reversed(tape.backward):
        if out not in gradient:
            continue
        needs = (gradient[out], *saved)
        if weight:
            keep.append(tape.run(weight, rate, needs))
        for x in dict.fromkeys(inputs):
            part = tape.run(tape.size[x] // 1024, rate, needs)
            if x in gradient:
                part = tape.run(tape.size[x] // 1024, ELEMENT, (gradient[x], part))
            gradient[x] = part
    count = len(tape.time)
    return RematProblem(
        time=tuple(tape.time),
        size=tuple(tape.size),
        reads=tuple(tape.reads),
        writes=tuple((v,) for v in range(count)),
        turn=turn,
        keep=frozenset(keep),
    )

"""What a table does in a PyTorch model, found with numbers alone.

Move the table in one role, replace what a call returns by known numbers, and look at what comes out
further on. No graph is built and no operation is interpreted: a factor is whatever known numbers were
multiplied by. Tests hold the trace against it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.errors import RangeError
from tiebeam.testing._replay import GATHERS, PRODUCTS, Call, again, run, tensors_in

if TYPE_CHECKING:
    import torch

TOLERANCE = 2e-3
CUTS = frozenset({"__getitem__", "narrow", "select", "chunk", "split", "unbind"})
HUGE = 1e6


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe measured.

    Attributes:
        lookups, readouts: How many calls read the table in each role.
        tied: Moving the table in either role alone moves what the model computes.
        lookup_factor: What the rows are multiplied by, or None (no lookup, a vector, calls that differ).
        readout_factor: What the product with the table is multiplied by, hidden state included; likewise.
        soft_cap: The bound of the logits, where raising them without end finds one.
        readout_bias: Whether a parameter of one number per row is added to the logits.
        norm_after_lookup: Whether the size of the stream that the rows enter is without effect.
    """

    lookups: int
    readouts: int
    tied: bool
    lookup_factor: float | None
    readout_factor: float | None
    soft_cap: float | None
    readout_bias: bool
    norm_after_lookup: bool


@dataclass(frozen=True, slots=True)
class _Walk:
    factor: float | None
    cap: float | None
    end: int
    stream: int = -1  # the call that gave the values at the end, before casts and the like


def probe_table(
    model: "torch.nn.Module", inputs: Any, table: Any, readout: Any = None, *, vocab_axis: int = 0
) -> Probed:
    """Measure the roles, factors, soft cap and bias of one table.

    Args:
        model: In eval mode (a dropout at work is noise to the probe); on a real device.
        inputs: A tuple is positional, a dict is keyword arguments, a tensor is one argument.
        table: The parameter, shape (vocab, width), or its path.
        readout: The readout's parameter or path where it is another object.
        vocab_axis: 1 where the table is stored as (width, vocab).

    Returns:
        The measurements. The model is left as it was.

    Raises:
        InputError: The model refused the inputs.
        RangeError: The table is no floating-point matrix, or holds values that are not finite.

    Assumes: equal calls in every pass, vocab and width unequal.

    Example:
        >>> import torch
        >>> class Tiny(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.table = torch.nn.Embedding(11, 4)
        ...     def forward(self, ids):
        ...         return 0.5 * torch.nn.functional.linear(3 * self.table(ids), self.table.weight)
        >>> p = probe_table(Tiny(), torch.tensor([[1, 2]]), "table.weight")
        >>> p.tied, round(p.lookup_factor, 4), round(p.readout_factor, 4)
        (True, 3.0, 1.5)
    """
    import torch

    parameters = dict(model.named_parameters(remove_duplicate=False))
    first = parameters[table] if isinstance(table, str) else table
    second = parameters[readout] if isinstance(readout, str) else readout
    if first.dim() != 2 or not first.is_floating_point() or not bool(torch.isfinite(first).all()):
        raise RangeError(
            "the probe needs a finite floating-point matrix",
            got=f"{first.dtype} of shape {tuple(first.shape)}",
        )
    tables = {id(t): t for t in (first, second) if t is not None}
    return _Probe(model, inputs, tables, first.shape[vocab_axis], first.shape[1 - vocab_axis]).result()


class _Probe:
    def __init__(self, model: Any, inputs: Any, tables: Any, vocab: int, width: int) -> None:
        import torch

        self.model, self.inputs, self.tables, self.vocab, self.width = model, inputs, tables, vocab, width
        run(model, inputs, tables)  # what a first pass alone does (rescaling, caches) is done now
        self.base = run(model, inputs, tables, record=True, shadow=torch.ones_like)
        roles = {c.index: self._role(c) for c in self.base if c.table_args}
        self.lookups = [c for c in self.base if roles.get(c.index) == "lookup"]
        self.readouts = [c for c in self.base if roles.get(c.index) == "readout"]

    def _role(self, call: Call) -> str:
        import torch

        others = [t for i, t in enumerate(tensors_in((call.args, call.kwargs))) if i not in call.table_args]
        if call.name in GATHERS:
            integral = any(not t.is_floating_point() for t in others)
            return "lookup" if integral else ""
        if call.name not in PRODUCTS or call.unit is None:
            return ""
        summed = next((n for n in (_summed(call.unit, o, call.outs[0]) for o in others) if n), 0)
        if summed not in (self.width, self.vocab):
            ones = [torch.ones_like(t) for t in tensors_in((call.args, call.kwargs))]
            summed = round(_constant(again(call, ones)) or 0.0)
        return {self.width: "readout", self.vocab: "lookup"}.get(summed, "")

    def result(self) -> Probed:
        looks = [self._lookup(c) for c in self.lookups]
        reads = [self._readout(c) for c in self.readouts]
        return Probed(
            lookups=len(looks),
            readouts=len(reads),
            tied=self._moves(self.lookups) and self._moves(self.readouts),
            lookup_factor=_agreed([w.factor for w in looks]),
            readout_factor=_agreed([w.factor for w in reads]),
            soft_cap=_agreed([w.cap for w in reads]),
            readout_bias=bool(reads) and self._bias(self.readouts[0], reads[0]),
            norm_after_lookup=bool(looks) and self._size_is_without_effect(looks),
        )

    def _moves(self, calls: list[Call]) -> bool:
        """Whether the last call of the pass sees a move of the table in these calls alone."""
        import torch

        if not calls:
            return False
        noise = torch.Generator().manual_seed(0)

        def move(t: torch.Tensor) -> torch.Tensor:
            return t + torch.randn(t.shape, generator=noise).to(t) * t.float().std().to(t)

        after = run(self.model, self.inputs, self.tables, shadow=move, shadow_calls=frozenset(c.index for c in calls))
        pairs = [(a, b) for a, b in zip(self.base, after, strict=False) if a.index > calls[0].index]
        pairs += [(a, b) for a, b in zip(self.base, after, strict=False) if a.index == calls[-1].index]
        return any(
            x.shape != y.shape or not torch.equal(x, y) for a, b in pairs for x, y in zip(a.outs, b.outs, strict=False)
        )

    # -- forwards: known numbers in, look at what they became --

    def _forward_walk(self, call: Call, start: Callable[["torch.Tensor"], "torch.Tensor"], bounded: bool) -> _Walk:
        import torch

        grid = torch.randint(1, 9, call.outs[0].shape, generator=torch.Generator().manual_seed(1))

        def passed(add: Callable[[torch.Tensor], torch.Tensor]) -> list[Call]:
            swap = {call.index: lambda t: start(t) + add(t)}
            return run(self.model, self.inputs, self.tables, swap=swap)

        runs = [
            passed(torch.zeros_like),
            passed(torch.ones_like),
            passed(lambda t: grid.to(t)),
            passed(lambda t: torch.full_like(t, HUGE)) if bounded else [],
        ]
        walk = _Walk(1.0, None, call.index, call.index)
        values = runs[0][call.index].outs[0]
        for i in range(call.index + 1, min(len(r) for r in runs if r)):
            steps = [r[i] for r in runs if r]
            if len({s.name for s in steps}) > 1 or len({tuple(t.shape for t in s.outs) for s in steps}) > 1:
                break
            if not steps[0].outs[0].is_floating_point():
                continue
            if steps[0].outs[0].numel() * 2 < values.numel() and steps[0].name not in CUTS:
                continue  # a side branch: a size, a maximum
            found = _response([s.outs[0] for s in steps])
            if found == "none":
                continue
            if isinstance(found, str):
                return walk if found == "end" else _Walk(None, walk.cap, walk.end, walk.stream)
            same = torch.equal(values.reshape(-1).double(), steps[0].outs[0].reshape(-1).double())
            walk = _Walk(found[0], found[1], i, walk.stream if same else i)
            values = steps[0].outs[0]
        return walk

    def _lookup(self, call: Call) -> _Walk:
        walk = self._forward_walk(call, lambda t: t, bounded=False)
        own = _constant(call.unit) if call.unit is not None else None
        if walk.factor is None or own is None:
            return _Walk(None, None, walk.end, walk.stream)
        return _Walk(walk.factor * own, None, walk.end, walk.stream)

    def _readout(self, call: Call) -> _Walk:
        import torch

        walk = self._forward_walk(call, torch.zeros_like, bounded=True)
        own = _constant(call.unit) if call.unit is not None else None
        if walk.factor is None or own is None:
            return _Walk(None, walk.cap, walk.end)
        given = list(tensors_in((call.args, call.kwargs)))
        hidden = max((i for i in range(len(given)) if i not in call.table_args), key=lambda i: given[i].numel())
        hidden = next(
            (i for i in range(len(given)) if i not in call.table_args and self._source(call, i) is not None),
            hidden,
        )

        def product(fill: float) -> torch.Tensor:
            new = [torch.ones_like(t) if i in call.table_args else t for i, t in enumerate(given)]
            new[hidden] = torch.full_like(given[hidden], fill)
            return again(call, new)

        inside = _constant(product(1.0) - product(0.0))
        before = self._backward_walk(call, hidden)
        if inside is None or before is None:
            return _Walk(None, walk.cap, walk.end)
        return _Walk(walk.factor * own * inside / self.width * before, walk.cap, walk.end)

    # -- backwards from the readout's input: each call made again on other numbers --

    def _source(self, call: Call, position: int) -> Call | None:
        wanted = call.ids[position]
        return next((c for c in reversed(self.base[: call.index]) if wanted in c.out_ids), None)

    def _backward_walk(self, call: Call, position: int) -> float | None:
        factor = 1.0
        while (source := self._source(call, position)) is not None:
            given = list(tensors_in((source.args, source.kwargs)))
            streams = [
                i for i, t in enumerate(given)
                if t.is_floating_point() and t.numel() > 1 and self._source(source, i) is not None
            ]  # fmt: skip
            if len(streams) != 1 or source.table_args or source.out_ids[0] != call.ids[position]:
                break
            step = _multiplied_by(source, given, streams[0])
            if step is None:
                break
            factor *= step
            call, position = source, streams[0]
        return factor

    # -- whole passes --

    def _bias(self, call: Call, walk: _Walk) -> bool:
        """Whether 1 more in the last of one number a row moves its logits alone (zeros count)."""
        import torch

        rows = {self.vocab, *(call.unit.shape if call.unit is not None else ())} - {self.width}
        for parameter in {id(p): p for p in (*self.model.parameters(), *self.model.buffers())}.values():
            if parameter.numel() not in rows or not parameter.is_floating_point():
                continue
            if max(parameter.shape, default=0) != parameter.numel():
                continue
            before = parameter.detach().clone()
            try:
                with torch.no_grad():
                    parameter.view(-1)[-1] += 1
                after = run(self.model, self.inputs, self.tables)
            finally:
                with torch.no_grad():
                    parameter.copy_(before)
            for i in (i for i in (call.index, walk.end) if i < len(after)):
                moved = int((after[i].outs[0] != self.base[i].outs[0]).sum())
                if moved and moved * parameter.numel() <= call.outs[0].numel():
                    return True
        return False

    def _size_is_without_effect(self, looks: list[_Walk]) -> bool:
        """Whether streams of size 1 and 2 give one result (1, so that no epsilon counts)."""

        def scaled(to: float) -> list[Call]:
            swap = {
                w.stream: lambda t: t * (to / t.double().square().mean().sqrt().clamp_min(1e-30)).to(t) for w in looks
            }
            return run(self.model, self.inputs, self.tables, swap=swap)

        small, large = scaled(1.0), scaled(2.0)
        if len(small) != len(large):
            return False
        at = self.readouts[-1].index if self.readouts else -1
        a, b = (r[at].outs[0].double() for r in (small, large))
        return a.shape == b.shape and float((a - b).norm()) <= 1e-4 * float(a.norm())


def _summed(table: "torch.Tensor", other: "torch.Tensor", out: "torch.Tensor") -> int:
    """How many terms a plain or batched product adds up, by the sizes alone; 0 where none fits."""
    for n in table.shape[-2:]:
        plain = n and out.numel() == other.numel() // n * (table.numel() // n)
        batch = table.shape[0] if table.dim() == 3 else 0
        batched = batch > 1 and out.numel() * n * n * batch == other.numel() * table.numel()
        if plain or batched:
            return n
    return 0


def _response(outs: list["torch.Tensor"]) -> "str | tuple[float, float | None]":
    """How one later result answers 0, 1, a grid of 1 to 8 and a huge number: (slope, bound) or a word."""
    import torch

    zero, one, grid, *huge = (t.double() for t in outs)
    if torch.equal(zero, one) and torch.equal(zero, grid):
        return "none"
    one, grid = one - zero, grid - zero
    live = one.abs() > 1e-5 * float(grid.abs().max())
    slope = _constant(one[live]) if bool(live.any()) else None
    if slope is None:
        linear = bool(live.any()) and bool(torch.allclose((grid / one)[live], (grid / one)[live].round(), atol=1e-2))
        return "vector" if linear else "end"
    steps = grid[live] / slope
    straight = not huge or bool(
        torch.allclose((huge[0] - zero)[live] / (slope * HUGE), torch.ones(()).double(), atol=0.05)
    )
    if straight and bool(torch.allclose(steps, steps.round(), atol=TOLERANCE * 8)) and float(steps.max()) > 1.5:
        return slope, None
    cap = _constant((huge[0] - zero)[live]) if huge else None
    if cap is None or abs(slope) >= abs(cap):
        return "end"
    slope = abs(cap) * float(torch.atanh(torch.tensor(slope / abs(cap), dtype=torch.float64)))
    levels = torch.atanh(grid[live] / abs(cap)) * abs(cap) / slope
    fits = bool(torch.allclose(levels, levels.round(), atol=0.05))
    return (slope, abs(cap)) if fits else "end"


def _multiplied_by(call: Call, given: list["torch.Tensor"], position: int) -> float | None:
    """What the call multiplies one argument by, or None where it does anything else to it."""
    import torch

    noise = torch.Generator().manual_seed(2)
    grid = torch.randint(1, 9, given[position].shape, generator=noise).to(given[position])
    found: list[float] = []
    for shaken in (False, True):
        rest = [
            t + torch.rand(t.shape, generator=noise).to(t) if shaken and t.is_floating_point() and t.numel() > 1 else t
            for t in given
        ]

        def moved(by: torch.Tensor | float, rest: list[torch.Tensor] = rest) -> torch.Tensor:
            return again(call, [t + by if i == position else t for i, t in enumerate(rest)]).double()

        zero = moved(0.0)
        slope = _constant(moved(1.0) - zero)
        if slope is None or slope == 0.0 or (zero.numel() * 2 < given[position].numel() and call.name != "__getitem__"):
            return None
        steps = (moved(grid) - zero) / slope
        if not torch.allclose(steps, steps.round(), atol=1e-2):
            return None
        found.append(slope)
    return found[0] if abs(found[0] - found[1]) <= TOLERANCE * abs(found[0]) else None


def _constant(t: "torch.Tensor") -> float | None:
    """The one value that a tensor holds everywhere, or None."""
    if not t.numel():
        return None
    t = t.double()
    mean = float(t.mean())
    return mean if float((t - mean).abs().max()) <= TOLERANCE * abs(mean) + 1e-12 else None


def _agreed(numbers: list[float | None]) -> float | None:
    known = [n for n in numbers if n is not None]
    if not known or len(known) < len(numbers):
        return None
    return known[0] if all(abs(n - known[0]) <= TOLERANCE * abs(known[0]) for n in known) else None

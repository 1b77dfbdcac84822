"""Building nodes of core's graph: ids, shapes and axes. What each operation means is in `ops`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from tiebeam.backends.torch.lowering.views import view_axes
from tiebeam.backends.torch.recording.ledger import Draft, Implied, Ledger, uniform_number
from tiebeam.backends.torch.recording.record import Record, Ref
from tiebeam.ir import Axes, Node, Op, Origin, Value

_DTYPES = {d: str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}


@lru_cache(maxsize=1 << 12)  # the layers of a model repeat each other's shapes
def broadcast(shape: tuple[int, ...], out: tuple[int, ...]) -> Axes:
    """Axes aligned from the right; an operand's axis of size 1 that is stretched carries nothing."""
    shift = len(out) - len(shape)
    return tuple(
        i - shift if i >= shift and (shape[i - shift] == n or shape[i - shift] != 1) else -1 for i, n in enumerate(out)
    )


def refs_of(args: Any) -> list[Ref]:
    """Every tensor argument, nested ones too."""
    if isinstance(args, Ref):
        return [args]
    if isinstance(args, tuple):
        return [r for a in args for r in refs_of(a)]
    return []


class Lowering:
    """Builds nodes; one method a shape of operation, called by the table in `ops`."""

    def __init__(self, ledger: Ledger) -> None:
        self.drafts = ledger.drafts
        self.leaves = ledger.tensors
        self.nodes: list[Node] = []
        self.producers: dict[int, int] = {}
        self.literals: dict[complex, int] = {}
        self.record: Record

    def shape(self, value: int) -> tuple[int, ...]:
        return self.drafts[value].geometry[1]

    def operand(self, a: Any) -> tuple[int, bool | None]:
        """Value id of an argument (a number becomes a literal), and whether it carried a gradient."""
        if isinstance(a, Ref):
            return a.value, a.attached
        number = a if isinstance(a, complex) else float(a)
        if number not in self.literals:
            self.literals[number] = len(self.drafts)
            real = None if isinstance(number, complex) else number
            self.drafts.append(Draft((0, (), (), torch.float32), Origin.LITERAL, number=real))
        return self.literals[number], None

    def emit(
        self, op: Op, inputs: Sequence[Any], axes: Sequence[Axes | None], outputs: Sequence[int], **facts: Any
    ) -> int:
        """Append a node; `inputs` are arguments of the record, or (value, attached) pairs."""
        operands = [a if isinstance(a, tuple) else self.operand(a) for a in inputs]
        if op in (Op.MUL, Op.DIV):
            self._uniform(operands)
        index = len(self.nodes)
        self.nodes.append(
            Node(
                index=index,
                op=op,
                inputs=tuple(v for v, _ in operands),
                outputs=tuple(outputs),
                axes=tuple(axes),
                attached=tuple(g for _, g in operands),
                label=facts.pop("label", "") or self.record.schema.name,
                where=self.record.where,
                recorded=self.record.recorded,
                **facts,
            )
        )
        for v in outputs:
            self.producers[v] = index
        return outputs[0]

    def _uniform(self, operands: list[tuple[int, bool | None]]) -> None:
        """Look whether a leaf vector that multiplies is one number throughout; others are never asked about."""
        for v, _ in operands:
            while v not in self.leaves and v in self.producers:
                node = self.nodes[self.producers[v]]
                if node.op not in (Op.LAYOUT, Op.CAST):
                    break
                v = node.inputs[0]
            t = self.leaves.get(v)
            if t is not None and self.drafts[v].number is None:
                self.drafts[v].number = uniform_number(t)

    def filled(self, fill: Any) -> None:
        """What the record made has this number everywhere."""
        if isinstance(fill, (int, float)) and not isinstance(fill, bool):
            for v in self.record.outputs:
                if self.drafts[v].number is None and not self.drafts[v].varying:
                    self.drafts[v].number = float(fill)

    def temporary(self, shape: Sequence[int], like: int) -> int:
        """A value between two nodes that one framework operation stands for."""
        draft = self.drafts[like]
        g = (0, tuple(shape), (), draft.geometry[3])
        self.drafts.append(Draft(g, Origin.NODE, varying=draft.varying))
        return len(self.drafts) - 1

    def elementwise(self, op: Op, inputs: Sequence[Any], output: int | None = None, **facts: Any) -> int:
        """A broadcasting operation over `inputs`."""
        out = self.record.outputs[0] if output is None else output
        pairs = [a if isinstance(a, tuple) else self.operand(a) for a in inputs]
        shape = self.shape(out)
        axes = [broadcast(self.shape(v), shape) if self.shape(v) else None for v, _ in pairs]
        return self.emit(op, pairs, axes, [out], **facts)

    def barrier(self, outputs: Sequence[int]) -> None:
        """Secondary outputs of an operation, which nothing is known about."""
        if outputs:
            refs = refs_of(self.record.args)
            self.emit(Op.OPAQUE, refs, [None] * len(refs), outputs)

    def view(self, source: Any, output: int) -> int:
        value, attached = source if isinstance(source, tuple) else self.operand(source)
        axes = view_axes(self.drafts[value].geometry, self.drafts[output].geometry)
        return self.emit(Op.LAYOUT, [(value, attached)], [axes], [output])

    def scaled(self, a: Any, by: Any) -> Any:
        """`a * by` as a node of its own, or `a` itself where `by` is 1."""
        if not isinstance(by, Ref) and by == 1:
            return a
        value, attached = self.operand(a)
        out = self.temporary(self.shape(value), value)
        self.elementwise(Op.MUL, [(value, attached), by], out)
        return out, attached

    def implied(self, item: Implied) -> None:
        """A view or update that no operation recorded."""
        out = self.drafts[item.output].geometry
        axes: list[Axes | None] = [view_axes(self.drafts[item.sources[0]].geometry, out)]
        op = Op.LAYOUT
        if item.kind == "update":
            part = self.drafts[item.sources[1]].geometry
            there = view_axes(out, part)  # where each axis of the part lies in the whole
            op, axes = Op.UPDATE, [*axes, tuple(there.index(k) if k in there else -1 for k in range(len(out[1])))]
        # `.data` and friends leave autograd's sight: the reader's own flag says whether a gradient flows.
        pairs = [(v, None) for v in item.sources]
        self.emit(op, pairs, axes, [item.output], label=f"implied {item.kind}")

    def values(self) -> tuple[Value, ...]:
        return tuple(
            Value(
                id=i,
                shape=tuple(d.geometry[1]),
                dtype=_DTYPES[d.geometry[3]],
                origin=d.origin,
                producer=self.producers.get(i, -1),
                leaf=d.leaf,
                number=d.number,
                lost=d.lost,
            )
            for i, d in enumerate(self.drafts)
        )

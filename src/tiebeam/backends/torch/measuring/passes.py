"""One forward and one backward pass of a PyTorch model, and the numbers that core asks for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiebeam.backends.torch.measuring.numbers import (
    CHUNK,
    adds_up,
    dense,
    drift,
    gram,
    inner,
    own_token,
    rows_reached,
    silent_rows,
    wide,
)
from tiebeam.backends.torch.measuring.roles import Arrivals, Place, gradients_by_role
from tiebeam.backends.torch.measuring.session import checkpoints_in_sight, gradients_aside
from tiebeam.backends.torch.trace import Trace, trace
from tiebeam.core.measuring.passes import ROLES, Passed, Request, Role, RoleRead, Sent, Wanted, wanted
from tiebeam.core.measuring.targets import IGNORED, targets_for
from tiebeam.errors import InputError
from tiebeam.ir import Leaf, Op


def differentiate(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
) -> tuple[Trace, Wanted, Passed]:
    """Run the model once forward and once backward; see `protocol.Differentiable`."""
    answers: list[tuple[Wanted, Passed]] = []

    def then(traced: Trace, result: Any, returned: Sequence[Tensor]) -> None:
        asked = wanted(traced.graph)
        answers.append((asked, _Pass(traced, asked, request, result, returned).answer()))

    with gradients_aside(model), checkpoints_in_sight():
        traced = trace(model, args, kwargs, logits=True, then=then)
    [(asked, passed)] = answers
    return traced, asked, passed


@dataclass(frozen=True)
class Objective:
    """The loss, as a function of what the model returned.

    Attributes:
        said: Where the right tokens came from.
        own: The caller's function, or None.
        at: Else which returned tensor is the loss, or the logits that `targets` belong to.
        targets: One for each row of the logits, or None.
    """

    said: str
    own: Callable[[Any], Any] | None = None
    at: int = -1
    targets: Tensor | None = None

    @classmethod
    def of(cls, traced: Trace, asked: Wanted, request: Request) -> "Objective":
        """The loss that the caller, the model or the tokens give, in this order."""
        outputs, ids = traced.graph.outputs, tokens_read(traced, asked)
        if request.loss is not None:
            return cls("loss=", request.loss)
        if asked.loss is not None:
            return cls("the model's own loss", at=outputs.index(asked.loss))
        read = None if ids is None else ids.cpu().numpy()
        at, right, said = targets_for(traced.graph, asked, request, read)
        return cls(said, at=at, targets=torch.from_numpy(right))

    def __call__(self, result: Any, returned: Sequence[Tensor]) -> Tensor:
        if self.own is not None:
            return _scalar(self.own(result), "what loss= returned")
        value = returned[self.at]
        if self.targets is None:
            return value.reshape(())
        exact = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        return F.cross_entropy(exact.flatten(0, -2), self.targets.to(value.device), ignore_index=IGNORED)


def tokens_read(traced: Trace, asked: Wanted) -> Tensor | None:
    """The integers whose rows became the main table's logits; where they were distributed, as they came in."""
    graph, value = traced.graph, asked.ids
    while value is not None and value not in traced.ids:
        node = graph.producer(value)
        same = node is not None and node.op is Op.LAYOUT and len(node.inputs) == 1
        before = node.inputs[0] if node is not None and same else None
        value = before if before is not None and graph.values[before].shape == graph.values[value].shape else None
    return None if value is None else traced.ids[value]


class _Pass:
    """A pass that is still alive."""

    def __init__(self, traced: Trace, asked: Wanted, request: Request, result: Any, returned: Sequence[Tensor]) -> None:
        self.traced, self.asked, self.request, self.result = traced, asked, request, result
        self.returned = returned
        self._leaves = {v.leaf.key: v.leaf for v in traced.graph.values if v.leaf is not None}
        self.outputs = dict(zip(traced.graph.outputs, returned, strict=True))
        self.notes: list[str] = []

    def answer(self) -> Passed:
        """Everything that core asks for."""
        if self.traced.graph.meta:
            raise InputError("there is nothing to measure", got="tensors without values", expected="real tensors")
        objective = Objective.of(self.traced, self.asked, self.request)
        loss, targets = objective(self.result, self.returned), objective.said
        value = float(loss.detach())
        if not np.isfinite(value):
            raise InputError("the loss is not finite", got=self._suspects(value), hint="tiebeam.inspect(model, inputs)")
        sent, cosine, unaccounted = self._gradients(loss)
        own_logit, own_rank = self._own()
        held = {r.table: (self._leaves[r.leaf], r.vocab_axis) for r in self.asked.reads}
        tables = {i: (self.traced.tensors[leaf.key], axis) for i, (leaf, axis) in held.items()}
        earlier = {i: t for i, (leaf, _) in held.items() if (t := self._earlier(leaf)) is not None}
        silent = {i: silent_rows(self.request.optimizer, *tables[i]) for i in tables}
        return Passed(
            loss=value,
            targets=targets,
            own_logit=own_logit,
            own_rank=own_rank,
            sent={k: s if self.request.keep else replace(s, grad=None) for k, s in sent.items()},
            cosine=cosine,
            unaccounted=unaccounted,
            grams={i: gram(*tables[i]) for i in tables} if self.request.gram else {},
            drift={i: drift(before, *tables[i], sent, i) for i, before in earlier.items()},
            silent={i: n for i, n in silent.items() if n is not None},
            notes=tuple(self.notes),
        )

    def _earlier(self, leaf: Leaf) -> Tensor | None:
        """What the caller says the table was before."""
        since = self.request.since or {}
        found = next((since[n] for n in leaf.names if n in since), None)
        if found is None:
            return None
        before, now = torch.as_tensor(found), self.traced.tensors[leaf.key]
        if before.shape != now.shape:
            raise InputError(
                f"the earlier {leaf.name!r} has another shape",
                got=str(tuple(before.shape)),
                expected=str(tuple(now.shape)),
            )
        return before.detach()

    @property
    def _logits(self) -> Tensor | None:
        return None if self.asked.logits is None else self.outputs[self.asked.logits]

    @property
    def _ids(self) -> Tensor | None:
        return tokens_read(self.traced, self.asked)

    def _suspects(self, loss: float) -> str:
        """What else is not finite, for the message."""
        logits = self._logits
        read = {r.leaf: self._leaves[r.leaf] for r in self.asked.reads}
        found = [f"a loss of {loss}"]
        found += [
            f"{leaf.name!r} holds entries that are not finite"
            for key, leaf in read.items()
            if not bool(torch.isfinite(self.traced.tensors[key].detach()).all())
        ]
        if logits is not None and not bool(torch.isfinite(logits.detach()).all()):
            found.append("logits that are not finite")
        return ", ".join(found)

    def _gradients(self, loss: Tensor) -> tuple[dict[tuple[int, Role], Sent], dict[int, float], dict[int, float]]:
        read = dict.fromkeys(r.leaf for r in self.asked.reads)
        asking = {k: self._leaf(self._leaves[k]) for k in read}
        tensors = {k: t for k, t in asking.items() if t is not None}
        if not tensors:
            return {}, {}, {}
        if not loss.requires_grad:
            self.notes.append("no gradient is attached to the loss")
            return {}, {}, {}
        found, arrivals = gradients_by_role(loss, tensors, self._places())
        axes = {r.leaf: r.vocab_axis for r in self.asked.reads}
        return self._numbers({k: _Leaf(found[k], arrivals[k], axes[k]) for k in tensors})

    def _leaf(self, leaf: Leaf) -> Tensor | None:
        """The tensor to differentiate for, or None with the reason noted."""
        tensor = self.traced.tensors[leaf.key]
        if not tensor.requires_grad:
            return None  # frozen, or a buffer: the facts of the table say so
        used = self.traced.used[leaf.key] if leaf.fetched else [tensor]
        if len(used) > 1 or not used[0].is_leaf:
            self.notes.append(f"{leaf.name!r} lies elsewhere: a wrapper fetches it, and its gradient is not read")
            return None
        return used[0]

    def _places(self) -> dict[int, list[Place]]:
        """Where roles read each leaf, by the numbers of autograd's nodes."""
        graph, numbers = self.traced.graph, [sequence for sequence, _ in self.traced.steps]

        def seen(index: int) -> bool:
            node = graph.nodes[index]
            return not node.recorded or any(node.attached)

        places: dict[int, list[Place]] = {}
        for r in self.asked.reads:
            if seen(r.node):
                chain = frozenset(numbers[i] for i in r.chain if seen(i))
                places.setdefault(r.leaf, []).append(Place(r.role, numbers[r.node], chain))
        return places

    def _numbers(
        self, leaves: Mapping[int, "_Leaf"]
    ) -> tuple[dict[tuple[int, Role], Sent], dict[int, float], dict[int, float]]:
        sent: dict[tuple[int, Role], Sent] = {}
        cosine: dict[int, float] = {}
        unaccounted: dict[int, float] = {}
        for table in dict.fromkeys(r.table for r in self.asked.reads):
            reads = [r for r in self.asked.reads if r.table == table]
            keys = [k for k in dict.fromkeys(r.leaf for r in reads) if k in leaves]
            if not keys:
                continue
            both = {role: self._of(role, reads, leaves) for role in ROLES}
            rows: dict[Role, Tensor] = {}
            for role, grad in both.items():
                if grad is not None:
                    norm, rows[role] = rows_reached(grad)
                    sent[table, role] = Sent(norm, len(rows[role]), grad)
            unaccounted[table] = max(leaves[k].unaccounted(rows.get("lookup")) for k in keys)
            lookup, readout = both["lookup"], both["readout"]
            if lookup is not None and readout is not None and lookup.shape == readout.shape:
                size = sent[table, "lookup"].norm * sent[table, "readout"].norm
                if size and np.isfinite(size):
                    at = rows["lookup"]  # elsewhere it sends nothing
                    cosine[table] = inner(lookup[at], readout[at]) / size
        return sent, cosine, unaccounted

    def _of(self, role: Role, reads: Sequence[RoleRead], leaves: Mapping[int, "_Leaf"]) -> Tensor | None:
        """What a role sends to a table, (vocab, width), over all the leaves that are this table."""
        keys = [k for k in dict.fromkeys(r.leaf for r in reads if r.role == role) if k in leaves]
        parts = [g for k in keys if (g := leaves[k].of(role)) is not None]
        if not parts:
            return None
        if any(p.shape != parts[0].shape for p in parts):
            self.notes.append(f"the {role} reads pieces of one table: what it sends is not added up")
            return None
        return sum(parts[1:], parts[0])

    def _own(self) -> tuple[float | None, float | None]:
        """Mean logit and mean rank of the token just read."""
        logits, ids = self._logits, self._ids
        if logits is None or ids is None:
            why = "the model returns no logits" if logits is None else "no ids fit the rows of the logits"
            self.notes.append(f"own_logit and own_rank are not known: {why}")
            return None, None
        mask = self.request.mask
        counted = None
        if mask is not None and mask.shape == tuple(ids.shape):
            counted = torch.from_numpy(mask.astype(bool)).to(ids.device).flatten()
        flat, own = logits.detach().flatten(0, -2), ids.flatten().to(logits.device)
        if counted is not None:
            flat, own = flat[counted], own[counted]
        inside = own < flat.shape[-1]
        if not bool(inside.all()):  # a readout over fewer tokens than are looked up
            flat, own = flat[inside], own[inside]
        return own_token(flat, own) if len(own) else (None, None)


class _Leaf:
    """One leaf's gradient, turned so that rows are tokens."""

    def __init__(self, whole: Tensor | None, arrivals: Arrivals, vocab_axis: int) -> None:
        self.whole, self.arrivals, self.vocab_axis = whole, arrivals, vocab_axis

    def of(self, role: Role) -> Tensor | None:
        grad = self.arrivals.of(role)
        if grad is None:
            return None
        whole = dense(grad)
        while whole.ndim > 2:
            whole = whole.squeeze(next(i for i, n in enumerate(whole.shape) if n == 1))
        return whole if self.vocab_axis == 0 else whole.mT

    def unaccounted(self, looked_up: Tensor | None) -> float:
        """Share of the gradient's norm that the two roles do not add up to.

        Args:
            looked_up: Rows outside of which the lookup sends nothing, where that is known.
        """
        if self.whole is None:
            return 0.0
        whole, known = dense(self.whole), [dense(g) for k, g in self.arrivals.sent if k != "other"]
        if not known:
            return 1.0 if bool(whole.any()) else 0.0
        if looked_up is not None and self.vocab_axis == 0 and whole.ndim == 2 and self._exact(whole, looked_up):
            return 0.0
        off = norm = 0.0
        rows = max(1, CHUNK // max(1, whole[:1].numel()))
        for part, *sent in zip(*(t.split(rows) for t in (whole, *known)), strict=True):
            total = sum(sent[1:], sent[0])  # in the order in which autograd adds
            if not torch.equal(part, total):
                off = math.hypot(off, float(torch.linalg.vector_norm(part - total, dtype=wide(part))))
        if off:
            norm = float(torch.linalg.vector_norm(whole, dtype=wide(whole)))
        return off / norm if norm else off

    def _exact(self, whole: Tensor, looked_up: Tensor) -> bool:
        """Whether one arrival of each role adds up to the gradient to the last bit, where few rows are looked up."""
        if sorted(k for k, _ in self.arrivals.sent) != ["lookup", "readout"]:
            return False
        sent = {k: dense(g) for k, g in self.arrivals.sent}
        return adds_up(whole, sent["lookup"], sent["readout"], looked_up)


def _scalar(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        kind = type(value).__name__
        got = f"{kind}{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else kind
        raise InputError(f"{what} is no loss", got=got, expected="a tensor of one float")
    return value.reshape(())

"""Telling apart what each role sends to a table, in one backward pass.

A table's gradient arrives over the edges of autograd's graph that lead to it; each use is one. A hook on the node
at an edge's far end reads what it sends. Where a table is cast or transposed once for both roles, the edges part
further up: what is read there is pushed through the nodes in between, which are linear in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from tiebeam.core.measuring.passes import Role
from tiebeam.errors import InputError

Node = Any  # torch.autograd.graph.Node: its attributes have no annotations
Kind = Role | Literal["other"]

_HELD = 4  # arrivals of one leaf kept apart so that their sum is exact; more of one kind are added up at once


@dataclass(frozen=True, slots=True)
class Place:
    """One read, by the numbers of autograd's nodes.

    Attributes:
        node: Of the node that reads.
        chain: Of the nodes between the table and it.
    """

    role: Role
    node: int
    chain: frozenset[int]


@dataclass
class Arrivals:
    """What one leaf was sent, in the order in which autograd adds it up."""

    sent: list[tuple[Kind, Tensor]] = field(default_factory=list)

    def add(self, kind: Kind, grad: Tensor) -> None:
        """Take what an edge sent; the first ones of one kind are added up, which is what autograd does too."""
        last = self.sent[-1] if self.sent else None
        if last is not None and last[0] == kind and (len(self.sent) == 1 or len(self.sent) > _HELD):
            self.sent[-1] = (kind, last[1] + grad)
        else:
            self.sent.append((kind, grad))

    def of(self, kind: Kind) -> Tensor | None:
        """All of one kind."""
        return _sum([g for k, g in self.sent if k == kind])


def _sum(parts: Sequence[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    return total


def gradients_by_role(
    loss: Tensor, leaves: Mapping[int, Tensor], places: Mapping[int, Sequence[Place]]
) -> tuple[dict[int, Tensor | None], dict[int, Arrivals]]:
    """Differentiate `loss` with respect to `leaves`, each role by itself.

    No `.grad` is written and no other leaf's gradient is computed.

    Args:
        loss: A scalar with a gradient attached.
        leaves: By key, tensors that ask for gradients.
        places: By key, where roles read them.

    Returns:
        By key, the gradient as autograd adds it up, and what arrived from each role.
    """
    graph = AutogradGraph(loss)
    arrivals = {key: Arrivals() for key in leaves}
    handles = []
    try:
        for key, leaf in leaves.items():
            for edge, kind, trail in graph.edges_by_role(leaf, places.get(key, ())):
                handles.append(edge.listen(_receiver(arrivals[key], kind, trail, edge.into)))
        found = backward(loss, list(leaves.values()))
    finally:
        for handle in handles:
            handle.remove()
    return dict(zip(leaves, found, strict=True)), arrivals


def backward(loss: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients with respect to `leaves` alone; no `.grad` is written.

    Raises:
        InputError: The model's own backward pass raised.
    """
    try:
        return torch.autograd.grad(loss, list(leaves), allow_unused=True)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            "the backward pass of the model fails",
            got=f"{type(error).__name__}: {error}",
            hint="loss.backward() on this batch should show the same",
        ) from error


def _receiver(arrivals: Arrivals, kind: Kind, trail: Sequence[Node], into: int) -> Callable[[Tensor], None]:
    def receive(grad: Tensor) -> None:
        pushed = push(grad, into, trail)
        if pushed is not None:
            arrivals.add(kind, pushed)

    return receive


def push(grad: Tensor, into: int, trail: Sequence[Node]) -> Tensor | None:
    """Send a gradient through nodes down to the leaf, as autograd would.

    Args:
        into: Which output of the first node the gradient is of.
        trail: Nodes on the way, the leaf's own last.
    """
    node, rest = trail[0], trail[1:]
    if not rest:
        return grad
    given: list[Tensor | None] = [None] * len(node._input_metadata)
    given[into] = grad
    sent = node(*given)
    outputs = sent if isinstance(sent, tuple) else (sent,)
    parts = [
        part
        for out, (following, number) in zip(outputs, node.next_functions, strict=True)
        if following is rest[0] and out is not None and (part := push(out, number, rest)) is not None
    ]
    return _sum(parts)


@dataclass(frozen=True, slots=True)
class Edge:
    """From the node that sends a gradient, over its input number `slot`, to output number `into` of the next."""

    node: Node
    slot: int
    into: int

    def listen(self, receive: Callable[[Tensor], None]) -> Any:
        """Call `receive` with what is sent; returns the hook's handle."""

        def hook(sent: tuple[Tensor | None, ...], _: Any) -> None:
            grad = sent[self.slot]
            if grad is not None:
                receive(grad.detach())

        return self.node.register_hook(hook)


class AutogradGraph:
    """The nodes behind a loss, and who sends to whom."""

    def __init__(self, loss: Tensor) -> None:
        self.incoming: dict[Node, list[Edge]] = {}
        self.leaves: dict[int, Node] = {}
        stack: list[Node] = [loss.grad_fn]
        seen = set(stack)
        while stack:
            node = stack.pop()
            for slot, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                self.incoming.setdefault(following, []).append(Edge(node, slot, number))
                if following in seen:
                    continue
                seen.add(following)
                stack.append(following)
                variable = getattr(following, "variable", None)
                if isinstance(variable, Tensor):
                    self.leaves[id(variable)] = following

    def edges_by_role(self, leaf: Tensor, places: Sequence[Place]) -> list[tuple[Edge, Kind, list[Node]]]:
        """The edges at which a leaf's gradient is read: each of one role, with the nodes from there to the leaf."""
        end = self.leaves.get(id(leaf))
        if end is None:
            return []
        roles: dict[int, set[Kind]] = {}
        for place in places:
            roles.setdefault(place.node, set()).add(place.role)
        chains = {number for place in places for number in place.chain} - set(roles)
        found: list[tuple[Edge, Kind, list[Node]]] = []
        self._part(end, [end], roles, chains, found)
        return found

    def _part(
        self,
        node: Node,
        trail: list[Node],
        roles: Mapping[int, set[Kind]],
        chains: set[int],
        found: list[tuple[Edge, Kind, list[Node]]],
    ) -> None:
        followed = set(trail)
        for edge in self.incoming.get(node, ()):
            kinds = self._kinds(edge.node, roles, chains)
            if len(kinds) == 1:
                found.append((edge, next(iter(kinds)), trail))
            elif edge.node._sequence_nr() in roles:
                found.append((edge, "other", trail))  # one operation in both roles: nobody sees inside
            elif edge.node not in followed:  # a node may lead here twice, as a sum of a table with itself does
                followed.add(edge.node)
                self._part(edge.node, [edge.node, *trail], roles, chains, found)

    def _kinds(self, node: Node, roles: Mapping[int, set[Kind]], chains: set[int]) -> set[Kind]:
        """What a gradient that this node sends comes from."""
        number = node._sequence_nr()
        if number in roles:
            return roles[number]
        if number not in chains or node not in self.incoming:
            return {"other"}
        return {kind for edge in self.incoming[node] for kind in self._kinds(edge.node, roles, chains)}

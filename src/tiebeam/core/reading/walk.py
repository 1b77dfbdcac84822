"""The walk: which constant factor a signal meets between a role and the first thing that is no constant.

Layout, casts, slices, dropout, masks and adds of other embeddings or biases are passed through; scalars are
collected, sums of equal terms too; anything else ends the walk.
"""

import heapq
import math
from dataclasses import replace

from tiebeam.core.reading.chains import counted, equal_terms, made_of, multiple, same_product
from tiebeam.core.reading.numbers import ONE, OWN, Factor, scalar, uniform
from tiebeam.core.reading.provenance import INPUT
from tiebeam.core.reading.source import sources_of
from tiebeam.core.reading.states import State, Walk, agreed
from tiebeam.core.reading.switches import NO_DROPOUT, mask_levels
from tiebeam.ir import Graph, Leaf, Node, Op

_TO_A_BIAS = (Op.LAYOUT, Op.CAST, Op.MUL, Op.DIV, Op.GATHER, Op.POINTWISE)
_PASS = (Op.LAYOUT, Op.CAST, Op.DROPOUT, Op.MASK, Op.UPDATE, Op.CONCAT)
TWICE = Factor(None, "another product with the same table is added to the logits")
UNKNOWN = Factor(None)
_TERMS = (Op.LAYOUT, Op.CAST, Op.MUL, Op.DIV, Op.ADD, Op.SUB)


class Forward:
    """A walk forwards from `start`.

    Args:
        axis: The vocabulary axis of a readout's product.
        before: What the readout's product was multiplied by already.
        table: What is read: a number computed from it is no constant.
    """

    def __init__(
        self, graph: Graph, flags: list[int], start: int, axis: int | None = None, *,
        before: Factor = ONE, table: Leaf | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.flags, self.start = graph, flags, start
        self.before, self.table = before, table
        self.readout = axis is not None
        self.states = {start: State(axis=-1 if axis is None else axis, told=start, past=start)}
        self.walk = Walk()
        self._depends: dict[int, bool] = {start: True}

    def run(self) -> Walk:
        queue = [(self.graph.values[self.start].producer, self.start)]
        arrived: dict[int, State] = {}
        done: set[int] = set()
        while queue:
            _, v = heapq.heappop(queue)
            if v in done:
                continue
            done.add(v)
            self._whole(v, done)
            nodes = [self.graph.nodes[i] for i in self.graph.consumers[v]]
            steps = [(n, self.step(n, v)) for n in nodes if self.graph.live[n.index]]
            ended = any(s is None or (len(steps) > 1 and self._ends_at_once(n, s)) for n, s in steps)
            if not steps or v in self.graph.returned or ended:
                self.walk.ends.append((v, self.states[v]))
                continue
            for n, state in steps:
                if state is not None:
                    state = state.at(n.output)
                    met = arrived.setdefault(n.output, state)
                    self.states[n.output] = met if met is state else self._joined(met, state)
                    heapq.heappush(queue, (n.index, n.output))
        return self.walk

    def _whole(self, v: int, done: set[int]) -> None:
        """Rows that are put together piece by piece have a factor where the walk came along with every piece.

        Only where no other operand says which places are written: there, what is put in may also be added.
        """
        node = self.graph.producer(v)
        if node is None or node.op is not Op.UPDATE or v == self.start:
            return
        pieces = [x for x in node.inputs if self.depends(x)]
        distinct = len(set(pieces)) == len(pieces)
        if len(pieces) > 1 and (len(node.inputs) > 2 or not distinct or not done.issuperset(pieces)):
            apart = Factor(None, "some of its elements are changed apart from the others")
            self.states[v] = replace(self.states[v], factor=apart)

    def _joined(self, a: State, b: State) -> State:
        """Two branches that come together (a concatenation, pieces): one factor if both have it, and one cap."""
        if (a.cap, a.inner.value, a.shift) != (b.cap, b.inner.value, b.shift):
            return replace(a, factor=Factor(None, "a soft cap stands before a part of it alone"))
        return replace(a, factor=agreed([a.factor, b.factor]))

    def step(self, node: Node, v: int) -> State | None:
        """The state behind `node`, or None where it ends the walk."""
        state = self.states[v]
        places = [i for i, x in enumerate(node.inputs) if x == v]
        i = places[0]
        axes = node.axes[i]
        if node.op is Op.GATHER and i == 0 and axes is not None and node.axis != state.axis:
            return self._moved(state, axes)
        if axes is None:
            return None
        if node.op in _PASS:
            state = replace(state, held="other") if node.op in (Op.MASK, Op.UPDATE) else state
            return self._moved(state, axes)
        if node.op in (Op.MUL, Op.DIV):
            return self._scaled(node, i, self._moved(state, axes))
        if node.op in (Op.ADD, Op.SUB):
            return self._added(node, v, places, self._moved(state, axes))
        return self._otherwise(node, self._moved(state, axes))

    def _otherwise(self, node: Node, state: State) -> State | None:
        """Behind a function, or a sum over an axis."""
        if node.op in (Op.TANH, Op.SIGMOID) and state.cap:
            return State(Factor(None, "a second nonlinearity follows the soft cap"), state.axis)
        if node.op in (Op.TANH, Op.SIGMOID) and self.readout:
            cap = node.op.name.lower()
            return replace(state, factor=ONE, cap=cap, inner=state.factor, dropping=NO_DROPOUT, held="other")
        if node.op is Op.POINTWISE and self.graph.values[node.output].dtype != "bool":
            return self._bent(node, state)
        if self._sums_a_stack(node):
            return self._with_the_stack(node, state)
        count = equal_terms(self.graph, node)
        return None if count is None else state.times(counted(float(count), node))

    def _sums_a_stack(self, node: Node) -> bool:
        """Whether a sum adds the signal to other things that it was stacked with: an addition of several terms."""
        stack = self.graph.producer(node.inputs[0])
        if node.op is not Op.REDUCE or not node.sums or stack is None or stack.op is not Op.CONCAT:
            return False
        rank = len(self.graph.values[stack.output].shape)
        one_by_one = all(axes is not None and axes[stack.axis] < 0 for axes in stack.axes)
        summed = set(range(rank)) - set(node.axes[0] or ())
        return one_by_one and summed == {stack.axis} and sum(self.depends(x) for x in stack.inputs) == 1

    def _with_the_stack(self, node: Node, state: State) -> State:
        stack = self.graph.producer(node.inputs[0])
        for x in stack.inputs if stack is not None and self.readout else ():
            if self.depends(x):
                continue
            if self._reads_the_table(x):
                return replace(state, factor=TWICE)
            state = self._beside(x, state) or replace(state, held="other")
        return state

    def _beside(self, other: int, state: State) -> State | None:
        """The state with something of the inputs added; None where it is not of them."""
        if not self.flags[other] & INPUT:
            return None
        self.walk.added.append(other)
        return replace(state, held="" if state.held == "bias" else state.held)

    def _bent(self, node: Node, state: State) -> State | None:
        """Behind a function that is no multiplication: the end, unless the logits were scaled for it.

        c*f(z/c) is a soft cap whatever f: what was collected before it says nothing without f's slope.
        """
        if not self.readout or state.axis < 0 or self.before.times(state.total()).value == 1.0:
            return None
        why = f"{node.label} stands behind a multiplication, and its slope at 0 is not known"
        return State(Factor(None, why), state.axis)

    def _ends_at_once(self, node: Node, state: State, depth: int = 4) -> bool:
        """Whether only a cast or a view stands between a fork and the end of one of its branches.

        Without this the dtype would decide: a norm computes in float32, so its cast is there in bfloat16 alone.
        """
        if node.op not in (Op.CAST, Op.LAYOUT) or depth == 0:
            return False
        self.states.setdefault(node.output, state)
        nodes = [self.graph.nodes[i] for i in self.graph.consumers[node.output] if self.graph.live[i]]
        steps = [(n, self.step(n, node.output)) for n in nodes]
        return any(s is None or self._ends_at_once(n, s, depth - 1) for n, s in steps)

    def _moved(self, state: State, axes: tuple[int, ...]) -> State:
        return replace(state, axis=axes.index(state.axis) if state.axis in axes and state.axis >= 0 else -1)

    def _scaled(self, node: Node, i: int, state: State) -> State | None:
        other = node.inputs[1 - i]
        if node.op is Op.DIV and i == 1:
            return self._bent(node, state)
        if self.graph.values[node.inputs[i]].size == 1 and self.graph.values[other].size != 1:
            return None
        by = uniform(self.graph, self.flags, other)
        if by is None and self._gain_on_meta(other):
            return None
        if by is None:
            if self.depends(other):  # a normalisation or a gate: the walk ends here
                return self._bent(node, state) if self._of_logits(node, 1 - i, state) else None
            levels = mask_levels(self.graph, self.flags, other) if node.op is Op.MUL else None
            if levels is not None:
                on, dropping = state.dropping.masked(levels)
                return replace(self._times(state, on), dropping=dropping)
            kind = "depends on the inputs" if self.flags[other] & INPUT else "is no scalar"
            by = Factor(None, f"the multiplication by a tensor of shape {self.graph.values[other].shape} {kind}")
        elif self.flags[other] & INPUT and self.depends(other):
            return None
        if by.value is not None and self.table is not None and made_of(self.graph, self.flags, other, self.table):
            by = OWN
        if node.op is Op.DIV:
            by = by.inverse()
        by, dropping = state.dropping.scaled(by)
        return replace(self._times(state, by), dropping=dropping)

    def _times(self, state: State, by: Factor) -> State:
        shift = state.shift * by.value if by.value is not None and not state.cap else state.shift
        return replace(state.times(by), shift=shift)

    def _of_logits(self, node: Node, i: int, state: State) -> bool:
        """Whether operand `i` has a number of its own for each logit."""
        axes = node.axes[i]
        return axes is not None and state.axis >= 0 and axes[state.axis] >= 0

    def _gain_on_meta(self, other: int) -> bool:
        """A learned vector without values: a gain until shown otherwise, so the walk ends before it."""
        leaf = self.graph.values[other].leaf
        return self.graph.meta and leaf is not None and leaf.parameter

    def _added(self, node: Node, v: int, places: list[int], state: State) -> State | None:
        sign = -1.0 if node.op is Op.SUB else 1.0
        if len(places) == 2:
            return state.times(counted(1.0 + sign, node))
        i = places[0]
        other = node.inputs[1 - i]
        if node.op is Op.SUB and i == 1:
            state = replace(state.times(Factor(-1.0)), shift=-state.shift)
        floor = self.graph.values[self.start].producer
        mine = multiple(self.graph, self.flags, v, floor)
        theirs = multiple(self.graph, self.flags, other, -1 if self.readout else floor)
        if mine[0] in self.states and same_product(self.graph, mine[0], theirs[0]):
            signs = (sign, 1.0) if node.op is Op.SUB and i == 1 else (1.0, sign)
            total = mine[1].times(Factor(signs[0])).plus(theirs[1].times(Factor(signs[1])))
            total = total.times(counted(1.0, node))
            return replace(state, factor=self.states[mine[0]].factor.times(total), since=UNKNOWN, after=UNKNOWN)
        if self.depends(other):
            return self._bent(node, state) if self._of_logits(node, 1 - i, state) else None
        if self._reads_the_table(other):
            return replace(state, factor=TWICE)
        number = scalar(self.graph, self.flags, other)
        state = self._noted(node, 1 - i, other, state, moves=number is not None and not self.flags[other] & INPUT)
        if number is not None and number.value is not None and not state.cap:
            return replace(state, shift=state.shift + (sign if i == 0 else 1.0) * number.value)
        return state

    def _reads_the_table(self, value: int) -> bool:
        """Whether a sum's other term holds a product with all of the same table."""
        if not self.readout or self.table is None:
            return False
        stack, seen = [value], set[int]()
        while stack:
            v = stack.pop()
            node = self.graph.producer(v)
            if node is None or v in seen or not self.flags[v] & INPUT:
                continue
            seen.add(v)
            if node.op in _TERMS:
                stack += node.inputs
            elif node.op is Op.DOT:
                for i, x in enumerate(node.inputs):
                    whole = [s for s in sources_of(self.graph, self.flags, node, i) if s.leaf.key == self.table.key]
                    if any(math.prod(s.shape) <= self.graph.values[x].size for s in whole):
                        return True
        return False

    def _noted(self, node: Node, i: int, other: int, state: State, *, moves: bool) -> State:
        """Remember what was added: a bias over the vocabulary, something of the inputs, or a number that moves all."""
        if not self.readout:
            return state
        beside = self._beside(other, state)
        if beside is not None:
            return beside
        axes, leaf = node.axes[i], None
        if axes is not None and state.axis >= 0 and axes[state.axis] >= 0:
            leaf = self._leaf_behind(other)
            if leaf is not None and leaf.name not in self.walk.biases:
                self.walk.biases.append(leaf.name)
        if state.held == "other" or moves:
            return state
        return replace(state, held="bias" if leaf is not None and leaf.trainable else "other")

    def _leaf_behind(self, value: int) -> Leaf | None:
        """The leaf that `value` is, up to views, casts, rows of all places and a scalar.

        Behind a function (the logarithm of a prior) only one that is not trained: zeroing it would not zero the bias.
        """
        v, curved = value, False
        for _ in range(32):
            leaf = self.graph.values[v].leaf
            if leaf is not None:
                return None if curved and leaf.trainable else leaf
            node = self.graph.producer(v)
            if node is None or node.op not in _TO_A_BIAS:
                return None
            i = 0
            if node.op in (Op.MUL, Op.DIV):
                sizes = [self.graph.values[x].size for x in node.inputs]
                i = 1 if node.op is Op.MUL and sizes[0] < sizes[1] else 0
                if scalar(self.graph, self.flags, node.inputs[1 - i]) is None:
                    return None
            curved |= node.op is Op.POINTWISE
            v = node.inputs[i]
        return None

    def depends(self, value: int) -> bool:
        """Whether `value` was computed from `start`."""
        low = self.graph.values[self.start].producer
        stack, path = [value], list[int]()
        while stack:
            v = stack.pop()
            if self._depends.get(v):
                for other in path:  # some of these lead there: ask anew when they come up
                    del self._depends[other]
                self._depends[value] = True
                return True
            node = self.graph.producer(v)
            if v in self._depends or node is None or node.index <= low:
                continue
            self._depends[v] = False  # until shown otherwise below
            path.append(v)
            stack += node.inputs
        return False

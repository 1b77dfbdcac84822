"""From jaxprs to core's graph: ids, frames and constants; the meaning of each primitive is in `ops` and `calls`.

A frame is one execution of one jaxpr. Nested jaxprs are opened in place, so a table that a scanned, checkpointed
or jitted body reads is the leaf it is outside. Ids are handed out in order, so the values of a frame and of
everything inside it are one range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from tiebeam.backends.graphs import building
from tiebeam.backends.jax.lowering.axes import broadcast
from tiebeam.backends.jax.lowering.fold import equal_or_known, fold, hoist
from tiebeam.ir import Axes, Op, Origin, Value

Path = tuple[tuple[int, int], ...]
"""An equation: number of its frame and its position there, after those of the equations that it is inside of."""
Atom = Any  # jax.extend.core.Var or Literal: their classes have no stubs


@dataclass(slots=True)
class Draft(building.Draft):
    """A value in the making.

    Attributes:
        apart: Axes of the mesh along which devices hold different values, inside a map over devices.
    """

    apart: frozenset[str] = frozenset()


@dataclass
class Frame:
    """One execution of one jaxpr.

    Attributes:
        ids: Value of each variable.
        inside: Frames of the equations that were opened, by the equation's position: one, or one for each branch of
            a `cond`, or for each round of a loop of which all were followed.
        first, last: Range of the ids that were handed out while it was lowered.
        number: How many frames were entered before.
    """

    jaxpr: Any
    ids: dict[Any, int] = field(default_factory=dict)
    inside: dict[int, tuple["Frame", ...]] = field(default_factory=dict)
    first: int = 0
    last: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation with its operands and results as ids."""

    name: str
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: str


class Lowering(building.Building[Draft, Equation]):
    """Builds values and nodes.

    Args:
        where: The module path that a name stack stands for.
        learn: Takes in which leaf a named value of the program is; whether the name is a mark. None: there are none.
        values: Whether leaves have values (False on abstract ones).
    """

    def __init__(
        self, where: Callable[[str], str], learn: Callable[[str, Sequence[str]], bool] | None = None, *, values: bool
    ) -> None:
        super().__init__(Draft)
        self.where, self.learn = where, learn
        self.has_values = values
        self.constants: dict[int, tuple[int, Any]] = {}  # by identity; the array is held, so its id stays its own
        self.frames = 0
        self.at: Path = ()  # the equation that is being lowered
        self.paths: list[Path] = []  # of each node, the equation that it stands for
        self.mesh: dict[str, int] = {}  # sizes of its axes, inside a map over devices

    # -- values --

    def constant(self, array: Any) -> int:
        """An array that the program made from nothing, known by its identity in whichever jaxpr it turns up."""
        if id(array) not in self.constants:
            shape, dtype = np.shape(array), getattr(array, "dtype", None)
            facts: dict[str, Any] = {}
            if dtype is not None and not jnp.issubdtype(dtype, jax.dtypes.extended):
                facts = equal_or_known(array)
            origin = Origin.CONSTANT if facts or dtype is None or dtype.kind != "V" else Origin.RANDOM
            self.constants[id(array)] = (self.add(shape, dtype, origin, **facts), array)
        return self.constants[id(array)][0]

    def read(self, frame: Frame, atom: Atom) -> int:
        if not isinstance(atom, jex.Literal):
            return frame.ids[atom]
        value: Any = atom.val
        if np.shape(value) or isinstance(value, jax.Array | complex):
            return self.constant(value)
        aval: Any = atom.aval
        return self.number(float(value), str(aval.dtype))

    def fresh(self, aval: Any, inputs: Sequence[int]) -> int:
        """A value computed from `inputs`."""
        apart = frozenset().union(*(self.drafts[v].apart for v in inputs)) if self.mesh else frozenset[str]()
        return self.made_of(inputs, getattr(aval, "shape", ()), getattr(aval, "dtype", "token"), apart=apart)

    def behind(self, value: int) -> int:
        """What a value is an arrangement, a part or a cast of."""
        for _ in range(8):
            producer = self.drafts[value].producer
            if producer < 0 or self.nodes[producer].op not in (Op.LAYOUT, Op.CAST, Op.GATHER):
                break
            value = self.nodes[producer].inputs[0]
        return value

    # -- nodes --

    def emitted(self, at: Equation) -> None:
        self.paths.append(self.at)

    def elementwise(self, at: Equation, op: Op, inputs: Sequence[int], **facts: Any) -> int:
        out = self.shape(at.outputs[0])
        axes = [broadcast(self.shape(v), out) for v in inputs]
        if op in (Op.MUL, Op.DIV):
            own = [self._uniform_leaf(v, a) for v, a in zip(inputs, axes, strict=True)]
            inputs, axes = [v for v, _ in own], [a for _, a in own]
        return self.emit(at, op, inputs, axes, **facts)

    def _uniform_leaf(self, value: int, axes: Axes | None) -> tuple[int, Axes | None]:
        """The leaf vector of equal elements that was spread out into `value`, which is what core knows it by."""
        source, own = value, axes
        while own is not None and (producer := self.drafts[source].producer) >= 0:
            node = self.nodes[producer]
            if node.op not in (Op.LAYOUT, Op.CAST) or node.axes[0] is None:
                return value, axes
            own = tuple(node.axes[0][a] if a >= 0 else -1 for a in own)
            source = node.inputs[0]
        return (source, own) if self.drafts[source].leaf and self.drafts[source].number is not None else (value, axes)

    def opaque(self, at: Equation, *, foreign: bool = False) -> None:
        self.emit(at, Op.OPAQUE, at.inputs, [None] * len(at.inputs), at.outputs, foreign=foreign)

    # -- frames --

    def enter(self, jaxpr: Any, consts: Sequence[int], args: Sequence[int], stack: str = "") -> Frame:
        """Lower a jaxpr on `args`; the frame knows the ids of its results."""
        from tiebeam.backends.jax.lowering.calls import CALLS
        from tiebeam.backends.jax.lowering.ops import lower_equation

        frame = Frame(jaxpr, first=len(self.drafts), number=self.frames)
        self.frames += 1
        frame.ids.update(zip(jaxpr.constvars, consts, strict=True))
        frame.ids.update(zip(jaxpr.invars, args, strict=True))
        around = self.at
        for position, eqn in enumerate(jaxpr.eqns):
            self.at = (*around, (frame.number, position))
            inputs = tuple(self.read(frame, a) for a in eqn.invars)
            name, below = eqn.primitive.name, f"{stack}/{eqn.source_info.name_stack}"
            if name == "name" and self._learned(eqn, inputs[0]):
                frame.ids[eqn.outvars[0]] = inputs[0]
                continue
            if name in CALLS:
                at = Equation(name, eqn.params, inputs, (), self.where(below))
                outputs = CALLS[name](self, at, eqn, frame, position, below)
                frame.ids.update(zip(eqn.outvars, outputs, strict=True))
                continue
            outputs = tuple(self.fresh(v.aval, inputs) for v in eqn.outvars)
            frame.ids.update(zip(eqn.outvars, outputs, strict=True))
            if outputs:
                at = Equation(name, eqn.params, inputs, outputs, self.where(below))
                fold(self, eqn, at)
                if not hoist(self, eqn, at):
                    lower_equation(self, at)
        self.at = around
        frame.last = len(self.drafts)
        return frame

    def _learned(self, eqn: Any, value: int) -> bool:
        leaf = self.drafts[self.behind(value)].leaf
        return self.learn is not None and self.learn(eqn.params["name"], leaf.names if leaf else ())

    def results(self, frame: Frame) -> tuple[int, ...]:
        return tuple(self.read(frame, v) for v in frame.jaxpr.outvars)

    # -- the graph --

    def finished(self, value: int, d: Draft) -> Value:
        lost = not self.has_values and d.leafy and not d.varying and d.number is None and int(np.prod(d.shape)) == 1
        whole = super().finished(value, d)
        return whole._replace(lost=True) if lost else whole

"""The loss of a pass, as a function of what the program returned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax.kinds.tree import Tree
from tiebeam.backends.jax.measuring.numbers import cross_entropy
from tiebeam.backends.jax.trace import Program
from tiebeam.core.closures import closed_over
from tiebeam.core.measuring.passes import Request, Wanted, called
from tiebeam.core.measuring.targets import IGNORED, targets_for
from tiebeam.errors import InputError
from tiebeam.ir import Graph


@dataclass(frozen=True)
class Objective:
    """The loss.

    Attributes:
        said: Where the right tokens came from.
        own: The caller's function, or None.
        at: Else which returned array is the loss, or the logits that targets belong to.
        batch: What the caller's function takes beside the output.
        given: Arrays that it needs: arguments of the compiled step, so that another batch compiles nothing.
    """

    said: str
    given: Sequence[Any]
    own: Callable[[Any, Any], Any] | None = None
    at: int = -1
    batch: Tree | None = None

    @classmethod
    def of(cls, graph: Graph, asked: Wanted, request: Request, ids: Any) -> "Objective":
        """The loss that the caller, the model or the tokens give, in this order.

        Args:
            ids: The tokens that belong to the rows of the logits, or None.

        Raises:
            InputError: There is none.
        """
        if request.loss is not None:
            batch = Tree(request.loss.batch)
            return cls("loss=", batch.arrays, own=request.loss.function, batch=batch)
        if asked.loss is not None:
            return cls("the model's own loss", (), at=graph.outputs.index(asked.loss))
        at, right, said = targets_for(graph, asked, request, ids)
        return cls(said, (right.astype(np.int32),), at=at)

    @property
    def key(self) -> tuple[Any, ...]:
        """What a compiled step depends on, arrays aside."""
        kind = None if self.batch is None else self.batch.kind
        try:
            hash((self.own, kind))
        except TypeError:
            return (object(),)  # cannot be compared: equal to none
        around = () if self.own is None else closed_over(self.own)
        return (self.own, around, kind, self.at, len(self.given))

    def emptied(self) -> "Objective":
        """The same without its arrays, for who keeps it."""
        return self if self.batch is None else replace(self, given=(), batch=self.batch.emptied())

    def __call__(self, program: Program, outputs: Sequence[Any], given: Sequence[Any]) -> Any:
        """The loss.

        Args:
            outputs: What the program returned.
            given: As `self.given`.
        """
        if self.own is not None and self.batch is not None:
            return _scalar(called(self.own, program.output(outputs), self.batch.rebuilt(given)), "what loss= returned")
        value = outputs[self.at]
        return cross_entropy(value, given[0], IGNORED) if given else jnp.reshape(value, ())


def _scalar(value: Any, what: str) -> Any:
    shape: Any = getattr(value, "shape", None)
    dtype: Any = getattr(value, "dtype", None)
    if shape is None or int(np.prod(shape)) != 1 or not jnp.issubdtype(dtype, jnp.floating):
        got = type(value).__name__ if shape is None else f"{dtype}{tuple(shape)}"
        raise InputError(f"{what} is no loss", got=got, expected="an array of one float")
    return jnp.reshape(value, ())

"""The loss of a pass, as a function of what the model returned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tiebeam.backends.keras.tensorflow.program import Program
from tiebeam.core.passes import Request, Wanted
from tiebeam.core.targets import IGNORED, Ints, targets_of
from tiebeam.errors import InputError
from tiebeam.ir import Graph


@dataclass(frozen=True)
class Objective:
    """The loss.

    Attributes:
        said: Where the right tokens came from.
        own: The caller's function, or None.
        at: Else which returned tensor is the loss, or the logits that `targets` belong to.
        targets: One for each row of the logits, or None.
    """

    said: str
    own: Callable[[Any], Any] | None = None
    at: int = -1
    targets: Ints | None = None

    @classmethod
    def of(cls, graph: Graph, asked: Wanted, request: Request, ids: Any) -> "Objective":
        """The loss that the caller, the model or the tokens give, in this order.

        Args:
            ids: The tokens that belong to the rows of the logits, or None.

        Raises:
            InputError: There is none.
        """
        if request.loss is not None:
            return cls("loss=", request.loss)
        if asked.loss is not None:
            return cls("the model's own loss", at=graph.outputs.index(asked.loss))
        if asked.logits is None:
            raise InputError(
                "no loss can be taken",
                got="a model that returns neither a loss nor logits over its vocabulary",
                hint="pass loss=lambda output, batch: ...",
            )
        rows = graph.values[asked.logits].shape[:-1]
        right, said = targets_of(ids, request.labels, request.mask, rows)
        return cls(said, at=graph.outputs.index(asked.logits), targets=right.reshape(-1))

    def __call__(self, program: Program, returned: Sequence[Any], targets: Any) -> Any:
        """Add the loss to the graph in which the tensors `returned` are.

        Args:
            targets: As `self.targets`, int64, one for each row; no matter what where there are none.
        """
        if self.own is not None:
            return _scalar(self.own(_as_returned(program.output, list(returned))), "what loss= returned")
        value = returned[self.at]
        if self.targets is None:
            return tf.reshape(value, ())
        exact = tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value
        flat = tf.reshape(exact, (-1, exact.shape[-1]))
        counted = targets != IGNORED
        lost = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(targets, 0), logits=flat)
        return tf.reduce_sum(tf.where(counted, lost, 0)) / tf.cast(tf.math.count_nonzero(counted), lost.dtype)


def _as_returned(output: Any, tensors: list[Any]) -> Any:
    """Tensors in the structure that the model returned them in."""

    def one(leaf: Any) -> Any:
        if not tf.is_tensor(leaf):
            return leaf
        parts = [tensors.pop(0) for _ in tf.nest.flatten(leaf, expand_composites=True)]
        return tf.nest.pack_sequence_as(leaf, parts, expand_composites=True)

    return keras.tree.map_structure(one, output)


def _scalar(value: Any, what: str) -> Any:
    if not tf.is_tensor(value) or not value.dtype.is_floating or value.shape.num_elements() != 1:
        got = f"{value.dtype.name}{tuple(value.shape)}" if tf.is_tensor(value) else type(value).__name__
        raise InputError(f"{what} is no loss", got=got, expected="a tensor of one float")
    return tf.reshape(value, ())

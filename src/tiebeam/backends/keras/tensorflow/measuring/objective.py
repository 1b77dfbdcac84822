"""The loss of a pass, as a function of what the model returned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tiebeam.backends.keras.tensorflow.graph.program import Program
from tiebeam.core.measuring.passes import OwnLoss, Request, Wanted, called
from tiebeam.core.measuring.targets import IGNORED, Ints, targets_for
from tiebeam.errors import InputError
from tiebeam.ir import Graph


@dataclass(frozen=True)
class Objective:
    """The loss.

    Attributes:
        said: Where the right tokens came from.
        own: The caller's function and its batch, or None.
        at: Else which returned tensor is the loss, or the logits that `targets` belong to.
        targets: One for each row of the logits, or None.
    """

    said: str
    own: OwnLoss | None = None
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
        at, right, said = targets_for(graph, asked, request, ids)
        return cls(said, at=at, targets=right)

    @property
    def given(self) -> list[Any]:
        """Arrays that it needs: arguments of the function, so that another batch makes no graph."""
        if self.own is not None:
            return [v for v in keras.tree.flatten(self.own.batch) if _is_array(v)]
        return [] if self.targets is None else [self.targets]

    def __call__(self, program: Program, returned: Sequence[Any], given: Sequence[Any]) -> Any:
        """Add the loss to the graph in which the tensors `returned` are.

        Args:
            given: As `self.given`.
        """
        if self.own is not None:
            left = list(given)
            batch = keras.tree.map_structure(lambda v: left.pop(0) if _is_array(v) else v, self.own.batch)
            output = _as_returned(program.output, list(returned))
            return _scalar(called(self.own.function, output, batch), "what loss= returned")
        value = returned[self.at]
        if self.targets is None:
            return tf.reshape(value, ())
        exact = tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value
        flat = tf.reshape(exact, (-1, exact.shape[-1]))
        [targets] = given
        counted = targets != IGNORED
        lost = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(targets, 0), logits=flat)
        return tf.reduce_sum(tf.where(counted, lost, 0)) / tf.cast(tf.math.count_nonzero(counted), lost.dtype)


def _is_array(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, np.ndarray)


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

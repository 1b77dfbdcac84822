"""One pass of a blueprint, written out in float64: what every framework's model is held against."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tiebeam.zoo.blueprint import EPSILON, Blueprint, stepped

Floats = npt.NDArray[np.float64]


class Pass(NamedTuple):
    """Values of one pass.

    Attributes:
        rows: (batch, tokens, width), behind the lookup's steps, before positions.
        stream: What enters the normalisation before the readout.
        hidden: What leaves it.
        uncapped: (batch, tokens, vocab), before the soft cap.
        logits: What the model returns.
    """

    rows: Floats
    stream: Floats
    hidden: Floats
    uncapped: Floats
    logits: Floats


def rms(x: npt.NDArray[np.floating]) -> float:
    """Root mean square of all entries.

    Example:
        >>> rms(np.array([3.0, -3.0]))
        3.0
    """
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def normalised(x: Floats, norm: str) -> Floats:
    """`x` over its own size, along its last axis."""
    if norm == "none":
        return x
    centred = x - x.mean(-1, keepdims=True) if norm == "layer" else x
    scaled: Floats = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + EPSILON)
    return scaled


def passed(blueprint: Blueprint, weights: Mapping[str, npt.NDArray[np.float32]], ids: npt.NDArray[np.integer]) -> Pass:
    """Run a language model.

    Example:
        >>> model = Blueprint()
        >>> run = passed(model, model.weights(), model.inputs())
        >>> run.logits.shape, round(float(run.logits.std()))
        ((4, 24, 300), 1)
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    rows = stepped(w["table"][ids], blueprint.lookup)
    x = rows + w["positions"][: ids.shape[1]] if blueprint.positions else rows
    if blueprint.norm_rows:
        x = normalised(x, "layer")
    stream = x + np.tanh(x @ w["mid"])
    hidden = normalised(stream, blueprint.norm) * w.get("gain", 1.0)
    readout = w["table" if blueprint.tied else "head"]
    uncapped = stepped(stepped(hidden, blueprint.before) @ readout.T + w.get("bias", 0.0), blueprint.after)
    cap = blueprint.soft_cap
    return Pass(rows, stream, hidden, uncapped, uncapped if cap is None else cap * np.tanh(uncapped / cap))

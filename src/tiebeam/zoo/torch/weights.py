"""A MiniGPT's weights as NumPy arrays, on their way from or to another framework."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from tiebeam.zoo.minigpt import Weights, check_weights
from tiebeam.zoo.torch.minigpt import MiniGPT


def weights_of(model: MiniGPT) -> Weights:
    """Return copies of every weight, float32, by the names of `tiebeam.zoo.minigpt`.

    Example:
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> model = MiniGPT(MiniGPTConfig(vocab=9, width=8, layers=0, heads=2, block_size=4))
        >>> {name: array.shape for name, array in weights_of(model).items()}
        {'embed.weight': (9, 8), 'positions.weight': (4, 8), 'norm.weight': (8,), 'norm.bias': (8,)}
    """
    return {name: p.detach().cpu().to(torch.float32, copy=True).numpy() for name, p in model.named_parameters()}


@torch.no_grad()
def assign_weights(model: MiniGPT, weights: Mapping[str, npt.NDArray[np.floating]]) -> None:
    """Give `model` these weights, where it lies; a tied table stays one.

    Raises:
        InputError: They are of another config; the model is as it was.
        ShapeError: Likewise.
    """
    own = dict(model.named_parameters())
    check_weights({n: w.shape for n, w in weights.items()}, {n: tuple(p.shape) for n, p in own.items()})
    for name, p in own.items():
        p.copy_(torch.from_numpy(np.array(weights[name])))

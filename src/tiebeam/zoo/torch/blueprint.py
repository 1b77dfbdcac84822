"""Blueprints in PyTorch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.zoo.blueprint import CLASSES, EPSILON, Blueprint, Built, Floats, stepped

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda width: nn.LayerNorm(width, eps=EPSILON, bias=False),
    "rms": lambda width: nn.RMSNorm(width, eps=EPSILON),
    "none": lambda width: nn.Identity(),
}


class BlueprintModel(nn.Module):
    """The language model of a blueprint: tied by giving `head` the parameter of `embed`."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        self.blueprint = blueprint
        width, vocab = blueprint.width, blueprint.vocab
        self.embed = nn.Embedding(vocab, width, padding_idx=blueprint.padding)
        if blueprint.positions:
            self.positions = nn.Embedding(blueprint.positions, width)
        self.mid = nn.Linear(width, width, bias=False)
        self.norm = NORMS[blueprint.norm](width)
        self.head = nn.Linear(width, vocab, bias=blueprint.bias)
        if blueprint.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `(batch, tokens, vocab)` of ids `(batch, tokens)`."""
        b = self.blueprint

        def array(by: float) -> Tensor:
            return torch.tensor(by, dtype=torch.float32, device=ids.device)

        x = stepped(self.embed(ids), b.lookup, array)
        if b.positions:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if b.norm_rows:
            x = F.layer_norm(x, (b.width,), eps=EPSILON)
        h = stepped(self.norm(x + torch.tanh(self.mid(x))), b.before, array)
        z: Tensor = stepped(self.head(h), b.after, array)
        return z if b.soft_cap is None else b.soft_cap * torch.tanh(z / b.soft_cap)


class BlueprintClassifier(nn.Module):
    """The control: no table."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        self.mid = nn.Linear(blueprint.width, blueprint.width, bias=False)
        self.out = nn.Linear(blueprint.width, CLASSES, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Scores `(batch, classes)` of features `(batch, width)`."""
        scores: Tensor = self.out(torch.tanh(self.mid(features)))
        return scores


PATHS = {
    "table": "embed.weight", "head": "head.weight", "positions": "positions.weight", "mid": "mid.weight",
    "gain": "norm.weight", "bias": "head.bias", "out": "out.weight",
}  # fmt: skip
TURNED = ("mid", "out")  # a Linear keeps (outputs, inputs)


class TorchBuilder:
    """Builds blueprints of `nn.Module`.

    Example:
        >>> blueprint = Blueprint(tied=False)
        >>> built = TorchBuilder().build(blueprint, blueprint.weights())
        >>> built.logits(built.model, blueprint.inputs()).shape
        (4, 24, 300)
    """

    framework = "torch"

    def build(self, blueprint: Blueprint, weights: Mapping[str, Floats], dtype: str = "float32") -> Built:
        """The model with these weights, in evaluation mode."""
        built = self._made(blueprint, "cpu")
        with torch.no_grad():
            for name, array in weights.items():
                value = torch.from_numpy(array.T if name in TURNED else array)
                built.model.get_parameter(PATHS[name]).copy_(value)
        built.model.to(getattr(torch, dtype))
        return built

    def abstract(self, blueprint: Blueprint) -> Built:
        """The model on the meta device."""
        return self._made(blueprint, "meta")

    def random_state(self) -> bytes:
        """PyTorch's generator."""
        return torch.get_rng_state().numpy().tobytes()

    def _made(self, blueprint: Blueprint, device: str) -> Built:
        kind = BlueprintModel if blueprint.kind == "language model" else BlueprintClassifier
        with torch.device(device):
            model = kind(blueprint).eval()
        there = dict(model.named_parameters(remove_duplicate=False))
        names: dict[str, tuple[str, ...]] = {name: (path,) for name, path in PATHS.items() if path in there}
        if blueprint.tied and blueprint.kind == "language model":
            names["table"] = (PATHS["table"], names.pop("head")[0])

        def arrays(model: Any) -> dict[str, Floats]:
            found = {name: model.get_parameter(paths[0]).detach().float().numpy() for name, paths in names.items()}
            return {name: (array.T if name in TURNED else array).copy() for name, array in found.items()}

        def logits(model: Any, inputs: Any) -> Floats:
            with torch.no_grad():
                out: Floats = model(torch.from_numpy(np.asarray(inputs))).float().numpy()
            return out

        return Built(model, None, names, arrays, logits)

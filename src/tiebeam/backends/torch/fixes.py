"""Python that mends a PyTorch model, as findings print it."""

from torch import nn

from tiebeam.backends.torch.names import all_parameters, module_tree
from tiebeam.backends.torch.parts import readable, sharded


def _get(path: str) -> str:
    return f"model.get_submodule({path!r})" if path else "model"


def _one_call(a: nn.Parameter, b: nn.Parameter) -> bool:
    """Whether `tiebeam.tie` takes the two: it tells the config, and the optimizer where it is given."""
    plain = all(p.is_meta or (p.is_floating_point() and readable(p) and not sharded(p)) for p in (a, b))
    return plain and (a.requires_grad, a.device) == (b.requires_grad, b.device)


class TorchFixes:
    """`core.findings.Fixes` for one module: only what would run on it is offered."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(module_tree(model))
        self.parameters = all_parameters(model)
        self.replicated = any(isinstance(m, nn.parallel.DistributedDataParallel) for m in self.modules.values())

    def tie(self, owner: str, other: str) -> str:
        a, b = self.parameters.get(owner), self.parameters.get(other)
        home, _, attribute = other.rpartition(".")
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or self.replicated:
            return ""
        if home not in self.modules or attribute not in self.modules[home]._parameters:
            return ""
        if hasattr(self.modules[home], "parametrizations") or home.endswith("parametrizations.weight"):
            return ""
        if not _one_call(a, b):
            return f"{_get(home)}.{attribute} = model.get_parameter({owner!r})"
        return f"tiebeam.tie(model, lookup={owner!r}, readout={other!r}, on_conflict='embedding')"

    def initialize(self) -> str:
        return "tiebeam.initialize(model, inputs)"

    def scale_lookup(self, where: str, factor: float) -> str:
        if not isinstance(self.modules.get(where), (nn.Embedding, nn.EmbeddingBag)):
            return ""
        return f"{_get(where)}.register_forward_hook(lambda module, args, rows: rows * {factor!r})"

    def train(self, name: str, on: bool) -> str:
        return f"model.get_parameter({name!r}).requires_grad_({on})" if name in self.parameters else ""

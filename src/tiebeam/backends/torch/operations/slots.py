"""The places of a model that hold a tensor, and putting another one there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import nn

from tiebeam.backends.torch.names import all_parameters, module_tree
from tiebeam.backends.torch.parts import readable, sharded
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError


@dataclass(frozen=True, slots=True)
class Slot:
    """A place where a module holds a parameter or a buffer.

    Attributes:
        module: The module itself.
        attribute: What it calls the tensor.
        paths: Every path of the place; a module that hangs at two places has two.
        buffer: Whether it is a buffer.
    """

    module: nn.Module
    attribute: str
    paths: tuple[str, ...]
    buffer: bool = False

    @property
    def tensor(self) -> torch.Tensor:
        held: torch.Tensor = (self.module._buffers if self.buffer else self.module._parameters)[self.attribute]  # type: ignore[assignment]
        return held

    def put(self, tensor: torch.Tensor, undo: Transaction) -> None:
        """Hold another tensor here."""
        held: dict[str, torch.Tensor | None] = self.module._buffers if self.buffer else self.module._parameters  # type: ignore[assignment]
        before = held[self.attribute]
        undo.did(lambda: held.__setitem__(self.attribute, before))
        held[self.attribute] = tensor


def slots(model: nn.Module) -> Iterator[Slot]:
    """Every place of a model, each once."""
    paths: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for path, module in module_tree(model):
        paths.setdefault(id(module), []).append(path)
        modules[id(module)] = module
    for key, module in modules.items():
        for held, buffer in ((module._parameters, False), (module._buffers, True)):
            for name, t in held.items():
                if t is not None:
                    yield Slot(module, name, tuple(f"{p}.{name}" if p else name for p in paths[key]), buffer)


def slots_of(model: nn.Module, tensor: torch.Tensor) -> list[Slot]:
    """The places that hold this very object."""
    return [s for s in slots(model) if s.tensor is tensor]


def beside_in_memory(model: nn.Module, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor, bool]]:
    """Other parameters that lie in the same storage: name, object, and whether they share elements."""
    home = tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None
    first, end = _span(tensor)
    found: list[tuple[str, torch.Tensor, bool]] = []
    for name, p in model.named_parameters():
        if p is not tensor and p.layout == torch.strided and p.untyped_storage()._cdata == home:
            start, last = _span(p)
            found.append((name, p, start < end and first < last))
    return found


def _span(t: torch.Tensor) -> tuple[int, int]:
    start = int(t.storage_offset()) * t.element_size()
    reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
    return start, start + reach * t.element_size()


def find(model: nn.Module, name: str) -> Slot:
    """The place with this path.

    Raises:
        TieError: A parametrisation computes what stands there.
        InputError: There is none.
    """
    every = list(slots(model))
    found = next((s for s in every if name in s.paths), None)
    if found is not None:
        return found
    home, _, attribute = name.rpartition(".")
    holder = dict(module_tree(model)).get(home)
    if holder is not None and isinstance(getattr(holder, attribute, None), torch.Tensor):
        raise TieError(
            f"{name!r} is no parameter: it is computed each time",
            got=_computed_by(holder, attribute),
            expected="a parameter that its module holds",
            hint="make it one again: torch.nn.utils.parametrize.remove_parametrizations("
            f"model.get_submodule({home!r}), {attribute!r}), or prune.remove, or remove_weight_norm",
        )
    names = [p for s in every for p in s.paths]
    near = get_close_matches(name, names, n=3)
    raise InputError(
        f"the model has no parameter {name!r}",
        expected=f"one of {', '.join(near or names[:5])}" + ("" if near else ", ..."),
        hint="name it as model.named_parameters(remove_duplicate=False) does",
    )


def _computed_by(holder: nn.Module, attribute: str) -> str:
    of_all = getattr(holder, "parametrizations", None)
    if isinstance(of_all, nn.ModuleDict) and attribute in of_all:
        return f"parametrised by {', '.join(type(p).__name__ for p in of_all[attribute].children())}"
    hooks = [type(h).__name__ for h in holder._forward_pre_hooks.values()]
    return f"made by a hook ({', '.join(hooks)})" if hooks else f"an attribute of {type(holder).__name__}"


def check_whole(tensor: torch.Tensor, name: str) -> None:
    """Raise where this process does not hold a tensor whole, in the tensor's own memory; on meta will do.

    Raises:
        TieError: It is sharded, or of a class that keeps its values elsewhere.
    """
    if sharded(tensor):
        raise TieError(
            f"{name!r} lies in shards",
            got=f"a {type(tensor).__name__}",
            expected="a tensor that this process holds whole",
            hint="operate before sharding, on every process alike",
        )
    if not (tensor.is_meta or tensor.is_complex() or tensor.layout != torch.strided or readable(tensor)):
        raise TieError(
            f"{name!r} keeps its values elsewhere",
            got=f"a {type(tensor).__name__} on {tensor.device}",
            expected="a plain tensor",
            hint="operate before quantising",
        )


def check_in_memory(places: Iterable[Slot]) -> None:
    """Raise where a wrapper fetches a tensor for each pass: what is written to its place is lost.

    Raises:
        TieError: So it is.
    """
    away = next((s for s in places if s.tensor.is_meta and _fetched(s.module)), None)
    if away is not None:
        raise elsewhere(away.paths[0])


def _fetched(module: nn.Module) -> bool:
    hook = getattr(module, "_hf_hook", None)  # as accelerate leaves it on every module that it offloads
    return any(getattr(h, "offload", False) for h in getattr(hook, "hooks", (hook,)))


def elsewhere(name: str) -> TieError:
    """The error of a tensor that a wrapper fetches for each pass."""
    return TieError(
        f"{name!r} lies elsewhere: a wrapper fetches it for each pass, and what is written is lost",
        got="a parameter on meta that has values while the model runs",
        expected="parameters in memory",
        hint="change the model before it is offloaded",
    )


def check_plain(tensor: torch.Tensor, name: str) -> None:
    """Raise where a tensor is no plain one of floats that this process holds whole; without values (meta) will do.

    Raises:
        TieError: It is sharded, quantised, of integers, or of a class that keeps its values elsewhere; or its gradient
            is of another size, as one is that a resize by other means left behind.
    """
    check_whole(tensor, name)
    if tensor.grad is not None and tensor.grad.shape != tensor.shape:
        raise TieError(
            f"the gradient of {name!r} is of another size",
            got=f"{tuple(tensor.grad.shape)}",
            expected=f"{tuple(tensor.shape)}, as the parameter is",
            hint="model.zero_grad(): it is of before the table was resized, and no step can use it",
        )
    if not tensor.is_floating_point() or not (tensor.is_meta or readable(tensor)):
        raise TieError(
            f"{name!r} holds no floats of its own",
            got=f"a {type(tensor).__name__} of {tensor.dtype} on {tensor.device}",
            expected="a parameter of floats",
            hint="operate before quantising, sharding or offloading",
        )


def groups(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Paths that are one parameter, where it has several; those through one module at two places count too.

    Example:
        >>> model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
        >>> groups(model)
        ()
        >>> model["head"].weight = model["embed"].weight
        >>> groups(model)
        (('embed.weight', 'head.weight'),)
    """
    found: dict[int, list[str]] = {}
    for name, p in all_parameters(model).items():
        found.setdefault(id(p), []).append(name)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)


def distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Each object once, in order."""
    return list({id(t): t for t in tensors}.values())

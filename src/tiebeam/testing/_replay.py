"""Run a PyTorch model once while every function call is written down, and swap what the caller asks for.

The unit is the *call* (``F.linear``, ``Tensor.__getitem__``), as Python makes it, not the kernel: the
recording therefore shares nothing with a trace of dispatched operations.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiebeam.errors import InputError

if TYPE_CHECKING:
    import torch

GATHERS = frozenset(
    {
        "embedding",
        "embedding_bag",
        "__getitem__",
        "index_select",
        "gather",
        "take_along_dim",
        "take_along_axis",
    }
)
PRODUCTS = frozenset(
    """linear matmul __matmul__ __rmatmul__ mm bmm addmm addmm_ addbmm baddbmm baddbmm_ einsum
    tensordot inner mv addmv""".split()
)


@dataclass
class Call:
    """One function call: what went in (copies), what came out (copies), and whether a table was in it.

    `table_args` are positions in the flat list of tensors among the arguments; `unit` is the table
    argument this call would have seen had every entry of the table been 1.
    """

    index: int
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: list[int]
    out_ids: list[int]
    outs: list["torch.Tensor"]
    table_args: list[int] = field(default_factory=list)
    unit: "torch.Tensor | None" = None


def tensors_in(tree: Any) -> Iterator["torch.Tensor"]:
    """Every tensor in nested tuples, lists, dicts, mappings and plain objects that hold some."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for v in tree.values():
            yield from tensors_in(v)
    elif isinstance(tree, list | tuple):
        for v in tree:
            yield from tensors_in(v)


def replace_tensors(tree: Any, new: Iterator["torch.Tensor"]) -> Any:
    """The same tree with its tensors replaced in order."""
    import torch

    if isinstance(tree, torch.Tensor):
        return next(new)
    if isinstance(tree, dict):
        return {k: replace_tensors(v, new) for k, v in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[replace_tensors(v, new) for v in tree])
    if isinstance(tree, list | tuple):
        return type(tree)(replace_tensors(v, new) for v in tree)
    return tree


def again(call: Call, tensors: Sequence["torch.Tensor"]) -> "torch.Tensor":
    """Make the call once more on other tensors (copies, so that in-place calls harm nothing)."""
    import torch

    fresh = (t.clone() for t in tensors)
    args, kwargs = replace_tensors((call.args, call.kwargs), fresh)
    with torch.no_grad():
        return next(tensors_in(call.func(*args, **kwargs)))


Swap = Mapping[int, Callable[["torch.Tensor"], "torch.Tensor"]]
Move = Callable[["torch.Tensor"], "torch.Tensor"]


def run(
    model: "torch.nn.Module",
    inputs: Any,
    tables: Mapping[int, "torch.Tensor"],
    *,
    record: bool = False,
    swap: Swap | None = None,
    shadow: Move | None = None,
    shadow_calls: frozenset[int] = frozenset(),
) -> list[Call]:
    """One forward pass without gradients, from one fixed state of the generators of random numbers.

    Args:
        model: Any module; its mode is left as it is.
        inputs: A tuple is positional, a dict is keyword arguments, a tensor is one argument.
        tables: The parameters to follow, by id.
        record: Whether arguments are copied too (needed for `again`).
        swap: For a call's index, what its first output is replaced by.
        shadow: What the table is moved to, for the calls in `shadow_calls` alone; also fills `Call.unit`.
        shadow_calls: Indices of the calls that see the moved table.

    Returns:
        Every call that gave a tensor, in order.

    Raises:
        InputError: The model refused the inputs.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    moved = {i: (shadow(t.detach()) if shadow else t.detach()) for i, t in tables.items()}
    pad = _Pad(moved, record, swap or {}, shadow_calls)

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return pad.write(func, args, kwargs or {})

    with torch.no_grad(), _one_draw(), Recorder():
        _forward(model, inputs)
    return pad.calls


class _Pad:
    """What is written down during one pass."""

    def __init__(
        self, moved: dict[int, "torch.Tensor"], record: bool, swap: Swap, shadow_calls: frozenset[int]
    ) -> None:
        self.calls: list[Call] = []
        self.moved, self.record, self.swap, self.shadow_calls = moved, record, swap, shadow_calls
        self.keep: list[torch.Tensor] = []  # ids stay unique while their owners live

    def write(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        import torch

        given = list(tensors_in((args, kwargs)))
        if not given:
            return func(*args, **kwargs)
        name, index, ids = _name(func), len(self.calls), [id(t) for t in given]
        at = [i for i, n in enumerate(ids) if n in self.moved]
        unit = self.moved[ids[at[0]]] if at else None
        copies = [t.detach().clone() for t in given] if self.record else []
        out = self._call(func, args, kwargs, given) if index in self.shadow_calls else func(*args, **kwargs)
        if not isinstance(out, torch.Tensor | tuple | list) or not list(tensors_in(out)):
            return out
        if index in self.swap:
            out = self._swapped(name, index, out)
        outs = list(tensors_in(out))
        if at and not _reads(name, given, at) and outs[0].is_floating_point():
            # A cast, slice, transpose or rescaling of the table is the table still.
            follows = self._call(func, args, kwargs, [t.detach().clone() for t in given], ids)
            self.moved.update((id(t), m.detach()) for t, m in zip(outs, tensors_in(follows), strict=True))
        self.keep += [*given, *outs]
        old_args, old_kwargs = replace_tensors((args, kwargs), iter(copies)) if self.record else ((), {})
        results = [t.detach().clone() for t in outs]
        out_ids = [id(t) for t in outs]
        self.calls.append(Call(index, name, func, old_args, old_kwargs, ids, out_ids, results, at, unit))
        return out

    def _call(self, func: Any, args: Any, kwargs: Any, given: Sequence["torch.Tensor"], ids: Any = None) -> Any:
        """The call on the moved table."""
        names = ids or [id(t) for t in given]
        new = iter([self.moved.get(n, t) for n, t in zip(names, given, strict=True)])
        args, kwargs = replace_tensors((args, kwargs), new)
        return func(*args, **kwargs)

    def _swapped(self, name: str, index: int, out: Any) -> Any:
        first, *rest = tensors_in(out)
        new = self.swap[index](first)
        if name.endswith("_") and not name.endswith("__"):
            new = first.copy_(new)  # in place: whoever holds the memory sees it
        return replace_tensors(out, iter([new, *rest]))


@contextmanager
def _one_draw() -> Iterator[None]:
    """Every pass draws the same random numbers; afterwards the generators stand where they stood."""
    import numpy as np
    import torch

    state = np.random.get_state()  # noqa: NPY002 - models draw from the global generator
    python = random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
            random.setstate(python)


def _name(func: Callable[..., Any]) -> str:
    name = str(getattr(func, "__name__", ""))
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


def _forward(model: "torch.nn.Module", inputs: Any) -> None:
    try:
        if isinstance(inputs, dict):
            model(**inputs)
        elif isinstance(inputs, tuple):
            model(*inputs)
        else:
            model(inputs)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"{type(model).__name__} refused the inputs", got=str(error)) from error


def _reads(name: str, given: Sequence["torch.Tensor"], at: Sequence[int]) -> bool:
    """Whether a call reads the table in some role, rather than handing on another form of it."""
    return len(given) > len(at) and (name in GATHERS or name in PRODUCTS)

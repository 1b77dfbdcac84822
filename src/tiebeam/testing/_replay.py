"""Run a PyTorch model once while every function call is written down, and swap what the caller asks for.

The unit is the *call* (``F.linear``, ``Tensor.__getitem__``), as Python makes it, not the kernel: the
recording therefore shares nothing with a trace of dispatched operations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiebeam.errors import InputError

if TYPE_CHECKING:
    import torch

GATHERS = frozenset(
    {"embedding", "embedding_bag", "__getitem__", "index_select", "gather", "take_along_dim", "take_along_axis"}
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


def run(
    model: "torch.nn.Module",
    inputs: Any,
    tables: Mapping[int, "torch.Tensor"],
    *,
    record: bool = False,
    swap: Mapping[int, Callable[["torch.Tensor"], "torch.Tensor"]] | None = None,
    shadow: Callable[["torch.Tensor"], "torch.Tensor"] | None = None,
    shadow_calls: frozenset[int] = frozenset(),
) -> list[Call]:
    """One forward pass without gradients.

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

    calls: list[Call] = []
    keep: list[torch.Tensor] = []  # ids stay unique while their owners live
    moved: dict[int, torch.Tensor] = {
        i: (shadow(t.detach()) if shadow else t.detach()) for i, t in tables.items()
    }

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            given = list(tensors_in((args, kwargs)))
            if not given:
                return func(*args, **kwargs)
            name, index = getattr(func, "__name__", ""), len(calls)
            if name == "__get__":
                name = getattr(getattr(func, "__self__", None), "__name__", name)
            ids = [id(t) for t in given]
            at = [i for i, n in enumerate(ids) if n in moved]
            copies = [t.detach().clone() for t in given] if record else []
            unit = moved[ids[at[0]]] if at else None
            out = _call(func, args, kwargs, given, index)
            outs = list(tensors_in(out))
            if not outs or not isinstance(out, torch.Tensor | tuple | list):
                return out
            if swap and index in swap:
                new = swap[index](outs[0])
                if name.endswith("_") and not name.endswith("__"):
                    new = outs[0].copy_(new)  # whoever holds the memory sees it
                out = replace_tensors(out, iter([new, *outs[1:]]))
                outs = list(tensors_in(out))
            if at and not _reads(name, given, at):
                self._follow(func, args, kwargs, given, outs)
            keep.extend(given)
            keep.extend(outs)
            kept_args, kept_kwargs = replace_tensors((args, kwargs), iter(copies)) if record else ((), {})
            results = [t.detach().clone() for t in outs]
            calls.append(
                Call(index, name, func, kept_args, kept_kwargs, ids, [id(t) for t in outs], results, at, unit)
            )
            return out

        def _follow(self, func: Any, args: Any, kwargs: Any, given: Any, outs: Any) -> None:
            """A cast, slice, transpose or rescaling of the table is the table still."""
            if not outs[0].is_floating_point() or func is torch.Tensor.grad.__get__:  # type: ignore[attr-defined]
                return
            new = iter([moved.get(id(t), t).detach().clone() for t in given])
            with torch.no_grad():
                result = func(*replace_tensors(args, new), **replace_tensors(kwargs, new))
            for t, m in zip(outs, tensors_in(result), strict=True):
                moved[id(t)] = m.detach()

    def _call(func: Any, args: Any, kwargs: Any, given: list[torch.Tensor], index: int) -> Any:
        if index in shadow_calls:
            new = iter([moved.get(id(t), t) for t in given])
            args, kwargs = replace_tensors((args, kwargs), new)
        return func(*args, **kwargs)

    with torch.no_grad(), Recorder():
        _forward(model, inputs)
    return calls


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

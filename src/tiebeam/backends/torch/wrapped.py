"""Where, in a model that was wrapped since, the paths of a report lead."""

from torch import nn

from tiebeam.backends.torch.names import named_tensors
from tiebeam.core.report import Report
from tiebeam.errors import InputError


def inside(model: nn.Module, report: Report) -> tuple[str, nn.Module]:
    """What wrappers (DDP, `torch.compile`) put before the paths of a report, and the module whose paths they are.

    A wrapper is a module with nothing of its own around one child. Where the report was made on this very model, or
    is of another one, that is "" and the model itself.

    Raises:
        InputError: It is no model.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            "the first argument is no model",
            got=type(model).__name__,
            expected="a torch.nn.Module",
            hint="pass the model itself, not its parameters",
        )
    prefix, inner = "", model
    names = {n for n, _, _ in named_tensors(model)}
    while report.tables and not all(any(joined(prefix, n) in names for n in t.names) for t in report.tables):
        children = list(inner.named_children())
        if len(children) != 1 or any(True for _ in inner.parameters(recurse=False)):
            return "", model
        prefix, inner = joined(prefix, children[0][0]), children[0][1]
    return prefix, inner


def joined(prefix: str, name: str) -> str:
    """The path of what has this name within the prefix."""
    return f"{prefix}.{name}" if prefix else name


def is_compiled(model: nn.Module, path: str) -> bool:
    """Whether `torch.compile` compiles the module at this path: itself, or one that it is part of."""
    return any(
        "_orig_mod" in module._modules or module._compiled_call_impl is not None
        for name, module in model.named_modules()
        if not name or path == name or path.startswith(f"{name}.")
    )

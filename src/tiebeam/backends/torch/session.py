"""Running a model so that nothing is left behind: RNG, modes, hooks, caches, parameters, buffers."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from tiebeam.blocks.readout_loss.sight import logits_in_sight
from tiebeam.core.together import Together


class NothingKeptError(RuntimeError):
    """The model asked for gradients within its forward, and nothing was kept for a backward pass."""


_EAGERLY = Together(lambda: torch.compiler.set_stance("force_eager"))


def _refuse(_: None) -> torch.Tensor:
    raise NothingKeptError("tiebeam's pass keeps nothing for a backward pass")


@contextmanager
def neutral(
    modules: Iterable[nn.Module],
    parameters: Sequence[nn.Parameter],
    seed: int | None = None,
    *,
    drop: bool = True,
    grad: bool = True,
) -> Iterator[None]:
    """Conditions of the pass.

    Gradients are recorded (so detached roles show and fused inference paths are not taken) but nothing
    is kept for a backward pass; cached casts are cleared; compiled wrappers run eagerly; tiebeam's own readout
    loss goes by way of its logits; generators are as before afterwards.

    Args:
        modules, parameters: Of the model, each once.
        seed: Of the pass; None takes the generators as they stand.
        drop: Keep nothing for a backward pass.
        grad: Record gradients whatever the caller's mode.
    """
    devices = sorted({p.device.index for p in parameters if p.device.type == "cuda" and p.device.index is not None})
    callers = torch.is_grad_enabled()  # asked here: leaving inference mode switches gradients on
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the model may use it: restore it
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(torch.inference_mode(False))
        frozen = any(p.is_inference() for p in parameters)  # made in inference mode: no gradient can be asked for
        stack.enter_context(torch.set_grad_enabled(not frozen if grad else callers))
        if drop:
            keep_nothing = id  # it returns a number, and is the quickest there is
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep_nothing, _refuse))
        if _compiled(modules):
            stack.enter_context(_EAGERLY)
        stack.enter_context(logits_in_sight())
        torch.clear_autocast_cache()
        if seed is not None:
            torch.manual_seed(seed % 2**64)  # all that it takes
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - see above
        try:
            yield
        finally:
            torch.clear_autocast_cache()
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - see above


def _compiled(modules: Iterable[nn.Module]) -> bool:
    import sys

    # A compiled function anywhere needs dynamo to be loaded; asking the stance would load it (seconds).
    return "torch._dynamo" in sys.modules or any(m._compiled_call_impl is not None for m in modules)


def reshard(modules: Sequence[nn.Module]) -> None:
    """Bring the parameters of fully sharded modules back to their shards: those are what an optimizer holds."""
    sharded = {kind for kind in set(map(type, modules)) if hasattr(kind, "_get_fsdp_state")}
    for module in modules if sharded else ():
        if type(module) in sharded:
            back: Any = module.reshard
            back()


def unwrapped(model: nn.Module) -> nn.Module:
    """What to run: a data-parallel wrapper would wait for a backward pass that never comes."""
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    return model

"""The circumstances under which models are built and run: their seed."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import numpy as np

PASS = 1


@contextmanager
def seeded(seed: int, *, part: int = 0) -> Iterator[None]:
    """The global generators of Python, NumPy and torch at a seed; as before afterwards.

    Torch's is seeded where torch is loaded, or as soon as it is: other frameworks do without it, and TensorFlow can
    crash beside it.

    Args:
        seed: Below 2**32, which is all that NumPy takes.
        part: Another stream of the same seed, so that a pass does not drop out by the numbers that its
            weights were drawn from. `PASS` is the one for running a model.
    """
    number = int(np.random.SeedSequence((seed, part)).generate_state(1)[0]) if part else seed
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - models may use it
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    try:
        with _torch_at(number) if "torch" in sys.modules else _torch_when_loaded(number):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _torch_at(seed: int) -> Iterator[None]:
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _torch_when_loaded(seed: int) -> Iterator[None]:
    finder = _SeedTorch(seed)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _SeedTorch(MetaPathFinder):
    """Finds nothing itself; when torch is asked for, seeds it behind its import."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_seed(module: ModuleType) -> None:
                run(module)
                module.manual_seed(self._seed)

            vars(spec.loader)["exec_module"] = run_and_seed
        return spec

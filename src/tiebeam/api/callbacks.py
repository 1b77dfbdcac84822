"""A watch as a callback of others' training loops; each library is imported where its callback is asked for."""

import sys
from importlib.util import find_spec
from typing import Any, Protocol

from tiebeam.errors import BackendError


class Watching(Protocol):
    """What of a `Watch` a callback needs."""

    every: int
    speaks: bool

    def __call__(self, step: int, batch: Any) -> object: ...


def trainer_callback(watch: Watching, batch: Any) -> Any:
    """See `Watch.trainer_callback`."""
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):  # type: ignore[misc]  # transformers is Any here
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.speaks = state.is_world_process_zero
            watch(state.global_step, batch)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch(state.global_step, batch)

    return WatchCallback()


def lightning_callback(watch: Watching, batch: Any) -> Any:
    """See `Watch.lightning_callback`."""
    base: Any = _lightning().Callback

    class WatchCallback(base):  # type: ignore[misc]  # Lightning is Any here
        """Measures once for each value of `global_step`: batches that are accumulated share one."""

        def __init__(self) -> None:
            self.seen, self.last = -1, batch

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            watch.speaks = trainer.is_global_zero

        def on_train_batch_start(self, trainer: Any, pl_module: Any, given: Any, batch_idx: int) -> None:
            self.last = given if batch is None else batch
            self._look(trainer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._look(trainer)

        def _look(self, trainer: Any) -> None:
            if self.last is None or trainer.global_step == self.seen:
                return
            self.seen = trainer.global_step
            with trainer.precision_plugin.forward_context():
                watch(self.seen, tuple(self.last) if isinstance(self.last, list) else self.last)

    return WatchCallback()


def keras_callback(watch: Watching, batch: Any) -> Any:
    """See `Watch.keras_callback`."""
    from keras.callbacks import Callback

    class WatchCallback(Callback):  # type: ignore[misc]  # Keras is Any here
        """Counts steps over epochs and calls of `fit`."""

        def __init__(self) -> None:
            super().__init__()
            self.done, self.before = 0, 0

        def on_train_begin(self, logs: Any = None) -> None:
            if not self.done:
                watch(0, batch)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = self.done

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            passed, self.done = self.done, self.before + number + 1
            due = self.done // watch.every * watch.every
            if due > passed:
                # On JAX what the step has made is not in the model's variables yet.
                getattr(self.model, "jax_state_sync", lambda: None)()
                watch(due, batch)

    return WatchCallback()


def _lightning() -> Any:
    """The library whose trainer is in use: the two names are two libraries, which know nothing of one another."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = next((sys.modules[n] for n in names if n in sys.modules), None)
    if loaded is not None:
        return loaded
    for name in names:
        if find_spec(name.partition(".")[0]) is not None:
            from importlib import import_module

            return import_module(name)
    raise BackendError(
        "this callback needs Lightning", got="neither of its packages", hint="pip install 'tiebeam[lightning]'"
    )

"""`tiebeam.Watch`."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiebeam.api.measurement import Loss, measure
from tiebeam.backends import entry_of
from tiebeam.core.measurement import Measurement
from tiebeam.core.watching import Alarms
from tiebeam.errors import BackendError, InputError, RangeError

Log = Callable[[dict[str, Any]], object]

FIGURES = ("initial_loss", "logit_std", "hidden_rms", "lookup_rms", "kappa", "own_logit", "own_rank", "role_ratio",
           "role_cosine")  # fmt: skip


class Watch:
    """Measure a model every so many steps of its training.

    Call it with each step and batch, before or after the backward pass; it measures at every `every`-th and leaves
    everything as it was, gradients that are being accumulated too. What cannot be measured is recorded and warned of
    once; training goes on. It warns once when a tie breaks, when a role sends no gradient any more, and when the token
    just read still ranks first after 100 steps.

    Args:
        model: As for `measure`.
        every: Steps from one measurement to the next.
        log: Called with each record: a flat dict of numbers, "step" among them.
        path: A file that each record is appended to as one line of JSON.
        loss: As for `measure`.

    Attributes:
        history: Step and measurement of each, in order.

    Raises:
        RangeError: `every` is below 1.
        BackendError: The model's arrays do not change, as in JAX; or it is of no framework.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.torch.config import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model, ids = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=99, width=16)), torch.arange(8)[None]
        >>> watch = tiebeam.Watch(model, every=10)
        >>> for step in range(25):
        ...     _ = watch(step, ids)
        >>> [step for step, _ in watch.history]
        [0, 10, 20]
    """

    def __init__(
        self,
        model: Any,
        every: int = 100,
        log: Log | None = None,
        *,
        path: str | Path | None = None,
        loss: Loss | None = None,
    ) -> None:
        if every < 1:
            raise RangeError("a watch looks every so many steps", got=f"every={every}", expected="1 or more")
        if entry_of(model).functional:
            raise BackendError(
                "a watch holds the model that is trained",
                got=f"{type(model).__name__}, of which each step makes a new one",
                expected="a model of PyTorch or Keras",
            )
        self.model, self.every, self.log, self.loss = model, every, log, loss
        self.path = None if path is None else Path(path)
        self.history: list[tuple[int, Measurement]] = []
        self._alarms = Alarms()
        self._refused: set[str] = set()

    def __call__(self, step: int, batch: Any) -> Measurement | None:
        """Measure if this step is to be measured; the measurement, or None."""
        if step % self.every:
            return None
        try:
            found = measure(self.model, batch, loss=self.loss)
        except InputError as error:
            self._record({"step": step, "error": str(error)})
            if error.what not in self._refused:
                self._refused.add(error.what)
                warnings.warn(f"step {step}: {error}", stacklevel=2)
            return None
        self.history.append((step, found))
        self._record(record_of(step, found))
        for alarm in self._alarms.sounding(step, found):
            warnings.warn(alarm, stacklevel=2)
        return found

    def _record(self, record: dict[str, Any]) -> None:
        if self.log is not None:
            self.log(record)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def trainer_callback(self, batch: Any) -> Any:
        """A callback for `transformers.Trainer` that measures one and the same batch as training goes on.

        Args:
            batch: On the model's device. A callback is not shown the batches that are trained on; one that stays the
                same makes the figures comparable.
        """
        from transformers import TrainerCallback

        watch = self

        class WatchCallback(TrainerCallback):  # type: ignore[misc]  # transformers is Any here
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch(state.global_step, batch)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch(state.global_step, batch)

        return WatchCallback()

    def keras_callback(self, batch: Any) -> Any:
        """A callback for `model.fit` that measures one and the same batch as training goes on.

        It measures before the first step and after every `every`-th, counted over epochs and calls of `fit`, on each
        framework that Keras runs on. Models that are compiled with `steps_per_execution` are seen at the first chance
        after each.

        Args:
            batch: As for `measure`: token ids, or `(ids, labels)`. A callback is not shown the batches that are trained
                on; one that stays the same makes the figures comparable.

        Example:
            >>> import keras, numpy as np, tiebeam
            >>> from tiebeam.zoo.keras.gpt import gpt
            >>> model, ids = gpt("C", vocab=50, width=16, layers=1), np.arange(24).reshape(4, 6)
            >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            >>> watch = tiebeam.Watch(model, every=2)
            >>> callbacks = [watch.keras_callback(ids)]
            >>> _ = model.fit(ids[:, :-1], ids[:, 1:], batch_size=1, callbacks=callbacks, verbose=0)
            >>> [step for step, _ in watch.history]
            [0, 2, 4]
        """
        from keras.callbacks import Callback

        watch = self

        class WatchCallback(Callback):  # type: ignore[misc]  # Keras is Any here
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
                    # On JAX the step's result is not in the model's variables yet.
                    getattr(self.model, "jax_state_sync", lambda: None)()
                    watch(due, batch)

        return WatchCallback()


def record_of(step: int, found: Measurement) -> dict[str, Any]:
    """The figures of a measurement as one flat dict; those that are not known are left out."""
    figures = {name: getattr(found, name) for name in FIGURES}
    for role, gradient in found.roles.items():
        figures |= {f"{role}_grad_norm": gradient.grad_norm, f"{role}_rows": gradient.rows}
    return {"step": step, **{k: v for k, v in figures.items() if v is not None}}

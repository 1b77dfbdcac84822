"""`tiebeam.Watch`."""

import json
import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam.api.measurement import Loss, check_callable, measure
from tiebeam.backends import entry_of
from tiebeam.core.measuring.measurement import Measurement
from tiebeam.core.training.watching import Alarms
from tiebeam.errors import InputError, RangeError

Log = Callable[[dict[str, Any]], object]

FIGURES = ("logit_std", "hidden_rms", "lookup_rms", "kappa", "own_logit", "own_rank", "role_ratio", "role_cosine")


class Watch:
    """Measure a model every so many steps of its training.

    Call it with each step and batch, before or after the backward pass; it measures at every `every`-th and leaves
    everything as it was, gradients that are being accumulated too. What cannot be measured is recorded and warned of
    once; training goes on. It warns once when a tie breaks, when a role sends no gradient any more, and when the token
    just read still ranks first after 100 steps.

    In JAX a step makes new arrays, so they come with each call: `watch(step, batch, params=params)` where they stand
    beside the model, `watch(step, batch, model=model)` where it holds them and is a new one (Equinox). Call it before
    the step that they are donated to.

    Args:
        model: As for `measure`.
        every: Steps from one measurement to the next.
        log: Called with each record: a flat dict of numbers, "step" among them.
        path: A file that each record is appended to as one line of JSON.
        loss: As for `measure`.

    Attributes:
        history: A pair `(step, Measurement)` for each step that was measured, in order: `history[-1][1].loss`. The flat
            dicts that `log` and `path` get are made of these; steps that could not be measured are in those alone.
        speaks: Whether records go to `log` and `path`, and alarms sound; the callbacks let one of several processes.

    Raises:
        RangeError: `every` is below 1.
        BackendError: The model is of no framework.
        InputError: `path` is a folder, or in none.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model, ids = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=99, width=16)), torch.arange(8)[None]
        >>> watch = tiebeam.Watch(model, every=10)
        >>> for step in range(25):
        ...     _ = watch(step, ids)
        >>> [step for step, _ in watch.history]
        [0, 10, 20]
        >>> watch.history[-1][1].loss == watch.history[-1][1].initial_loss
        True
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
        given: Any = every
        if not isinstance(given, (int, np.integer)) or given < 1:
            raise RangeError(
                "a watch looks every so many steps",
                got=f"every={every!r}",
                expected="a whole number, 1 or more",
                hint="every=100, or leave it out",
            )
        check_callable("log", log, "a function of one record, a dict")
        check_callable("loss", loss, "a function of what the model returns and the batch")
        self._holds = entry_of(model, params=()).holds  # a function is a model beside params, which come later
        self.model, self.every, self.log, self.loss = model, every, log, loss
        self.path = None if path is None else _checked(Path(path))
        self.history: list[tuple[int, Measurement]] = []
        self.speaks = True
        self._alarms = Alarms()
        self._refused: set[str] = set()

    def __call__(self, step: int, batch: Any, *, params: Any = None, model: Any = None) -> Measurement | None:
        """Measure if this step is to be measured.

        Args:
            step: Of training.
            batch: As for `measure`.
            params: What a model that holds no arrays is applied to now.
            model: What the model has become, where each step makes a new one.

        Returns:
            The measurement, or None.

        Raises:
            InputError: The arrays of a model that does not hold its own, or the new model, were not given; or the step
                is no whole number.
        """
        self._check_given(params, model)
        step = _whole(step)
        if step % self.every:
            return None
        try:
            found = measure(self.model if model is None else model, batch, params=params, loss=self.loss)
        except InputError as error:
            self._record({"step": step, "error": str(error)})
            if error.what not in self._refused:
                self._refused.add(error.what)
                self._warn(f"step {step}: {error}")
            return None
        self.history.append((step, found))
        self._record(record_of(step, found))
        for alarm in self._alarms.sounding(step, found):
            self._warn(alarm)
        return found

    def _check_given(self, params: Any, model: Any) -> None:
        if self._holds == "beside" and params is None:
            raise InputError(
                f"{_name(self.model)} holds no arrays",
                got="no params",
                expected="those of this step",
                hint="watch(step, batch, params=params)",
            )
        if self._holds == "new" and model is None:
            raise InputError(
                f"each step makes a new {_name(self.model)}",
                got="none",
                expected="what the model has become",
                hint="watch(step, batch, model=model)",
            )

    def _warn(self, text: str) -> None:
        if self.speaks:
            warnings.warn(text, stacklevel=3)  # where the watch was called

    def _record(self, record: dict[str, Any]) -> None:
        if not self.speaks:
            return
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
        from tiebeam.api.callbacks import trainer_callback

        return trainer_callback(self, batch)

    def lightning_callback(self, batch: Any = None) -> Any:
        """A callback for `lightning.Trainer`, and for that of `pytorch_lightning`, whichever is loaded.

        It measures before a batch is trained on, at the first one of each step, in the trainer's precision; and
        once more when training ends.

        Args:
            batch: On the model's device; one that stays the same makes the figures comparable. None: the batch that
                is about to be trained on; what a data loader collates to a list counts as a tuple.

        Raises:
            BackendError: Lightning is not installed.
        """
        from tiebeam.api.callbacks import lightning_callback

        return lightning_callback(self, batch)

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
        from tiebeam.api.callbacks import keras_callback

        return keras_callback(self, batch)


def _checked(path: Path) -> Path:
    """A file that can be written, as far as that is seen before training begins."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"a watch cannot write to '{path}'",
            got="a folder" if path.is_dir() else f"no folder '{path.parent}'",
            expected="a file in a folder that is there",
            hint="make the folder first" if not path.is_dir() else "name a file in it: watch.jsonl",
        )
    return path


def _whole(step: Any) -> int:
    """A step as a number of Python's: JAX and PyTorch may count in arrays."""
    try:
        return operator.index(step)
    except TypeError:
        kind, shape = type(step).__name__, getattr(step, "shape", ())
        raise InputError(
            "a watch is called with the step first",
            got=f"{kind} of shape {tuple(shape)}" if shape else repr(step),
            expected="a whole number",
            hint="watch(step, batch)",
        ) from None


def _name(model: Any) -> str:
    return str(getattr(model, "__name__", type(model).__name__))


def record_of(step: int, found: Measurement) -> dict[str, Any]:
    """The figures of a measurement as one flat dict; those that are not known are left out."""
    figures = {"loss": found.initial_loss, **{name: getattr(found, name) for name in FIGURES}}
    for role, gradient in found.roles.items():
        figures |= {f"{role}_grad_norm": gradient.grad_norm, f"{role}_rows": gradient.rows}
    return {"step": step, **{k: v for k, v in figures.items() if v is not None}}

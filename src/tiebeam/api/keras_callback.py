"""A watch as a callback of Keras' training loop."""

from typing import TYPE_CHECKING, Any

from keras.callbacks import Callback

if TYPE_CHECKING:
    from tiebeam.api.watching import Watch


def keras_callback(watch: "Watch", batch: Any) -> Any:
    """See `Watch.keras_callback`."""

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

"""Which of the frameworks a Keras model runs on, and whether it can be looked at."""

from collections.abc import Callable
from importlib import import_module

import keras

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.untouched import not_built
from tiebeam.errors import BackendError

#: framework that Keras runs on -> the backend's view of a model
RUNNING = {
    "jax": ("tiebeam.backends.keras.on_jax", "KerasOnJax"),
    "torch": ("tiebeam.backends.keras.on_torch", "KerasOnTorch"),
    "tensorflow": ("tiebeam.backends.keras.tensorflow.model", "TensorflowModel"),
}


def of_keras(model: keras.Layer) -> KerasModel:
    """The view of a model for the framework that Keras runs on.

    Raises:
        BackendError: Keras runs on a framework that computes no graph, or the model is of another run of Keras.
        InputError: The model is not built.
    """
    running = keras.backend.backend()
    if not isinstance(model, keras.Layer):
        raise BackendError(
            f"{type(model).__name__} is of another load of Keras",
            got="a layer of a Keras that was imported at another time, perhaps on another framework",
            expected=f"one of the Keras that tiebeam sees, which runs on {running}",
            hint="set KERAS_BACKEND before the first import of Keras, and import it once",
        )
    if running not in RUNNING:
        raise BackendError(
            f"tiebeam cannot look at {type(model).__name__} while Keras runs on {running}",
            got=f"KERAS_BACKEND={running}",
            expected=" or ".join(RUNNING),
            hint="save the model and load it under one of those",
        )
    if not model.built or any(v._value is None for v in model.variables):
        raise not_built(model, model)
    home, name = RUNNING[running]
    view: Callable[[keras.Layer], KerasModel] = getattr(import_module(home), name)
    return view(model)

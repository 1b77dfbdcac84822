"""Why an operation has no meaning outside PyTorch, and what serves there instead."""

from typing import Literal, NamedTuple

from tiebeam.backends import Entry
from tiebeam.errors import BackendError


class Why(NamedTuple):
    """A reason, and what to do."""

    reason: str
    hint: str


Group = Literal["join", "rows", "watch", "files"]

GROUPS: dict[str, Group] = {
    **dict.fromkeys(("tie", "untie", "retie"), "join"),
    "resize": "rows",
    **dict.fromkeys(("guard", "ties"), "watch"),
    **dict.fromkeys(("save", "load"), "files"),
}

_TESTS = "tiebeam.testing.assert_tied holds it in your tests"

KERAS: dict[Group, Why] = {
    "join": Why(
        "which variables a Keras layer holds is settled when it is built",
        "tiebeam.inspect(model, inputs) prints code that gives two layers one variable, where that can be; else build "
        "the model anew (keras.layers.ReversibleEmbedding, tie_weights=True or False) and copy its weights",
    ),
    "rows": Why(
        "a Keras variable has one shape for life, and layers are built around it",
        "build the model anew for the other size, and copy its weights",
    ),
    "watch": Why("loading and casting write into Keras' variables and never replace one", _TESTS),
    "files": Why(
        "Keras writes and reads its own files, and stores a variable for each layer that holds it",
        "model.save(...) and keras.saving.load_model; tiebeam checkpoint FILE says what is in one",
    ),
}

JAX: dict[Group, Why] = {
    "join": Why(
        "in JAX whether a table is tied is in the program",
        "read one leaf in both roles; of a module that holds its variables tiebeam.inspect(model, inputs) prints the "
        "line that does it",
    ),
    "rows": Why("arrays of JAX do not change", "new trees come of tiebeam.resize_params(model, vocab, inputs, params)"),
    "watch": Why("in JAX a tie is in the program, which no load and no move changes", _TESTS),
    "files": Why(
        "a tree of JAX holds a tied table once, and whatever writes trees writes it once",
        "save as you do; tiebeam checkpoint FILE says what is in a file",
    ),
}

HELD_ROWS = Why(
    "arrays of JAX do not change, and fields of this module say its size",
    "build it anew, and resize the params of a function around it with tiebeam.resize_params",
)


def no_meaning(operation: str, model: object, entry: Entry | None, name: str) -> BackendError:
    """The error of an operation on a model of another framework.

    Args:
        entry: What kind of model it is, where its arrays do not change; None: of Keras.
        name: What the backend calls it.
    """
    group = GROUPS[operation]
    why = (KERAS if entry is None else JAX)[group]
    if entry is not None and entry.holds != "beside" and group == "rows":
        why = HELD_ROWS
    return BackendError(
        f"{operation} is for PyTorch: {why.reason}",
        got=name or type(model).__name__,
        expected="a PyTorch model",
        hint=why.hint,
    )

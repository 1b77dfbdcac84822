"""The pickle inside a PyTorch file, read as data: nothing that it names is imported or called.

What `torch.load(weights_only=True)` would refuse is refused here: every global that is not a tensor's own. A tensor
comes out as the storage that it lies in, with offset, shape and strides.
"""

import pickletools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoints.dtypes import DTYPES, DType
from tiebeam.errors import CheckpointError

MOST_BYTES = 64 * 2**20
MOST_OPCODES = 5_000_000
"""A tensor takes 40; more than 100,000 tensors are not read."""
_MARK = object()


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle refers to."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage: the member of the archive that holds it, and its elements."""

    key: str
    dtype: DType | None
    elements: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class Opaque:
    """A value that is of no concern here, such as a device or a sparse tensor."""


_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
    "QInt8Storage": "int8", "QUInt8Storage": "uint8", "QInt32Storage": "int32",
}  # fmt: skip
_NAMES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}
_DTYPES = frozenset(DTYPES) | {
    "half", "float", "double", "long", "int", "short", "quint8", "qint8", "qint32", "quint4x2", "per_tensor_affine",
    "per_channel_affine", "strided", "sparse_coo", "preserve_format", "contiguous_format", "channels_last",
}  # fmt: skip
_OPAQUE = frozenset({
    ("torch", "device"), ("torch", "Size"), ("torch.serialization", "_get_layout"), ("_codecs", "encode"),
    ("builtins", "set"), ("__builtin__", "set"), ("builtins", "bytearray"), ("builtins", "complex"),
    ("torch._utils", "_rebuild_sparse_tensor"), ("torch._utils", "_rebuild_qtensor"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"), ("torch._utils", "_rebuild_nested_tensor"),
    ("torch._utils", "_rebuild_wrapper_subclass"), ("torch._utils", "_rebuild_device_tensor_from_numpy"),
    ("torch._tensor", "_rebuild_from_type_v2"), ("torch", "Tensor"), ("torch.nn.parameter", "Parameter"),
    ("torch.nn", "Parameter"), ("collections", "Counter"),
})  # fmt: skip


class Machine:
    """Runs the opcodes that `torch.save` writes.

    Args:
        data: The pickle.
        where: For messages.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._room = 50_000 + len(data) // 8  # containers: each costs more memory than the byte that asks for it

    def run(self) -> Any:
        """The value that the pickle describes.

        Raises:
            CheckpointError: It names code, is cut off, or is no pickle that `torch.save` writes.
        """
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(self._data)):
                if count > MOST_OPCODES:
                    raise CheckpointError(f"the pickle in '{self._where}' is too long", got=f"{count:,} opcodes")
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._do(opcode.name, argument)
        except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError, AttributeError) as e:
            if isinstance(e, CheckpointError):
                raise
            raise CheckpointError(
                f"the pickle in '{self._where}' is damaged", got=f"{type(e).__name__}: {e}"[:200]
            ) from e
        raise CheckpointError(f"the pickle in '{self._where}' has no end")

    def _do(self, name: str, argument: Any) -> None:
        if name in _PUSH:
            self._stack.append(argument)
        elif name in _MAKE:
            self._pay()
            self._stack.append(_MAKE[name]())
        elif name in _CONSTANT:
            self._stack.append(_CONSTANT[name])
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise CheckpointError(
                f"the pickle in '{self._where}' is not what torch.save writes", got=f"the opcode {name}"
            )

    def _pay(self) -> None:
        self._room -= 1
        if self._room < 0:
            raise CheckpointError(f"the pickle in '{self._where}' would make more objects than its size allows")

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _put(self, at: Any) -> None:
        self._memo[len(self._memo) if at is None else at] = self._stack[-1]

    def _get(self, at: Any) -> None:
        self._stack.append(self._memo[at])

    def _pop(self, _: Any) -> None:
        self._stack.pop()

    def _tuple(self, size: int | None) -> None:
        self._pay()
        items = self._since_mark() if size is None else [self._stack.pop() for _ in range(size)][::-1]
        self._stack.append(tuple(items))

    def _list(self, _: Any) -> None:
        self._pay()
        self._stack.append(self._since_mark())

    def _dict(self, _: Any) -> None:
        self._pay()
        self._stack.append(_pairs(self._since_mark()))

    def _append(self, _: Any) -> None:
        value = self._stack.pop()
        _extend(self._stack[-1], [value])

    def _appends(self, _: Any) -> None:
        items = self._since_mark()
        _extend(self._stack[-1], items)

    def _set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _update(self._stack[-1], _keyed([(key, value)]))

    def _set_items(self, _: Any) -> None:
        items = self._since_mark()
        _update(self._stack[-1], _pairs(items))

    def _global(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(self._known(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self._known(module, name))

    def _known(self, module: Any, name: Any) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a global that is no name")
        known = (module, name) in _OPAQUE or (module, name) in _CALLS
        known = known or (module in ("torch", "torch.storage") and (name in _STORAGES or name in _DTYPES))
        if not known:
            raise CheckpointError(
                f"'{self._where}' names code, which is never run",
                got=f"{module}.{name}"[:120],
                expected="tensors and plain data alone, as torch.load(weights_only=True) asks for",
                hint="save the state dict anew from a process that you trust",
            )
        return Global(module, name)

    def _reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(called(function, arguments))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(state, dict) and isinstance(self._stack[-1], dict):
            return  # attributes of an OrderedDict, such as `_metadata`
        if not isinstance(self._stack[-1], dict | Opaque | Tensor):
            raise TypeError("a state for what has none")

    def _persistent(self, _: Any) -> None:
        kind, storage, key, _place, elements = self._stack.pop()
        if kind != "storage" or not isinstance(storage, Global) or not isinstance(key, str):
            raise ValueError("a reference that is no storage")
        name = _STORAGES[storage.name]
        if not isinstance(elements, int) or elements < 0:
            raise ValueError("a storage of no size")
        self._stack.append(Storage(key, DTYPES[name] if name else None, elements))


def called(function: Any, arguments: Any) -> Any:
    """What calling a known global would give, as data."""
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        raise TypeError("a call of what is no global")
    make = _CALLS.get((function.module, function.name))
    if make is not None:
        return make(*arguments)
    if (function.module, function.name) == ("torch._tensor", "_rebuild_from_type_v2"):
        return called(arguments[0], arguments[2])
    if (function.module, function.name) == ("torch", "Size"):
        return tuple(arguments[0])
    return Opaque()


def _tensor(storage: Storage, offset: int, shape: Any, strides: Any, *more: Any) -> Tensor:
    """`_rebuild_tensor_v2`, or v3 whose last argument is a dtype."""
    dtype = storage.dtype
    if more and isinstance(more[-1], Global):
        dtype = DTYPES[_NAMES.get(more[-1].name, more[-1].name)]
    sizes = (offset, *shape, *strides)
    if dtype is None or len(shape) != len(strides) or len(shape) > 64:
        raise ValueError("a tensor without a dtype, or without as many strides as sizes")
    if not all(isinstance(s, int) and 0 <= s < 2**62 for s in sizes):
        raise ValueError("a tensor of negative or huge sizes")
    return Tensor(storage, offset, tuple(shape), tuple(strides), dtype)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _ordered(*arguments: Any) -> dict[Any, Any]:
    (pairs,) = arguments or ((),)
    return _keyed((key, value) for key, value in pairs)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return _keyed(zip(items[::2], items[1::2], strict=True))


def _keyed(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dictionary of those pairs whose key is a word or a number.

    No other names a tensor, and the hash of tuples in tuples, a million deep, ends the process.
    """
    return {key: value for key, value in pairs if isinstance(key, str | int | float | None)}


def _update(target: Any, items: dict[Any, Any]) -> None:
    if isinstance(target, dict):
        target.update(items)
    elif not isinstance(target, Opaque):
        raise TypeError("items for what is no dictionary")


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif not isinstance(target, Opaque):
        raise TypeError("items for what is no list")


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("collections", "OrderedDict"): _ordered,
}
_PUSH = frozenset(
    """BININT BININT1 BININT2 INT LONG LONG1 LONG4 BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE
    BINBYTES SHORT_BINBYTES BINBYTES8 BINSTRING SHORT_BINSTRING STRING BYTEARRAY8""".split()
)
_MAKE: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": Opaque}
_CONSTANT: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    "MARK": Machine._mark,
    "BINPUT": Machine._put, "LONG_BINPUT": Machine._put, "PUT": Machine._put, "MEMOIZE": Machine._put,
    "BINGET": Machine._get, "LONG_BINGET": Machine._get, "GET": Machine._get, "POP": Machine._pop,
    "TUPLE": lambda m, _: m._tuple(None), "TUPLE1": lambda m, _: m._tuple(1),
    "TUPLE2": lambda m, _: m._tuple(2), "TUPLE3": lambda m, _: m._tuple(3),
    "LIST": Machine._list, "DICT": Machine._dict, "APPEND": Machine._append, "APPENDS": Machine._appends,
    "SETITEM": Machine._set_item, "SETITEMS": Machine._set_items, "ADDITEMS": Machine._appends,
    "GLOBAL": Machine._global, "STACK_GLOBAL": Machine._stack_global, "REDUCE": Machine._reduce,
    "NEWOBJ": Machine._reduce, "BUILD": Machine._build, "BINPERSID": Machine._persistent,
}  # fmt: skip


_INSIDE = ("state_dict", "model_state_dict", "model", "module", "params", "weights", "model_state")
_NOT_WEIGHTS = ("optim", "optimizer", "opt_state", "lr_scheduler", "scheduler", "ema_optimizer")


def tensors_in(value: Any) -> dict[str, Tensor]:
    """Every tensor of a state dict, also of one inside a training checkpoint, by its name in the model.

    Example:
        >>> tensors_in({"epoch": 3})
        {}
    """
    for key in _INSIDE:
        inner = value.get(key) if isinstance(value, dict) else None
        if isinstance(inner, dict):
            found = dict(_walk(inner))
            if found:
                return found
    return dict(_walk(value))


def _walk(value: Any) -> Iterator[tuple[str, Tensor]]:
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    seen: set[int] = set()
    while stack:
        path, item, depth = stack.pop()
        if isinstance(item, Tensor):
            yield path, item
        elif isinstance(item, dict) and depth < 8 and id(item) not in seen:
            seen.add(id(item))
            below = [(k, v) for k, v in item.items() if isinstance(k, str) and k.lower() not in _NOT_WEIGHTS]
            stack += [(f"{path}.{k}" if path else k, v, depth + 1) for k, v in reversed(below)]

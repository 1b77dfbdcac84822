"""Inputs to run a model once with, made from its config or its signature: NumPy, no framework.

Token ids are distinct where the vocabulary allows, away from special ids (padding is masked, image
placeholders want images), and the same in every run.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoints.scopes import ABSENT, fields, read, walk
from tiebeam.errors import InputError

Array = NDArray[Any]

LENGTH = 8
MAX_SPECIAL = 4096
_FRAMES = 64  # of speech features, where the config does not fix their number

_IDS = ("input_ids", "ids", "tokens", "token_ids", "idx", "x", "inputs", "src", "source")
_TARGETS = ("decoder_input_ids", "tgt", "target", "targets", "labels", "y")
_MASKS = ("attention_mask", "mask", "padding_mask", "decoder_attention_mask")
_POSITIONS = ("position_ids", "positions", "pos")
_VOCAB = ("vocab_size", "vocab", "src_vocab_size", "n_vocab")
_SEGMENTS = ("token_type_ids", "segment_ids")

Parameters = Mapping[str, inspect.Parameter]


def from_config(
    config: object, forward: Callable[..., Any] | None = None, *, length: int = LENGTH
) -> dict[str, Array] | None:
    """Example keyword arguments for a model of this config.

    Args:
        config: A mapping or config object; only its data is read.
        forward: What will be called. Its signature says which inputs it takes and which it must have;
            without it a text model gets text alone.
        length: Number of tokens, at least 1.

    Returns:
        By name: `input_ids`, `decoder_input_ids` (1, length) int64; `input_features`, `pixel_values`
        float32. None where the config has no vocabulary to draw ids from.

    Raises:
        InputError: The vocabulary is empty, or `forward` must have an input that cannot be made.

    Example:
        >>> made = from_config({"vocab_size": 64, "eos_token_id": 2})
        >>> {name: (a.shape, str(a.dtype)) for name, a in made.items()}
        {'input_ids': ((1, 8), 'int64')}
    """
    takes = None if forward is None else _parameters(forward)
    inputs = _features(config, takes)
    decodes = bool(inputs) or read(config, "is_encoder_decoder") is True
    vocab, decoder_vocab = _vocabularies(config)
    if vocab is None and decoder_vocab is None:
        return None
    special = _special_ids(config)
    if not inputs and _takes(takes, "input_ids"):
        inputs["input_ids"] = token_ids(vocab or decoder_vocab or 0, length=length, avoid=special)
    if decodes and _takes(takes, "decoder_input_ids"):
        bound = decoder_vocab or vocab or 0
        inputs["decoder_input_ids"] = token_ids(bound, length=length, avoid=special, seed=1)
    if takes is not None:
        inputs |= _required(takes, inputs, config, vocab or decoder_vocab or 0, length)
    return inputs


def from_signature(forward: Callable[..., Any], *, vocab: int, length: int = LENGTH) -> tuple[Array, ...]:
    """Example positional arguments for a function of token ids.

    Every argument without a default is filled by what its name says: ids, targets, a mask, positions
    or segments. A function of one argument takes ids, whatever the name.

    Args:
        forward: A bound method or function, without the model or parameters argument.
        vocab: Number of token ids; each is below it.
        length: Number of tokens.

    Raises:
        InputError: `vocab` is below 1, or an argument's name says nothing.

    Example:
        >>> from_signature(lambda tokens: tokens, vocab=64)[0].shape
        (1, 8)
    """
    names = list(_must_have(_parameters(forward)))
    if len(names) <= 1:
        return (token_ids(vocab, length=length),)
    made = {name: _by_name(name, vocab, length, seed=i) for i, name in enumerate(names)}
    unknown = [name for name, array in made.items() if array is None]
    if unknown:
        raise InputError(
            f"no example can be made for the arguments {unknown}",
            got=f"arguments {names}",
            expected="token ids, masks or positions, told by name",
            hint="pass inputs=(...)",
        )
    return tuple(array for array in made.values() if array is not None)


def of_kind(name: str, shape: tuple[int | None, ...], dtype: str, *, vocab: int | None, length: int = LENGTH) -> Array:
    """An example array of what is known of one input.

    Args:
        name: Says what integers are: a mask, positions, segments; else token ids.
        shape: A size that is None is 1 where it is the first, else `length`.
        dtype: "" where it is not known: two axes are integers then.
        vocab: Number of token ids; each is below it.

    Example:
        >>> of_kind("padding_mask", (None, None), "bool", vocab=64).tolist()
        [[True, True, True, True, True, True, True, True]]
        >>> of_kind("features", (None, 4), "float32", vocab=None).shape
        (1, 4)
    """
    sizes = tuple((1 if not axis else length) if n is None else n for axis, n in enumerate(shape))
    if dtype.startswith(("float", "bfloat", "complex")) or (not dtype and len(sizes) != 2):
        made: Array = np.random.default_rng(0).standard_normal(sizes, dtype=np.float32)
        return made if not dtype or dtype.startswith("bfloat") else made.astype(dtype)
    kind = np.dtype(dtype or "int64")
    last = sizes[-1] if sizes else 1
    if name.endswith("mask") or kind.kind == "b":
        return np.ones(sizes, kind)
    name = "positions" if name.endswith(_POSITIONS) else name
    known = _by_name(name, vocab or 2, last, 0)
    if known is None:
        known = token_ids(vocab or 2, length=int(np.prod(sizes)), avoid=frozenset({0}))  # 0 is padding to many
        return known.reshape(sizes).astype(kind)
    return np.broadcast_to(known, sizes).astype(kind)


def token_ids(vocab: int, *, length: int = LENGTH, avoid: frozenset[int] = frozenset(), seed: int = 0) -> Array:
    """Token ids of shape (1, length), int64, in [0, vocab), distinct where the vocabulary allows.

    Args:
        vocab: Number of ids, at least 1.
        length: Number of tokens, at least 1.
        avoid: Ids to leave out as long as any other is left.
        seed: Another seed gives other ids.

    Raises:
        InputError: `vocab` or `length` is below 1.

    Example:
        >>> sorted(token_ids(10, avoid=frozenset({0, 1})).ravel().tolist())
        [2, 3, 4, 5, 6, 7, 8, 9]
    """
    if vocab < 1 or length < 1:
        raise InputError("no token ids can be drawn", got=f"vocab {vocab}, length {length}", expected="both at least 1")
    rng = np.random.default_rng(seed)
    inside = {i for i in avoid if 0 <= i < vocab}
    wanted = min(vocab, length + len(inside))
    drawn = rng.choice(vocab, size=wanted, replace=False)
    kept = [i for i in drawn.tolist() if i not in inside][:length] or drawn.tolist()[:length]
    return np.resize(np.array(kept, dtype=np.int64), (1, length))


def _parameters(forward: Callable[..., Any]) -> Parameters:
    """What a forward takes by name; nothing where it only hands on what it is given, as a wrapper's does."""
    try:
        takes = inspect.signature(forward).parameters
    except (TypeError, ValueError):
        return {}
    hands_on = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in takes.values())
    return {} if hands_on else takes


def _must_have(takes: Parameters) -> Iterator[str]:
    """Names of the arguments that have no default and are not collected."""
    for name, p in takes.items():
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            yield name


def _takes(takes: Parameters | None, name: str) -> bool:
    return not takes or name in takes


def _required(
    takes: Parameters, made: Mapping[str, Array], config: object, vocab: int, length: int
) -> dict[str, Array]:
    """What else the call must have."""
    more: dict[str, Array] = {}
    for i, name in enumerate(n for n in _must_have(takes) if n not in made):
        array = _pixels(config) if name == "pixel_values" else _by_name(name, vocab, length, seed=i)
        if array is None:
            raise InputError(
                f"no example can be made from the config for the argument {name!r}",
                got=f"arguments {list(takes)}",
                hint=f"pass inputs={{..., {name!r}: ...}}",
            )
        more[name] = array
    return more


def _by_name(name: str, vocab: int, length: int, seed: int) -> Array | None:
    if name in _IDS + _TARGETS or (name.endswith("_ids") and name not in _POSITIONS + _SEGMENTS):
        return token_ids(vocab, length=length, seed=seed)
    if name in _MASKS:
        return np.ones((1, length), dtype=np.int64)
    if name in _POSITIONS:
        return np.arange(length, dtype=np.int64)[None]
    return np.zeros((1, length), dtype=np.int64) if name in _SEGMENTS else None


def _integer(scope: object, *names: str) -> int | None:
    for name in names:
        value = read(scope, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _vocabularies(config: object) -> tuple[int | None, int | None]:
    """Number of ids that the input takes, and that a decoder's input takes."""
    scopes = [scope for _, scope in walk(config)]
    inner = {path: scope for path, scope in walk(config) if path in ("encoder", "decoder")}
    sizes = (_integer(s, *_VOCAB) for s in scopes)
    first = next((size for size in sizes if size is not None), None)
    source = _integer(inner.get("encoder"), "vocab_size")
    target = _integer(config, "decoder_vocab_size", "tgt_vocab_size") or _integer(inner.get("decoder"), "vocab_size")
    return first if source is None else source, target or first


def _special_ids(config: object) -> frozenset[int]:
    """Every id that a field such as `eos_token_id`, `image_token_index` or `suppress_tokens` names."""
    found: set[int] = set()
    for _, scope in walk(config):
        for name, value in fields(scope).items():
            if name.endswith(("_token_id", "_token_ids", "_token_index", "suppress_tokens")):
                many = value if isinstance(value, list | tuple) else [value]
                found.update(v for v in many[:MAX_SPECIAL] if isinstance(v, int) and not isinstance(v, bool))
    return frozenset(found)


def _features(config: object, takes: Parameters | None) -> dict[str, Array]:
    """Speech features or pixels, where they are what the model reads in place of token ids."""
    if takes and "input_ids" in takes:
        return {}
    if takes is None and read(config, "is_encoder_decoder") is not True:
        return {}
    speech = _speech(config)
    if speech is not None and _takes(takes, "input_features"):
        return {"input_features": speech}
    encoder = next((s for path, s in walk(config) if path == "encoder"), None)
    if encoder is None or read(encoder, "image_size") is ABSENT or not _takes(takes, "pixel_values"):
        return {}
    pixels = _pixels(encoder)
    return {} if pixels is None else {"pixel_values": pixels}


def _speech(config: object) -> Array | None:
    rng = np.random.default_rng(0)
    bins, positions = _integer(config, "num_mel_bins"), _integer(config, "max_source_positions")
    if bins and positions and read(config, "input_feat_per_channel") is ABSENT:
        # The encoder halves the time axis and takes no other length.
        return rng.standard_normal((1, bins, 2 * positions), dtype=np.float32)
    channels = _integer(config, "input_feat_per_channel")
    return rng.standard_normal((1, _FRAMES, channels), dtype=np.float32) if channels else None


def _pixels(config: object) -> Array | None:
    """An image (1, channels, height, width) of the size that the vision scope names."""
    for _, scope in walk(config) if config is not None else ():
        size = read(scope, "image_size")
        sides = [size, size] if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
        if len(sides) == 2 and all(isinstance(s, int) and s > 0 for s in sides):
            channels = _integer(scope, "num_channels", "in_channels", "in_chans") or 3
            return np.random.default_rng(0).standard_normal((1, channels, *sides), dtype=np.float32)
    return None

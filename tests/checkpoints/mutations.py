"""Headers of safetensors, changed where it hurts: fields swapped, keys doubled, offsets moved, numbers blown up.

    python tests/checkpoints/mutations.py --count 200000 --seed 0

tries so many and exits with 1 where one crashes, takes long, takes memory, or is read though it must not be. The tests
try 2,000 of them.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.formats.safetensors import Scanner, _check_ranges, read
from tiebeam.errors import CheckpointError

MOST_SECONDS = 2.0
TIMES_HEADER, MORE = 16, 8 * 2**20
BODY = 4096

Pairs = list[tuple[str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A header, and whether it must be refused (None: either will do)."""

    how: str
    header: bytes
    refused: bool | None


def base(rng: random.Random) -> Pairs:
    """A sound header, as pairs so that keys can be doubled."""
    pairs: Pairs = [("__metadata__", [("format", "pt")])] if rng.random() < 0.7 else []
    left, at = BODY, 0
    names = ["model.embed_tokens.weight", "lm_head.weight", *(f"model.layers.{i}.w" for i in range(rng.randrange(6)))]
    for i, name in enumerate(names):
        size = left if i == len(names) - 1 else rng.choice([0, 64, 256, 512])
        size = min(size, left) // 8 * 8
        rows = 8 if size else 0
        pairs.append((name, [("dtype", "F32"), ("shape", [rows, size // 32]), ("data_offsets", [at, at + size])]))
        at, left = at + size, left - size
    return pairs


def text(value: Any) -> str:
    """JSON, with lists of pairs as objects that may hold a key twice."""
    if isinstance(value, list) and value and all(isinstance(v, tuple) for v in value):
        return "{" + ",".join(f"{json.dumps(k)}:{text(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    return value if isinstance(value, Verbatim) else json.dumps(value)


class Verbatim(str):
    """Text that is no JSON of its own, such as NaN."""

    __slots__ = ()


def fields_of(pairs: Pairs, rng: random.Random) -> Pairs:
    tensors: list[Pairs] = [v for k, v in pairs if k != "__metadata__"]
    return rng.choice(tensors)


def put(fields: Pairs, name: str, value: Any) -> None:
    at = next(i for i, (k, _) in enumerate(fields) if k == name)
    fields[at] = (name, value)


def get(fields: Pairs, name: str) -> Any:
    return next(v for k, v in fields if k == name)


def swap_fields(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    a, b = rng.sample(range(3), 2)
    (ka, va), (kb, vb) = fields[a], fields[b]
    if rng.random() < 0.5:
        fields[a], fields[b] = (kb, vb), (ka, va)  # another order is sound
        return False
    fields[a], fields[b] = (ka, vb), (kb, va)
    return True if "dtype" in (ka, kb) else None  # two pairs of zeros are as sound the other way round


def double_key(pairs: Pairs, rng: random.Random) -> bool | None:
    target = rng.choice([pairs, fields_of(pairs, rng)])
    target.insert(rng.randrange(len(target) + 1), rng.choice(target))
    return True


def drop_field(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    fields.pop(rng.randrange(len(fields)))
    return True


def move_offset(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    offsets = list(get(fields, "data_offsets"))
    offsets[rng.randrange(2)] += rng.choice([-4096, -8, -4, -1, 1, 4, 8, 4096])
    put(fields, "data_offsets", offsets)
    return True


def move_both(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    by = rng.choice([-64, -1, 1, 64])
    start, stop = get(fields, "data_offsets")
    put(fields, "data_offsets", [start + by, stop + by])
    return True if start < stop or start + by < 0 else None  # a range of nothing may lie between any two


def overflow(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    huge = rng.choice([2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**64 + 8, 10**30, 10**400])
    if rng.random() < 0.5:
        put(fields, "shape", [huge] * rng.randrange(1, 5))
    else:
        offsets = list(get(fields, "data_offsets"))
        offsets[rng.randrange(2)] = huge
        put(fields, "data_offsets", offsets)
    return True


def nest(pairs: Pairs, rng: random.Random) -> bool | None:
    depth = rng.choice([2, 10, 1000, 20_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    fields = fields_of(pairs, rng)
    put(fields, rng.choice(["dtype", "shape", "data_offsets"]), Verbatim(opening * depth + "1" + closing * depth))
    return True


def odd_value(pairs: Pairs, rng: random.Random) -> bool | None:
    values = [
        "NaN",
        "Infinity",
        "-1",
        "1.0",
        "1e3",
        "null",
        "true",
        '"x"',
        "{}",
        "[]",
        "[null]",
        "[1.5]",
        "[-8]",
        "00",
        "+1",
    ]
    fields = fields_of(pairs, rng)
    name = rng.choice(["dtype", "shape", "data_offsets"])
    put(fields, name, Verbatim(rng.choice(values)))
    # An empty shape is that of one number: sound only if its range is four bytes, which none is here.
    return True


def odd_dtype(pairs: Pairs, rng: random.Random) -> bool | None:
    put(fields_of(pairs, rng), "dtype", rng.choice(["F99", "", "f32", "F" * 40, "F32\u0000", "é"]))
    return True


def odd_name(pairs: Pairs, rng: random.Random) -> bool | None:
    at = rng.randrange(len(pairs))
    if pairs[at][0] == "__metadata__":
        return False
    name = rng.choice(["", "../../etc/passwd", "a" * 10_000, "\u202e", "é\U0001f600", "__metadata__", "\x00"])
    if name == "__metadata__":
        pairs[at] = (name, pairs[at][1])
        return True
    pairs[at] = (name, pairs[at][1])
    return False


def many_dimensions(pairs: Pairs, rng: random.Random) -> bool | None:
    fields = fields_of(pairs, rng)
    shape = get(fields, "shape")
    count = rng.choice([1, 60, 70, 5000])
    put(fields, "shape", [*shape, *[1] * count])
    return len(shape) + count > 64


def other_metadata(pairs: Pairs, rng: random.Random) -> bool | None:
    kept = [p for p in pairs if p[0] != "__metadata__"]
    bad: list[Any] = [Verbatim("[]"), Verbatim('"x"'), [("a", 1)], [("a", Verbatim("null"))], [("a", [("b", "c")])]]
    pairs[:] = [("__metadata__", rng.choice(bad)), *kept]
    return True


MUTATIONS: tuple[Callable[[Pairs, random.Random], bool | None], ...] = (
    swap_fields, double_key, drop_field, move_offset, move_both, overflow, nest, odd_value, odd_dtype, odd_name,
    many_dimensions, other_metadata,
)  # fmt: skip


def of_bytes(header: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, dropped, repeated or cut."""
    data = bytearray(header)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(4)
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 20)]
        elif kind == 2:
            data[at:at] = bytes(data[at : at + rng.randrange(1, 200)])
        else:
            del data[at:]
    return bytes(data)


def mutants(count: int, seed: int = 0) -> Iterator[Mutant]:
    """So many headers; every eighth is changed in its bytes besides, and then anything may come of it."""
    rng = random.Random(seed)
    for i in range(count):
        pairs = base(rng)
        change = MUTATIONS[i % len(MUTATIONS)]
        refused = change(pairs, rng)
        header = text(pairs).encode("utf-8", "surrogatepass")
        if i % 8 == 7:
            header, refused = of_bytes(header, rng), None
        yield Mutant(change.__name__, header, refused)


def verdict(mutant: Mutant) -> str:
    """ "read" or "refused"; anything else that is raised is a crash."""
    try:
        raw, _ = Scanner(mutant.header).scan()
        _check_ranges(raw, BODY)
    except CheckpointError:
        return "refused"
    return "read"


def memory(mutant: Mutant) -> int:
    """Bytes that reading takes at its peak, the header itself among them."""
    tracemalloc.start()
    try:
        header = bytes(bytearray(mutant.header))
        verdict(Mutant(mutant.how, header, None))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def wrong(mutant: Mutant, *, with_memory: bool = False) -> str:
    """What is wrong with how a mutant was taken, or ""."""
    start = time.perf_counter()
    found = verdict(mutant)
    if time.perf_counter() - start > MOST_SECONDS:
        return "it took too long"
    if mutant.refused is not None and (found == "refused") is not mutant.refused:
        return f"it was {found}"
    if with_memory and memory(mutant) > TIMES_HEADER * len(mutant.header) + MORE:
        return "it took too much memory"
    return ""


def through_a_file(mutant: Mutant, path: Path) -> str:
    """The same by way of a file."""
    path.write_bytes(len(mutant.header).to_bytes(8, "little") + mutant.header + bytes(BODY))
    try:
        read(path)
    except CheckpointError:
        return "refused"
    return "read"


def main() -> int:
    """Try many, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for i, mutant in enumerate(mutants(options.count, options.seed)):
            said = wrong(mutant, with_memory=i % 20 == 0)
            seen[through_a_file(mutant, Path(folder) / "m.safetensors") if i % 20 == 1 else verdict(mutant)] += 1
            if said:
                failures += 1
                sys.stderr.write(f"{mutant.how}: {said}: {mutant.header[:300]!r}\n")
    sys.stdout.write(
        f"{options.count:,} headers: {seen['read']:,} read, {seen['refused']:,} refused, {failures} wrong\n"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())

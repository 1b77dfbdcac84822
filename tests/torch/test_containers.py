"""Batches and results in containers of every kind: looked into, and never left changed."""

import threading
from collections import UserDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch.containers import rebuilt, tensors_of

transformers = pytest.importorskip("transformers")
ModelOutput = transformers.utils.ModelOutput


@dataclass
class Batch:
    ids: Tensor


@dataclass(frozen=True, slots=True)
class Frozen:
    ids: Tensor


@dataclass
class Output(ModelOutput):  # type: ignore[misc]
    ids: Tensor | None = None


class Plain:
    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.lock = threading.Lock()


class Slots:
    __slots__ = ("ids",)

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


Named = namedtuple("Named", "ids")


class Tied(nn.Module):
    """Logits of the ids that `read` takes out of a batch, the rows times `by(ids)`."""

    def __init__(self, read: Callable[[Any], Tensor], by: Callable[[Tensor], float] = lambda ids: 8.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.norm = nn.LayerNorm(64)
        self.read, self.by = read, by

    def logits(self, ids: Tensor) -> Tensor:
        return self.norm(self.embed(ids) * self.by(ids)) @ self.embed.weight.T

    def forward(self, batch: Any) -> Any:
        return self.logits(self.read(batch))


KINDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dict": (lambda ids: {"ids": ids}, lambda b: b["ids"]),
    "nested": (lambda ids: {"a": [({"ids": ids},)]}, lambda b: b["a"][0][0]["ids"]),
    "list": (lambda ids: [ids], lambda b: b[0]),
    "tuple": (lambda ids: (ids,), lambda b: b[0]),
    "named tuple": (Named, lambda b: b.ids),
    "deque": (lambda ids: deque([ids]), lambda b: b[0]),
    "user dict": (lambda ids: UserDict(ids=ids), lambda b: b["ids"]),
    "dataclass": (Batch, lambda b: b.ids),
    "frozen dataclass with slots": (Frozen, lambda b: b.ids),
    "model output": (lambda ids: Output(ids=ids), lambda b: b["ids"] + 0 * b.ids),
    "object": (Plain, lambda b: b.ids),
    "slots": (Slots, lambda b: b.ids),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_within_a_container_is_no_constant_and_a_number_is(kind: str) -> None:
    make, read = KINDS[kind]
    ids = torch.arange(24).view(2, 12)
    (table,) = tiebeam.inspect(Tied(read, lambda ids: float(ids.shape[1])), (make(ids),)).tables
    assert table.lookup_factor is None
    assert "comes from the inputs: 12 in one pass, 11 in a pass" in table.notes[0]
    (table,) = tiebeam.inspect(Tied(read), (make(ids),)).tables
    assert (table.state, table.lookup_factor) == ("tied", 8.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuilt_container_is_another_one_with_other_tensors(kind: str) -> None:
    make, read = KINDS[kind]
    ids = torch.arange(12)
    batch = make(ids)
    other = rebuilt(batch, lambda t, data: t + 1)
    assert torch.equal(read(batch), ids)
    assert type(other) is type(batch)
    assert torch.equal(read(other), ids + 1)
    assert next(tensors_of(batch)) is ids


def test_an_object_that_cannot_be_copied_is_handed_on_itself() -> None:
    class Single(Plain):
        def __copy__(self) -> Any:
            raise TypeError("there is one of me")

    batch = Single(torch.arange(12).view(1, 12))
    assert rebuilt(batch, lambda t, data: t + 1) is batch
    (table,) = tiebeam.inspect(Tied(lambda b: b.ids, lambda ids: float(ids.shape[1])), (batch,)).tables
    assert table.lookup_factor is None
    assert "no other inputs could be tried" in table.notes[0]


def test_what_is_shared_in_a_tree_stays_shared_and_what_holds_itself_ends() -> None:
    ids: list[Any] = [torch.arange(4)]
    ids.append(ids)
    a, b = rebuilt((ids, ids), lambda t, data: t)
    assert a is b is a[1] is not ids


def test_a_batch_that_the_model_takes_apart_is_whole_afterwards() -> None:
    def popped(batch: Any) -> Tensor:
        batch["extra"] = 1
        batch["list"].append(2)
        ids: Tensor = batch.pop("ids")
        ids += 1
        return ids

    batch: dict[str, Any] = {"ids": torch.arange(12).view(1, 12), "list": [1]}
    (table,) = tiebeam.inspect(Tied(popped), (batch,)).tables
    assert table.lookup_factor == 8.0
    assert list(batch) == ["ids", "list"]
    assert batch["list"] == [1]
    assert torch.equal(batch["ids"], torch.arange(12).view(1, 12))


# The name changed within version 5; the older one warns.
CACHE = "cache" if "cache" in signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_is_as_it_was_after_every_pass(kind: str) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=300, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    make = {
        "dynamic": lambda: transformers.DynamicCache(config=config),
        "static": lambda: transformers.StaticCache(config=config, max_cache_len=32),
    }
    cache = make[kind]()
    with torch.no_grad():
        model(input_ids=torch.arange(6)[None], **{CACHE: cache}, use_cache=True)
    keys = cache.layers[0].keys.clone()
    inputs = {"input_ids": torch.arange(4)[None], CACHE: cache, "use_cache": True}
    assert tiebeam.inspect(model, inputs).tables[0].lookup_factor == 1.0
    tiebeam.initialize(model, inputs)
    assert int(cache.get_seq_length()) == 6
    assert torch.equal(cache.layers[0].keys, keys)


class Yields(Tied):
    def forward(self, batch: Any) -> Iterator[Tensor]:
        yield self.logits(batch)


class Holder(nn.Module):
    pass


class Returns(Tied):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__(lambda ids: ids)
        self.wrap = wrap

    def forward(self, batch: Any) -> Any:
        return self.wrap(self.logits(batch))


def _module(logits: Tensor) -> nn.Module:
    holder = Holder()
    holder.logits = logits
    return holder


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: Yields(lambda ids: ids), id="generator"),
        pytest.param(lambda: Returns(Slots), id="slots"),
        pytest.param(lambda: Returns(_module), id="module"),
        pytest.param(lambda: Returns(Plain), id="object"),
    ],
)
def test_logits_are_found_in_whatever_the_model_returns(model: Callable[[], Tied]) -> None:
    (table,) = tiebeam.initialize(model(), torch.arange(12).view(1, 12)).tables
    assert table.state == "tied"

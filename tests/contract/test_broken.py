"""A backend that is broken in one way fails the contract, by the sentence that speaks of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import tiebeam
from tiebeam.backends.protocol import RefusedError
from tiebeam.backends.torch.model import TorchModel
from tiebeam.ir import Op
from tiebeam.testing import BackendContract, Blueprint, Refusal, Step
from tiebeam.testing.contract.base import Ability
from tiebeam.testing.contract.models import FREE, PLAIN, TIED
from tiebeam.zoo.torch.blueprint import TorchBuilder

Patch = pytest.MonkeyPatch
WAYS: dict[str, tuple[Callable[[Patch], None], tuple[str, tuple[Any, ...]]]] = {}


def fails(sentence: str, *arguments: Any) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a way to break the backend, and the sentence that it must fail."""

    def register(breaks: Callable[[Patch], None]) -> Callable[[Patch], None]:
        WAYS[breaks.__name__] = breaks, (sentence, arguments)
        return breaks

    return register


def regraphed(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Change the graph of every pass."""
    whole = TorchModel.trace

    def trace(self: Any, *args: Any, **how: Any) -> Any:
        traced = whole(self, *args, **how)
        object.__setattr__(traced, "graph", change(traced.graph))
        return traced

    patch.setattr(TorchModel, "trace", trace)


@fails("test_factors_are_exact_and_keep_their_sign", TIED["a divisor and a sign"])
def drops_the_sign_of_a_factor(patch: Patch) -> None:
    regraphed(
        patch,
        lambda graph: dataclasses.replace(
            graph, values=tuple(v._replace(number=v.number and abs(v.number)) for v in graph.values)
        ),
    )


@fails("test_a_tied_model_is_one_table_in_both_roles", PLAIN)
def loses_a_readout(patch: Patch) -> None:
    regraphed(
        patch,
        lambda graph: dataclasses.replace(
            graph,
            nodes=tuple(
                n._replace(op=Op.OPAQUE) if n.op is Op.DOT and graph.values[n.output].shape[-1] == PLAIN.vocab else n
                for n in graph.nodes
            ),
        ),
    )


@fails("test_looking_leaves_weights_and_generators_as_they_were", PLAIN)
def mutates_a_weight(patch: Patch) -> None:
    whole = TorchModel.trace

    def trace(self: Any, *args: Any, **how: Any) -> Any:
        with torch.no_grad():
            self.model.mid.weight[0, 0] += 1e-3
        return whole(self, *args, **how)

    patch.setattr(TorchModel, "trace", trace)


@fails("test_looking_leaves_weights_and_generators_as_they_were", PLAIN)
def moves_a_generator(patch: Patch) -> None:
    regraphed(patch, lambda graph: (torch.rand(1), graph)[1])


def written(patch: Patch, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change what every table is written with."""
    whole = TorchModel.write

    def write(self: Any, *args: Any, **how: Any) -> None:
        whole(self, *args, **change(how))

    patch.setattr(TorchModel, "write", write)


@fails("test_two_tables_get_draws_of_their_own_in_order_of_first_use")
def draws_every_table_by_the_first_ordinal(patch: Patch) -> None:
    written(patch, lambda how: {**how, "ordinal": 0})


@fails("test_one_seed_gives_one_digest_in_every_framework", "float32")
def seeds_by_itself(patch: Patch) -> None:
    written(patch, lambda how: {**how, "seed": how["seed"] + 1})


@fails("test_a_row_of_zeros_stays_zero_and_no_other_becomes_it")
def fills_padding_rows(patch: Patch) -> None:
    written(patch, lambda how: {**how, "zero_rows": ()})


@fails("test_a_bias_over_the_vocabulary_becomes_zero_and_is_named")
def leaves_the_bias(patch: Patch) -> None:
    patch.setattr(TorchModel, "zero", lambda self, names: (names, lambda: None))


@fails("test_a_pass_that_fails_half_way_leaves_the_tables_and_the_biases", 0)
def puts_nothing_back(patch: Patch) -> None:
    patch.setattr(TorchModel, "keep", lambda self, traced, leaf: lambda: None)


@fails("test_inputs_that_the_model_refuses_chain_its_own_error")
def swallows_the_models_error(patch: Patch) -> None:
    whole = TorchModel.trace

    def trace(self: Any, *args: Any, **how: Any) -> Any:
        try:
            return whole(self, *args, **how)
        except RefusedError as error:
            raise tiebeam.InputError(
                f"it does not run on these inputs: {type(error).__name__}", got="g", expected="e", hint="h"
            ) from None

    patch.setattr(TorchModel, "trace", trace)


@fails("test_sizes_are_those_of_a_pass_in_numpy", PLAIN)
def measures_sizes_wrongly(patch: Patch) -> None:
    regraphed(patch, lambda graph: dataclasses.replace(graph, rms={v: 1.1 * x for v, x in graph.rms.items()}))


@fails("test_a_report_names_its_framework_and_counts_every_parameter_once")
def counts_a_tied_table_twice(patch: Patch) -> None:
    patch.setattr(
        TorchModel,
        "parameters",
        lambda self: sum(p.numel() for _, p in self.model.named_parameters(remove_duplicate=False)),
    )


class Contract(BackendContract):
    """Fresh for each test: what a class has seen, it remembers."""

    builder = TorchBuilder()


@pytest.fixture
def contract() -> BackendContract:
    kind: Any = type("Contract", (Contract,), {})
    made: BackendContract = kind()
    return made


def sentence(contract: BackendContract, name: str, arguments: tuple[Any, ...], patch: Patch) -> Callable[[], None]:
    more = (patch,) if "half_way" in name else ()
    return lambda: getattr(contract, name)(*arguments, *more)


@pytest.mark.parametrize("way", WAYS)
def test_a_backend_that_is_broken_fails_the_sentence_that_speaks_of_it(
    way: str, contract: BackendContract, monkeypatch: Patch
) -> None:
    breaks, (name, arguments) = WAYS[way]
    sentence(contract, name, arguments, monkeypatch)()
    type(contract)._seen.clear()
    type(contract)._settled.clear()
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            sentence(contract, name, arguments, patch)()


class Shapeless(TorchBuilder):
    """A framework whose models always have values."""

    def abstract(self, blueprint: Blueprint) -> Any:
        raise TypeError("its layers have values as soon as they are built")


def test_what_a_framework_cannot_do_must_be_said_and_be_true() -> None:
    class Silent(BackendContract):
        builder = Shapeless()

    class Says(Silent):
        cannot: ClassVar[dict[Ability, Refusal]] = {
            "abstract": Refusal("layers have values once built", TypeError, "as soon as they are built")
        }

    class Lies(Says):
        builder = TorchBuilder()

    class GivesNoReason(Silent):
        cannot: ClassVar[dict[Ability, Refusal]] = {"abstract": Refusal("", TypeError, "built")}

    with pytest.raises(TypeError):
        Silent().test_shapes_alone_give_the_structure_and_the_plan()
    Says().test_shapes_alone_give_the_structure_and_the_plan()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Lies().test_shapes_alone_give_the_structure_and_the_plan()
    with pytest.raises(AssertionError, match="gives no reason"):
        GivesNoReason().test_shapes_alone_give_the_structure_and_the_plan()


def test_a_builder_that_builds_another_model_is_noticed() -> None:
    class Wrong(TorchBuilder):
        def build(self, blueprint: Blueprint, *rest: Any) -> Any:
            return super().build(blueprint.but(after=(Step(2.0),)), *rest)

    class WrongContract(BackendContract):
        builder = Wrong()

    with pytest.raises(AssertionError):
        WrongContract().test_the_builder_builds_what_the_blueprint_describes(FREE)


def test_the_contract_itself_is_not_collected() -> None:
    assert not BackendContract.__name__.startswith("Test")
    assert sum(name.startswith("test_") for name in dir(BackendContract)) >= 40

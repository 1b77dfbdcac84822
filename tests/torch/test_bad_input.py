"""Bad input: an answer or an error that says what to do, and nothing changed either way."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.expect import all_of, check, table_of
from tests.torch.models.kit import VOCAB, WIDTH, Base, Builder, ids, load
from torch import nn

import tiebeam
from tiebeam.errors import InputError
from tiebeam.zoo.torch.minigpt import MiniGPT

SOUND = {
    "CountsItsCalls",
    "BatchNormAtWork",
    "RowsRenormedInPlace",
    "DropoutAtWork",
    "BranchOnValues",
    "CacheOnTheModule",
}


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a look must leave alone."""
    return {
        "values": {k: v.clone() for k, v in model.state_dict().items()},
        "objects": {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)},
        "pointers": {n: p.data_ptr() for n, p in model.named_parameters(remove_duplicate=False)},
        "grads": {n: p.grad for n, p in model.named_parameters()},
        "requires_grad": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": [m.training for m in model.modules()],
        "hooks": [len(h) for m in model.modules() for k, h in sorted(vars(m).items()) if k.endswith("hooks")],
        "forwards": ["forward" in vars(m) for m in model.modules()],
        "rng": torch.get_rng_state(),
        "grad_mode": torch.is_grad_enabled(),
        "cache": torch.is_autocast_cache_enabled(),
    }


def assert_untouched(before: dict[str, Any], model: nn.Module) -> None:
    after = snapshot(model)
    values, then = after.pop("values"), before.pop("values")
    assert values.keys() == then.keys()
    for name, value in values.items():
        assert torch.equal(value.nan_to_num(), then[name].nan_to_num()), name
    assert torch.equal(after.pop("rng"), before.pop("rng"))
    assert after == before


@pytest.mark.parametrize("build", [p for p in all_of("bad") if p.id in SOUND])
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_side_effects_of_the_forward_pass_are_undone(build: Builder, training: bool) -> None:
    case = build()
    case.model.train(training)
    before = snapshot(case.model)
    check(case)
    assert_untouched(before, case.model)


@pytest.mark.parametrize("name", ["UsedTwice", "DetachedReadout", "OneParameter", "TwoParametersOneStorage"])
def test_a_look_changes_nothing_whatever_it_finds(name: str) -> None:
    case = load()["states"][name]()
    before = snapshot(case.model)
    tiebeam.inspect(case.model, case.inputs)
    assert_untouched(before, case.model)


@pytest.mark.parametrize("name", ["NotANumber", "Infinite"])
def test_values_that_are_not_finite_are_an_error_that_names_the_table(name: str) -> None:
    case = load()["bad"][name]()
    report = check(case)
    (finding,) = [f for f in report.findings if f.code == "non-finite"]
    assert finding.severity == "error"
    assert finding.where == "table"
    assert table_of(report, case.truths[0]).finite is False


def test_a_table_without_rows_is_looked_at_without_a_crash() -> None:
    case = load()["bad"]["EmptyVocabulary"]()
    report = tiebeam.inspect(case.model, case.inputs)
    assert all((t.vocab, t.width) == (0, WIDTH) for t in report.tables)
    assert report.findings, "a vocabulary of no rows deserves a word"


def test_a_table_of_width_one_is_tied_and_has_finite_numbers() -> None:
    case = load()["bad"]["WidthOne"]()
    table = table_of(check(case), case.truths[0])
    assert table.spread is None or table.spread == table.spread


def test_an_integer_table_is_seen_and_not_called_trainable() -> None:
    case = load()["bad"]["Quantised"]()
    report = tiebeam.inspect(case.model, case.inputs)
    (table,) = report.tables
    assert table.names == ("codes",)
    assert table.lookups
    assert table.readouts
    assert not table.trainable
    assert table.dtype == "int8"
    assert table.lookup_factor is None
    assert table.readout_factor is None


class UnequalShapes(nn.Module):
    """The head needs (vocab, 24) and was given the embedding's (vocab, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 24)
        self.head = nn.Linear(24, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.up(self.embed(ids)))


def ids_beyond() -> tuple[nn.Module, Any, type[Exception]]:
    return Base(), (torch.full((1, 4), VOCAB),), IndexError


def wrong_arguments() -> tuple[nn.Module, Any, type[Exception]]:
    return Base(), {"input_ids": ids()}, TypeError


def too_many_arguments() -> tuple[nn.Module, Any, type[Exception]]:
    return Base(), (ids(), ids()), TypeError


def floats_for_ids() -> tuple[nn.Module, Any, type[Exception]]:
    return Base(), (torch.rand(2, 4),), RuntimeError


REFUSED = [ids_beyond, wrong_arguments, too_many_arguments, floats_for_ids]


@pytest.mark.parametrize("make", REFUSED)
def test_a_refused_input_is_the_models_own_error_chained(make: Callable[[], Any]) -> None:
    model, inputs, own = make()
    before = snapshot(model)
    with pytest.raises(tiebeam.InputError) as caught:
        tiebeam.inspect(model, inputs)
    assert isinstance(caught.value.__cause__, own)
    assert "Hint:" in str(caught.value)
    assert_untouched(before, model)


def test_a_refused_input_says_what_the_model_takes() -> None:
    with pytest.raises(tiebeam.InputError, match="ids"):
        tiebeam.inspect(Base(), {"input_ids": ids()})


def test_ids_that_are_no_integers_are_said_to_be_what_they_are() -> None:
    model, inputs, _ = floats_for_ids()
    with pytest.raises(tiebeam.InputError, match=r"got: Tensor\(2, 4\) of float32"):
        tiebeam.inspect(model, inputs)


def test_ids_without_a_batch_are_not_said_to_lie_outside_their_table() -> None:
    class Positions(Base):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * ids.shape[1]

    with pytest.raises(tiebeam.InputError, match=r"(?s)tuple index out of range.*shape \(rows, tokens\)") as caught:
        tiebeam.inspect(Positions(), torch.arange(4))
    assert "below the rows of its table" not in str(caught.value)


def test_a_table_that_cannot_fit_its_head_is_named_with_both_shapes() -> None:
    model = UnequalShapes()
    before = snapshot(model)
    with pytest.raises(tiebeam.TiebeamError, match="head") as caught:
        tiebeam.inspect(model, ids())
    assert str(WIDTH) in str(caught.value)
    assert "24" in str(caught.value)
    assert_untouched(before, model)


def test_a_pass_that_fails_half_way_leaves_side_effects_undone() -> None:
    class FailsLate(Base):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def read(self, h: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            torch.rand(1)
            raise ValueError("no logits today")

    model = FailsLate()
    before = snapshot(model)
    with pytest.raises(tiebeam.InputError, match="no logits today"):
        tiebeam.inspect(model, ids())
    assert_untouched(before, model)


@pytest.mark.parametrize("what", [3, "gpt", None, [1], {"a": 1}, nn.Linear], ids=repr)
def test_what_is_no_model_is_refused_with_a_word(what: Any) -> None:
    with pytest.raises(tiebeam.BackendError, match="Hint:"):
        tiebeam.inspect(what, ids())


def test_a_model_on_meta_is_seen_and_gives_no_values() -> None:
    with torch.device("meta"):
        model = Base()
    report = tiebeam.inspect(model, ids().to("meta"))
    (table,) = report.tables
    assert report.meta
    assert table.tied
    assert (table.std, table.finite) == (None, None)


def test_one_look_and_another_say_the_same() -> None:
    case = load()["factors"]["InEveryPlaceAtOnce"]()
    twin = copy.deepcopy(case.model)
    first, second = (tiebeam.inspect(case.model, case.inputs).to_dict() for _ in range(2))
    assert first == second == tiebeam.inspect(twin, case.inputs).to_dict()


def test_params_are_for_models_that_hold_none() -> None:
    model, tokens = nn.Embedding(4, 2), torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(tiebeam.InputError, match=r"tiebeam\.initialize"):
        tiebeam.initialize_params(model, tokens)
    with pytest.raises(tiebeam.InputError, match="holds its own"):
        tiebeam.inspect(model, tokens, params={"table": torch.ones(4, 2)})


def test_the_class_of_a_model_is_told_from_a_model() -> None:
    with pytest.raises(tiebeam.BackendError, match=r"(?s)^Base is a class\n.*Hint: pass Base\(\.\.\.\)"):
        tiebeam.inspect(Base, ids())


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)], ids=str)
def test_inputs_without_a_token_are_refused_for_nothing_would_be_measured(shape):
    model = MiniGPT.from_scheme("C", vocab=50, width=16)
    before = snapshot(model)["values"]
    for look in (tiebeam.inspect, tiebeam.initialize):
        with pytest.raises(InputError, match="the inputs are empty"):
            look(model, torch.zeros(shape, dtype=torch.long))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Strict(nn.Module):
    """A layer that is never called has a weight of another shape, and the forward refuses floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.spare = nn.Embedding(VOCAB, WIDTH), nn.Linear(VOCAB, WIDTH)
        self.spare.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.is_floating_point():
            raise ValueError("tokens are integers")
        return self.embed(tokens) @ self.embed.weight.T


def test_shapes_are_not_blamed_where_the_model_said_something_else() -> None:
    assert tiebeam.inspect(Strict(), ids()).tables[0].state == "tied"
    with pytest.raises(InputError, match=r"(?s)ValueError: tokens are integers.*Hint: token ids are integers"):
        tiebeam.inspect(Strict(), ids().float())

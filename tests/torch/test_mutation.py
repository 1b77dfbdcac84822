"""A pass leaves a model as it was, whatever its forward does to itself."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tiebeam

IDS = torch.arange(16).view(2, 8)


class Base(nn.Module):
    def __init__(self, touch: Callable[["Base", Tensor], None] = lambda model, ids: None) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.mid = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        both = torch.zeros(4)
        self.register_buffer("a", both[:2])
        self.register_buffer("b", both[2:])
        self.register_buffer("cache", torch.zeros(64))
        self.loose = torch.zeros(3)
        self.touch = touch

    def forward(self, ids: Tensor) -> Tensor:
        self.touch(self, ids)
        x = self.embed(ids)
        return self.norm(x + self.mid(x)) @ self.embed.weight.T


def writes_two_views_of_one_storage(model: Base, ids: Tensor) -> None:
    model.b.add_(1)
    model.a.add_(1)


def assigns_a_buffer(model: Base, ids: Tensor) -> None:
    model.a = model.a + 1


def swaps_data(model: Base, ids: Tensor) -> None:
    model.mid.weight.data = model.mid.weight.data * 2


def assigns_a_parameter(model: Base, ids: Tensor) -> None:
    model.mid.weight = nn.Parameter(torch.zeros(64, 64))


def writes_a_plain_attribute(model: Base, ids: Tensor) -> None:
    model.loose.add_(1)


def switches_modes(model: Base, ids: Tensor) -> None:
    model.eval()
    model.mid.requires_grad_(False)


def swaps_the_data_of_a_buffer(model: Base, ids: Tensor) -> None:
    model.a.data = model.a.data + 1
    model.loose.data = model.loose.data + 1


def turns_its_data(model: Base, ids: Tensor) -> None:
    model.mid.weight.data = model.mid.weight.data.t()  # the same memory


def renames_its_parameters(model: Base, ids: Tensor) -> None:
    registry = model.norm._parameters
    weight, bias = registry.pop("weight"), registry.pop("bias")
    registry.update(gain=weight, shift=bias)
    model.norm.weight, model.norm.bias = torch.ones(64), torch.zeros(64)  # type: ignore[assignment]


def asks_gradients_of_a_buffer(model: Base, ids: Tensor) -> None:
    model.a.requires_grad_()


def writes_activations_into_a_buffer(model: Base, ids: Tensor) -> None:
    model.cache[:] = model.embed(ids[:1, :1]).flatten()


def adds_up_gradients(model: Base, ids: Tensor) -> None:
    model.embed(ids).sum().backward()


TOUCHES = [
    swaps_the_data_of_a_buffer,
    turns_its_data,
    renames_its_parameters,
    asks_gradients_of_a_buffer,
    writes_activations_into_a_buffer,
    adds_up_gradients,
    writes_two_views_of_one_storage,
    assigns_a_buffer,
    swaps_data,
    assigns_a_parameter,
    writes_a_plain_attribute,
    switches_modes,
]


@pytest.mark.parametrize("touch", TOUCHES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_forward_does_to_its_model_is_undone(touch: Callable[[Base, Tensor], None], fails: bool) -> None:
    def then(model: Base, ids: Tensor) -> None:
        touch(model, ids)
        if fails:
            raise ValueError("no")

    model = Base(then)
    model.embed.weight.grad = torch.ones(300, 64)
    objects = dict(model.named_parameters()) | dict(model.named_buffers())
    strides = {n: t.stride() for n, t in objects.items()}
    asked = {n: t.requires_grad for n, t in objects.items()}
    values = {n: t.detach().clone() for n, t in objects.items()}
    if fails:
        with pytest.raises(tiebeam.InputError):
            tiebeam.inspect(model, IDS)
    else:
        tiebeam.inspect(model, IDS)
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[n] is t for n, t in objects.items())
    assert all(torch.equal(after[n], v) for n, v in values.items())
    assert torch.equal(model.loose, torch.zeros(3))
    assert model.training
    assert {n: t.stride() for n, t in after.items()} == strides
    assert {n: t.requires_grad for n, t in after.items()} == asked
    assert torch.equal(model.embed.weight.grad, torch.ones(300, 64))
    assert model.mid.weight.grad is None


def test_parts_that_a_forward_makes_are_gone_with_the_note_that_they_are_there() -> None:
    class Late(Base):
        def __init__(self) -> None:
            super().__init__()
            self.gain: Tensor | None = None
            self.ready = False

        def forward(self, ids: Tensor) -> Tensor:
            if not self.ready:
                self.register_buffer("shift", torch.ones(64))
                self.more, self.gain, self.ready = nn.Linear(64, 64), nn.Parameter(torch.ones(64)), True
            x = self.embed(ids)
            return self.norm(self.more(x) * self.gain + self.shift) @ self.embed.weight.T

    model = Late()
    names = list(model.state_dict())
    for _ in range(2):
        assert tiebeam.inspect(model, IDS).tables[0].tied
        assert list(model.state_dict()) == names
    model(IDS)
    assert len(list(model.state_dict())) == len(names) + 4


def test_a_part_that_is_exchanged_and_the_note_of_it_in_another_module_go_back_together() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kind: nn.Module = nn.Identity()

    class Choosy(Base):
        """Takes another kind of block for short inputs, and refuses the longer ones that this block cannot do."""

        def __init__(self) -> None:
            super().__init__()
            self.block, self.short = Block(), False

        def forward(self, ids: Tensor) -> Tensor:
            if ids.shape[1] < 64 and not self.short:
                self.block.kind, self.short = nn.Linear(64, 64), True
            if not self.short or isinstance(self.block.kind, nn.Identity):
                raise ValueError("the block and the note of it differ")
            return self.norm(self.block.kind(self.embed(ids) * 7.0)) @ self.embed.weight.T

    model = Choosy()
    assert tiebeam.inspect(model, IDS).tables[0].lookup_factor == pytest.approx(7.0)
    assert not model.short
    assert isinstance(model.block.kind, nn.Identity)


def test_weights_that_a_forward_divides_once_go_back_with_the_note_that_it_did() -> None:
    class Rescaled(Base):
        """As RWKV outside of training: weights written in place and a hook, noted in an attribute that is no tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.rescaled = False

        def forward(self, ids: Tensor) -> Tensor:
            if not self.rescaled:
                with torch.no_grad():
                    self.mid.weight.div_(2)
                self.norm.register_forward_hook(lambda module, args, out: out * 4)
                self.rescaled = True
            return super().forward(ids)

    model = Rescaled()
    expected = copy.deepcopy(model)(IDS)
    tiebeam.inspect(model, IDS)
    assert not model.rescaled
    assert not model.norm._forward_hooks
    assert torch.equal(model(IDS), expected)


def test_inputs_that_a_forward_writes_are_as_before() -> None:
    ids = IDS.clone()
    tiebeam.inspect(Base(lambda model, given: given.fill_(1)), ids)
    assert torch.equal(ids, IDS)


class ReadsInputs(Base):
    """A factor that comes from the inputs, in one of many disguises."""

    def __init__(self, factor: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.factor(ids)
        return self.norm(x + self.mid(x)) @ self.embed.weight.T


@pytest.mark.parametrize(
    "factor",
    [
        lambda ids: float(ids[0, 0]) + 2,
        lambda ids: float(ids.min() + 3),
        lambda ids: float(ids.max()),
        lambda ids: float(ids.numpy()[0, 1]),
        lambda ids: float(ids.shape[0]) + 1,
        lambda ids: torch.rand(()).item() + 1,
    ],
    ids=["first", "smallest", "largest", "through NumPy", "batch", "random"],
)
def test_a_reading_of_the_inputs_or_of_chance_is_no_constant(factor: Callable[[Tensor], float]) -> None:
    (table,) = tiebeam.inspect(ReadsInputs(factor), IDS + 5).tables
    assert table.lookup_factor is None
    assert any("comes from the inputs" in note for note in table.notes)


def test_the_length_of_another_sequence_is_no_constant() -> None:
    class Pair(Base):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
            x = self.embed(source) * target.shape[1] ** 0.5
            return self.norm(x + self.mid(x)) @ self.embed.weight.T

    (table,) = tiebeam.inspect(Pair(), (IDS, torch.arange(10).view(2, 5))).tables
    assert table.lookup_factor is None


def test_predictions_do_not_depend_on_the_order_of_the_inputs() -> None:
    class Masked(Base):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(input_ids)

    model, mask = Masked(), torch.ones_like(IDS)
    first = tiebeam.inspect(model, {"input_ids": IDS, "attention_mask": mask}).tables[0].predicted
    last = tiebeam.inspect(model, {"attention_mask": mask, "input_ids": IDS}).tables[0].predicted
    assert first == last


def test_a_soft_cap_bounds_the_predicted_loss() -> None:
    class Capped(Base):
        def forward(self, ids: Tensor) -> Tensor:
            return 5 * torch.tanh(super().forward(ids) / 5)

    torch.manual_seed(0)
    model = Capped()
    ids = torch.randint(0, 300, (8, 64))
    predicted = tiebeam.inspect(model, ids).tables[0].predicted
    logits = model(ids)[:, :-1].flatten(0, 1)
    measured = nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).item()
    assert predicted.own_logit is not None
    assert predicted.own_logit <= 5
    assert predicted.initial_loss == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("way", ["a token at a time", "a chunk at a time", "narrowed"])
def test_logits_written_into_a_buffer_are_one_readout(way: str) -> None:
    class Buffered(Base):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            h = self.norm(x + self.mid(x))
            z = h.new_empty(*ids.shape, 300)
            step = 1 if way == "a token at a time" else 4
            for i in range(0, ids.shape[1], step):
                part = h[:, i : i + step] @ self.embed.weight.T * 0.5
                if way == "narrowed":
                    z.narrow(1, i, step).copy_(part)
                else:
                    z[:, i : i + step] = part
            return z

    (table,) = tiebeam.inspect(Buffered(), IDS).tables
    assert (table.state, table.readout_factor, len(table.readouts)) == ("tied", 0.5, 1)


@pytest.mark.parametrize("way", ["a mask", "selected"])
def test_logits_put_in_place_by_a_mask_or_a_selection_are_a_readout(way: str) -> None:
    class Masked(Base):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            h, kept = self.norm(x + self.mid(x)), ids > 2
            z = h.new_zeros(*ids.shape, 300)
            if way == "selected":
                return z.select_scatter(h[:, 1] @ self.embed.weight.T * 0.5, 1, 1)
            z[kept] = h[kept] @ self.embed.weight.T * 0.5
            return z

    (table,) = tiebeam.inspect(Masked(), IDS).tables
    assert (table.state, table.readout_factor) == ("tied", 0.5)


def test_lookups_of_different_lengths_share_one_pass() -> None:
    class Shifted(Base):
        def forward(self, ids: Tensor) -> Tensor:
            short = self.norm(self.embed(ids[:, :-1]))
            return (self.norm(self.embed(ids)) + short.mean(1, keepdim=True)) @ self.embed.weight.T

    assert tiebeam.inspect(Shifted(), IDS).tables[0].state == "tied"


def test_a_parametrisation_is_not_run_outside_the_pass() -> None:
    model = Base()
    nn.utils.parametrizations.spectral_norm(model.mid)
    before = {n: b.clone() for n, b in model.named_buffers()}
    tiebeam.inspect(model, IDS)
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())


def test_a_constant_is_known_in_a_model_of_one_length() -> None:
    class Fixed(Base):
        def forward(self, ids: Tensor) -> Tensor:
            if ids.shape != (2, 8):
                raise ValueError("one length only")
            return self.norm(self.embed(ids) * 8.0) @ self.embed.weight.T * 0.3

    (table,) = tiebeam.inspect(Fixed(), IDS).tables
    assert (table.lookup_factor, table.readout_factor) == (8.0, 0.3)


def test_a_size_is_no_constant_in_a_model_of_one_length() -> None:
    class Fixed(Base):
        def forward(self, ids: Tensor) -> Tensor:
            if ids.shape != (2, 7):
                raise ValueError("one length only")
            return self.norm(self.embed(ids) * ids.shape[1] ** 0.5) @ self.embed.weight.T

    (table,) = tiebeam.inspect(Fixed(), IDS[:, :7]).tables
    assert table.lookup_factor is None


@pytest.mark.parametrize(("factor", "known"), [(2.0, 2.0), (0.5, 0.5), (0.5**0.5, 0.5**0.5), (7.0, None)])
def test_in_one_length_a_factor_may_be_the_batch_but_not_the_length(factor: float, known: float | None) -> None:
    class Fixed(Base):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.randn(1, 7, self.embed.embedding_dim))

        def forward(self, ids: Tensor) -> Tensor:
            return self.norm(self.embed(ids) * factor + self.positions) @ self.embed.weight.T

    assert tiebeam.inspect(Fixed(), IDS[:, :7]).tables[0].lookup_factor == known


def test_a_forward_that_asks_for_gradients_is_followed() -> None:
    class Energy(Base):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
            return self.norm(x + slope) @ self.embed.weight.T

    assert tiebeam.inspect(Energy(), IDS).tables[0].state == "tied"


def writes_and_freezes(model: Base, ids: Tensor) -> None:
    with torch.inference_mode():
        model.cache.add_(1)
        model.embed.weight.mul_(1.5)
        model.mid.weight.requires_grad_(False)


@pytest.mark.parametrize("caller", [False, True], ids=["caller-trains", "caller-infers"])
@pytest.mark.parametrize("maker", [False, True], ids=["made-to-train", "made-to-infer"])
def test_what_is_written_in_inference_mode_is_put_back(maker: bool, caller: bool) -> None:
    with torch.inference_mode(maker):
        model = Base(writes_and_freezes)
    before = {n: t.detach().clone() for n, t in model.state_dict().items()}
    with torch.inference_mode(caller):
        tiebeam.inspect(model, IDS)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model.mid.weight.requires_grad

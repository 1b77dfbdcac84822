"""The readout loss of PyTorch: equal to the cross entropy of logits, whatever is asked of it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from tests.readout_loss.reference import Problem, cross_entropy, relative

from tiebeam.blocks.readout_loss import sizes
from tiebeam.blocks.readout_loss.torch import kernel, operator, precision, quick
from tiebeam.torch import readout_loss

pytestmark = pytest.mark.slow

OPTIONS = {
    "soft_cap": (None, 2.5),
    "label_smoothing": (0.0, 0.1),
    "z_loss": (0.0, 1e-2),
    "weight": (None, True),
    "bias": (None, True),
    "factor": (0.5, True),
    "reduction": ("mean", "sum", "none"),
}
EVERY = [dict(zip(OPTIONS, chosen, strict=True)) for chosen in itertools.product(*OPTIONS.values())]


def agree(problem: Problem, tolerance=1e-12, **more):
    found, exact = problem.run(readout_loss, **more), problem.run(cross_entropy)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture
def ways(monkeypatch):
    """Counts how blocks were looked at."""
    used = {"quick": 0, "careful": 0}

    def counting(name, way):
        def counted(*args):
            found = way(*args)
            used[name] += found is not None
            return found

        return counted

    for name in used:
        monkeypatch.setattr(kernel, name, counting(name, getattr(kernel, name)))
    return used


# ---- equal to cross entropy


@pytest.mark.parametrize("reduction", OPTIONS["reduction"])
@pytest.mark.parametrize("ignored", [0, 3, 10], ids=["none ignored", "some ignored", "all ignored"])
def test_every_combination_of_options_gives_the_loss_and_the_gradients_of_cross_entropy(reduction, ignored):
    for options in EVERY:
        if options["reduction"] == reduction:
            agree(Problem.of((2, 5), ignored=ignored, **options), chunk=3)


@pytest.mark.parametrize("size", [30.0, 300.0], ids=["large logits", "huge logits"])
def test_logits_that_overflow_an_exponential_are_looked_at_by_the_book(size, ways):
    for options in EVERY[::5]:
        agree(Problem.of(size=size, **(options | {"soft_cap": None})), tolerance=1e-11, chunk=4)
    assert ways["careful"] > 10


def test_logits_that_all_lie_far_below_zero_are_too(ways):
    problem = Problem.of((7,), bias=True)
    with torch.no_grad():
        problem.options["bias"] -= 500.0
    agree(problem)
    assert ways == {"quick": 0, "careful": 1}


def test_ordinary_logits_are_exponentiated_as_they_are(ways):
    agree(Problem.of((12,), label_smoothing=0.1, bias=True), chunk=4)
    agree(Problem.of((12,), soft_cap=30.0), chunk=4)
    assert ways == {"quick": 6, "careful": 0}


def test_a_block_that_overflows_after_others_that_did_not_spoils_none(ways):
    problem = Problem.of((12,))
    with torch.no_grad():
        problem.hidden[8:] *= 400.0
    agree(problem, chunk=4, tolerance=1e-11)
    assert ways == {"quick": 2, "careful": 1}


def test_a_logit_that_overflows_in_a_late_piece_of_the_table_is_noticed(ways, monkeypatch):
    monkeypatch.setattr(operator, "choose", lambda *_, **__: sizes.Blocks(4, 8, 2))
    problem = Problem.of((8,))
    with torch.no_grad():
        problem.table[-1] *= 2000.0
    agree(problem, tolerance=1e-11)
    assert ways["quick"] == 0


@pytest.mark.parametrize("blocks", [(1, 1), (4, 5), (9, 23), (2, 7)])
@pytest.mark.parametrize("options", [{}, {"soft_cap": 3.0, "label_smoothing": 0.2, "weight": True}])
def test_no_size_of_a_block_changes_what_comes_out(blocks, options, monkeypatch):
    monkeypatch.setattr(operator, "choose", lambda *_, **__: sizes.Blocks(*blocks, -(-blocks[0] // 2)))
    agree(Problem.of(bias=True, **options))


@pytest.mark.parametrize(
    ("shape", "vocab", "width"),
    [((1,), 23, 6), ((), 23, 6), ((3, 1, 2), 2, 1), ((5,), 1, 4), ((513,), 3, 2), ((2,), 300, 5)],
    ids=["one token", "no batch axis", "three axes", "one row", "ragged tokens", "ragged rows"],
)
@pytest.mark.parametrize("reduction", OPTIONS["reduction"])
def test_sizes_are_as_they_come(shape, vocab, width, reduction):
    agree(Problem.of(shape, vocab, width, reduction=reduction, bias=True))


def test_another_ignore_index_is_ignored_even_where_it_is_a_row():
    agree(Problem.of(ignored=4, ignore_index=7, label_smoothing=0.1))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_weights_that_are_all_0_have_no_mean(label_smoothing):
    weight = torch.zeros(23, dtype=torch.float64)
    loss, *_ = Problem.of(weight=weight, label_smoothing=label_smoothing).run(readout_loss)
    assert loss.isnan()


def test_ids_of_any_integer_dtype_are_ids():
    problem = Problem.of()
    want = readout_loss(problem.hidden, problem.table, problem.targets)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        torch.testing.assert_close(readout_loss(problem.hidden, problem.table, problem.targets.to(dtype)), want)


def test_tensors_that_are_views_are_read_as_they_lie():
    whole = Problem.of((6,), vocab=40, width=8)
    hidden = whole.hidden.detach().t().contiguous().t().requires_grad_()
    table = whole.table.detach().repeat(1, 2)[:, :8].requires_grad_()
    assert not hidden.is_contiguous()
    assert not table.is_contiguous()
    agree(Problem(hidden, table, whole.targets))


# ---- derivatives


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True, "factor": True, "z_loss": 0.01},
        {"soft_cap": 2.0, "bias": True, "factor": True},
        {"soft_cap": 2.0, "label_smoothing": 0.1, "weight": True, "factor": True},
        {"label_smoothing": 0.1, "weight": True, "bias": True, "reduction": "none"},
        {"reduction": "sum"},
    ],
    ids=str,
)
def test_gradients_are_those_of_differences(options):
    problem = Problem.of((4,), 7, 3, ignored=1, **options)
    fixed = {k: v for k, v in problem.options.items() if not any(v is leaf for leaf in problem.leaves)}
    names = [k for k in problem.options if k not in fixed]

    def loss(hidden, table, *learned):
        return readout_loss(hidden, table, problem.targets, **fixed, **dict(zip(names, learned, strict=True)), chunk=3)

    assert torch.autograd.gradcheck(loss, problem.leaves, eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"soft_cap": 30.0}, {"label_smoothing": 0.1, "bias": True}], ids=str)
def test_in_float32_the_loss_is_exact_to_1e_6_and_gradients_to_5e_7(options):
    exact = Problem.of((1000,), 4099, 64, size=0.25, **options)
    loss, *grads = exact.to(torch.float32).run(readout_loss)
    want, *wanted = exact.to(torch.float32).to(torch.float64).run(cross_entropy)
    assert abs(float(loss) - float(want)) < 1e-6
    for grad, right in zip(grads, wanted, strict=True):
        assert relative(grad, right) < 5e-7


def test_gradients_that_are_not_wanted_are_not_computed(monkeypatch):
    seen = []
    sweep = operator.sweep

    def watched(batch, table, wanted, dtype):
        seen.append((wanted.hidden, wanted.table is not None, wanted.bias is not None))
        return sweep(batch, table, wanted, dtype)

    monkeypatch.setattr(operator, "sweep", watched)
    problem = Problem.of(bias=True)
    hidden, table, bias = problem.leaves
    with torch.no_grad():
        readout_loss(hidden, table, problem.targets, bias=bias)
    readout_loss(hidden.detach(), table, problem.targets, bias=bias.detach())
    readout_loss(hidden, table.detach(), problem.targets, bias=bias)
    assert seen == [(False, False, False), (False, True, False), (True, False, True)]


def test_the_loss_is_the_same_without_gradients():
    problem = Problem.of(dtype=torch.float32, label_smoothing=0.1)
    wanted = readout_loss(problem.hidden, problem.table, problem.targets, **problem.options)
    with torch.inference_mode():
        assert readout_loss(problem.hidden, problem.table, problem.targets, **problem.options) == wanted


# ---- statistics


@pytest.mark.parametrize("options", [{}, {"soft_cap": 2.0, "bias": True}, {"size": 300.0}], ids=str)
def test_statistics_are_those_of_the_logits(options):
    problem = Problem.of((4, 5), ignored=3, **options)
    inputs = torch.randint(23, (4, 5), generator=torch.Generator().manual_seed(3))
    loss, stats = readout_loss(
        problem.hidden, problem.table, problem.targets, **problem.options, ids=inputs, returns="stats", chunk=7
    )
    z = problem.hidden @ problem.table.mT + problem.options.get("bias", 0.0)
    cap = problem.options.get("soft_cap")
    z = (z if cap is None else cap * torch.tanh(z / cap)).detach()
    counted = problem.targets != -100
    torch.testing.assert_close(stats.logsumexp[counted], z.logsumexp(-1)[counted])
    torch.testing.assert_close(stats.own_logit[counted], z.gather(-1, inputs[..., None])[..., 0][counted])
    torch.testing.assert_close(stats.own_mass[counted], z.softmax(-1).gather(-1, inputs[..., None])[..., 0][counted])
    assert torch.equal(stats.best, (z.argmax(-1) == problem.targets) & counted)
    assert float(stats.accuracy) == float(stats.best.sum() / 17)
    assert stats.logsumexp[~counted].isnan().all()
    assert torch.equal(stats.counted, counted)
    assert not stats.logsumexp.requires_grad
    assert loss == readout_loss(problem.hidden, problem.table, problem.targets, **problem.options, chunk=7)


def test_most_predictions_are_right_where_the_table_reads_its_own_rows():
    table = torch.eye(20) * 9.0
    ids = torch.arange(20)
    _, stats = readout_loss(table[ids], table, ids, ids=ids, returns="stats")
    assert float(stats.accuracy) == 1.0
    assert float(stats.own_mass.min()) > 0.99
    _, stats = readout_loss(table[ids], table, ids.roll(1), returns="stats")
    assert float(stats.accuracy) == 0.0
    assert stats.own_logit is None


# ---- half precision


@pytest.mark.parametrize("native", [False, True], ids=["widened", "as bfloat16"])
def test_bfloat16_sums_in_float32(native, monkeypatch):
    """Also where the processor multiplies bfloat16, which this one need not."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: native)
    narrow = Problem.of((600,), 3000, 64, size=0.25, dtype=torch.bfloat16)
    loss, *grads = narrow.run(readout_loss)
    want, *wanted = narrow.to(torch.float64).run(cross_entropy)
    assert loss.dtype == torch.float32
    assert abs(float(loss) - float(want)) < (1e-4 if native else 1e-6)
    for grad, right in zip(grads, wanted, strict=True):
        assert grad.dtype == torch.bfloat16
        assert relative(grad, right) < 4e-3


@pytest.mark.parametrize("native", [False, True], ids=["widened", "as bfloat16"])
@pytest.mark.parametrize(
    "options", [{"soft_cap": 3.0}, {"size": 20.0, "bias": True}, {"label_smoothing": 0.1}], ids=str
)
def test_every_way_takes_bfloat16(native, options, monkeypatch, ways):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: native)
    narrow = Problem.of((40,), 300, 16, dtype=torch.bfloat16, **options)
    loss, *grads = narrow.run(readout_loss)
    want, *wanted = narrow.to(torch.float64).run(cross_entropy)
    assert float(loss) == pytest.approx(float(want), rel=4e-3)
    for grad, right in zip(grads, wanted, strict=True):
        assert relative(grad, right) < 0.05
    assert bool(ways["careful"]) == ("size" in options)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 0.02), (torch.float32, 4e-6)], ids=["bfloat16", "float32"]
)
@pytest.mark.parametrize("soft_cap", [None, 40.0], ids=["", "soft cap"])
@pytest.mark.parametrize("quickly", [True, False], ids=["quick", "careful"])
def test_targets_that_are_nearly_certain_still_have_a_loss_and_gradients(dtype, most, soft_cap, quickly, monkeypatch):
    """Of a softmax that lies on the target but for 1e-5, the difference of sums in float32 has 1e-2 of error."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(quick, "MOST", quick.MOST if quickly else 0.0)
    draws = torch.Generator().manual_seed(0)
    table, targets = torch.randn(500, 64, generator=draws), torch.arange(40)
    hidden = 0.4 * table[targets] + 0.02 * torch.randn(40, 64, generator=draws)
    narrow = [t.to(dtype).requires_grad_() for t in (hidden, table)]
    exact = [t.detach().double().requires_grad_() for t in narrow]
    loss, want = readout_loss(*narrow, targets, soft_cap=soft_cap), cross_entropy(*exact, targets, soft_cap=soft_cap)
    loss.backward()
    want.backward()
    loss, want = loss.detach(), want.detach()
    assert 0.0 < float(want) < 1e-3
    assert float(loss) == pytest.approx(float(want), rel=most)
    for mine, right in zip(narrow, exact, strict=True):
        assert relative(mine.grad, right.grad) < most


@pytest.mark.parametrize("native", [False, True], ids=["widened", "as bfloat16"])
def test_autocast_keeps_the_gradient_of_a_float32_table_in_float32(native, monkeypatch):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: native)
    problem = Problem.of((64,), 500, 32, size=0.25, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, *grads = problem.run(readout_loss)
    want, *wanted = problem.to(torch.float64).run(cross_entropy)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(want), abs=2e-3)
    for grad, right in zip(grads, wanted, strict=True):
        assert grad.dtype == torch.float32
        assert relative(grad, right) < 1e-2


def test_gradients_of_float16_that_only_a_scaler_brings_into_range_are_not_lost():
    narrow = Problem.of((512,), 700, 8, size=2e-4, dtype=torch.float16)
    scale = 2.0**14
    _, *grads = narrow.run(readout_loss, upstream=scale)
    _, *wanted = narrow.to(torch.float64).run(cross_entropy, upstream=scale)
    for grad, right in zip(grads, wanted, strict=True):
        assert grad.dtype == torch.float16
        assert relative(grad, right) < 2e-3
    assert relative((wanted[1] / scale).half() * scale, wanted[1]) > 0.02  # had it been rounded before it was scaled


def test_an_infinite_hidden_state_of_float16_reaches_the_scaler():
    problem = Problem.of((8,), dtype=torch.float16)
    with torch.no_grad():
        problem.hidden[0, 0] = torch.inf
    loss, grad, _ = problem.run(readout_loss)
    assert not loss.isfinite()
    assert not grad.isfinite().all()


# ---- what is left alone


def test_no_more_than_a_block_of_logits_is_ever_held():
    from tests.blocks.torch_kit import NewStorages

    problem, tokens, chunk = Problem.of((64,), 2000, 8, dtype=torch.float32), 64, 16
    numbers = operator.Numbers(1.0, None, -100, 0.0, 0.0, "mean", chunk, [True, True, False, False], False,
                               torch.float32, [tokens], 0, 2000, "")  # fmt: skip
    with torch.no_grad(), NewStorages(chunk * 2000 + 1) as seen:
        operator._run(problem.hidden, problem.table, None, None, problem.targets, None, None, None, numbers)
    assert not seen.made
    with torch.no_grad(), NewStorages(chunk * 2000 + 1) as seen:
        cross_entropy(problem.hidden, problem.table, problem.targets)
    assert seen.made  # it would be noticed


def test_no_setting_of_torch_is_other_than_before():
    def settings():
        return (
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.matmul.fp32_precision,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.random.get_rng_state().sum().item(),
        )

    before = settings()
    Problem.of().run(readout_loss)
    assert settings() == before


def test_what_is_read_is_not_written():
    problem = Problem.of(bias=True, weight=True, ignored=2, soft_cap=3.0, dtype=torch.float32)
    given = [problem.hidden, problem.table, problem.targets, *problem.options.values()]
    before = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in given]
    problem.run(readout_loss)
    for old, now in zip(before, given, strict=True):
        assert torch.equal(old, now) if isinstance(now, torch.Tensor) else old == now


def test_a_run_repeats_itself_bit_by_bit():
    problem = Problem.of((300,), 500, 16, dtype=torch.float32)
    for a, b in zip(problem.run(readout_loss), problem.run(readout_loss), strict=True):
        assert torch.equal(a, b)


def test_one_hot_lookups_and_readouts_of_one_table_sum_to_the_gradient_of_both():
    table = torch.randn(30, 8, dtype=torch.float64, requires_grad=True)
    ids = torch.arange(12)
    for sparse in (False, True):
        got = torch.autograd.grad(readout_loss(F.embedding(ids, table, sparse=sparse), table, ids.roll(1)), table)[0]
        want = torch.autograd.grad(cross_entropy(table[ids], table, ids.roll(1)), table)[0]
        torch.testing.assert_close(got.to_dense() if got.is_sparse else got, want)


@pytest.mark.parametrize("soft_cap", [30.0, 64.0, 65.0, 1e6])
def test_a_soft_cap_far_above_the_logits_takes_no_digits_from_them(soft_cap):
    draws = torch.Generator().manual_seed(0)
    hidden, table = torch.randn(64, 32, generator=draws), 0.2 * torch.randn(500, 32, generator=draws)
    targets = torch.randint(500, (64,), generator=draws)
    logits = soft_cap * torch.tanh(hidden.double() @ table.double().T / soft_cap)
    want = pytest.approx(float(F.cross_entropy(logits, targets)), abs=1e-6)
    for wanted in (False, True):
        found = readout_loss(hidden.requires_grad_(wanted), table, targets, soft_cap=soft_cap)
        assert float(found.detach()) == want

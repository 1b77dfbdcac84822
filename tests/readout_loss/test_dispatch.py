"""Who computes a readout loss, and in blocks of which size."""

import sys
import types
from dataclasses import replace

import pytest
import torch
from tests.readout_loss.reference import Problem, cross_entropy

from tiebeam.blocks.readout_loss import sizes
from tiebeam.blocks.readout_loss.options import Options
from tiebeam.blocks.readout_loss.torch import call, fused, kernel, operator, precision
from tiebeam.blocks.readout_loss.torch.fused import Asked, choose_fused
from tiebeam.torch import readout_loss

ASKED = Asked("cuda", (torch.bfloat16,) * 2, bias=False, weight=False, stats=False, sharded=False, options=Options())


@pytest.fixture
def installed(monkeypatch):
    """Stands for libraries that are installed; what they are called with is noted."""
    calls = []

    def install(name, function):
        *parents, _ = name.split(".")
        for depth in range(1, len(parents) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parents[:depth]), types.ModuleType(parents[depth - 1]))
        module = types.ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(fused.importlib.util, "find_spec", lambda asked: asked == name.partition(".")[0] or None)

    def liger():
        def liger_fused_linear_cross_entropy(
            input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
            label_smoothing=0.0, reduction="mean", softcap=None, accum_dtype=None,
        ):  # fmt: skip
            calls.append(("liger", accum_dtype))
            options = {"z_loss": lse_square_scale, "label_smoothing": label_smoothing, "soft_cap": softcap}
            return cross_entropy(
                input, weight, target, bias=bias, weight=ce_weight, ignore_index=ignore_index, reduction=reduction,
                **options,
            )  # fmt: skip

        install("liger_kernel.transformers.functional", liger_fused_linear_cross_entropy)

    def cut(version):
        def old(e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False, filter_eps="high"):
            calls.append(("cut", filter_eps))
            return cross_entropy(e, c, targets, ignore_index=ignore_index, soft_cap=softcap, reduction=reduction)

        def new(
            e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", filter_eps="auto",
            accum_e_fp32=False, accum_c_fp32=False,
        ):  # fmt: skip
            calls.append(("cut", filter_eps, accum_e_fp32, accum_c_fp32))
            return cross_entropy(
                e, c, targets, bias=bias, ignore_index=ignore_index, soft_cap=softcap, reduction=reduction
            )

        function = {"old": old, "new": new}[version]
        function.__name__ = "linear_cross_entropy"
        install("cut_cross_entropy", function)

    return types.SimpleNamespace(calls=calls, liger=liger, cut=cut)


@pytest.fixture
def as_on_cuda(monkeypatch):
    """A call that believes its tensors to be on a GPU."""
    asked = call._asked
    monkeypatch.setattr(call, "_asked", lambda *args: replace(asked(*args), device="cuda"))


def test_a_processor_computes_block_by_block_whatever_is_installed(installed):
    installed.liger()
    assert choose_fused(replace(ASKED, device="cpu")) is None


def test_without_a_library_cuda_computes_block_by_block(monkeypatch):
    monkeypatch.setattr(fused.importlib.util, "find_spec", lambda name: None)
    assert choose_fused(ASKED) is None


@pytest.mark.parametrize(
    "lacking",
    [
        {"stats": True},
        {"sharded": True},
        {"dtypes": (torch.float16,) * 2},
        {"dtypes": (torch.float64,) * 2},
        {"dtypes": (torch.bfloat16, torch.float32)},
    ],
    ids=str,
)
def test_what_a_library_lacks_goes_block_by_block(installed, lacking):
    installed.liger()
    assert choose_fused(ASKED) is not None
    assert choose_fused(replace(ASKED, **lacking)) is None


@pytest.mark.parametrize(
    "lacking",
    [{"weight": True}, {"options": Options(label_smoothing=0.1)}, {"options": Options(z_loss=0.1)}],
    ids=str,
)
def test_cut_cross_entropy_is_asked_for_no_more_than_it_has(installed, lacking):
    installed.cut("new")
    assert choose_fused(replace(ASKED, bias=True)) is not None
    assert choose_fused(replace(ASKED, **lacking)) is None


def test_a_version_that_sums_bfloat16_in_bfloat16_is_not_called(installed):
    installed.cut("old")
    assert choose_fused(ASKED) is None
    wide = replace(ASKED, dtypes=(torch.float32,) * 2)
    assert choose_fused(wide) is not None
    assert choose_fused(replace(wide, bias=True)) is None


OPTIONS = {"factor": True, "soft_cap": 2.0, "bias": True, "ignored": 2}


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_liger_is_given_everything_and_sums_in_float32(installed, as_on_cuda, reduction):
    installed.liger()
    more = {"label_smoothing": 0.1, "z_loss": 0.01, "weight": True}
    problem = Problem.of((2, 5), dtype=torch.float32, **OPTIONS, **more, reduction=reduction)
    for a, b in zip(problem.run(readout_loss), problem.run(cross_entropy), strict=True):
        torch.testing.assert_close(a, b)
    assert installed.calls == [("liger", torch.float32)]


def test_cut_cross_entropy_filters_nothing_and_sums_in_float32(installed, as_on_cuda):
    installed.cut("new")
    problem = Problem.of((2, 5), dtype=torch.float32, **OPTIONS)
    for a, b in zip(problem.run(readout_loss), problem.run(cross_entropy), strict=True):
        torch.testing.assert_close(a, b)
    assert installed.calls == [("cut", None, True, True)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"soft_cap": 3.0, "bias": True}, {"label_smoothing": 0.1, "weight": True}], ids=str
)
def test_a_gpu_computes_what_a_processor_does(dtype, options):
    here = Problem.of((512,), 4099, 64, size=0.25, dtype=dtype, **options)
    there = here.to(dtype)
    there.hidden, there.table, there.targets = (t.detach().cuda() for t in (there.hidden, there.table, there.targets))
    there.hidden.requires_grad_()
    there.table.requires_grad_()
    there.options = {
        k: v.detach().cuda().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for k, v in there.options.items()
    }
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for a, b in zip(there.run(readout_loss), here.run(readout_loss), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


# ---- what is multiplied


def test_products_are_bfloat16_only_where_both_are_and_the_processor_can(monkeypatch):
    wide, narrow, half = (torch.ones(1, dtype=d) for d in (torch.float32, torch.bfloat16, torch.float16))
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)
    assert precision.product_dtype(narrow, narrow) == torch.bfloat16
    assert precision.product_dtype(narrow, wide) == torch.float32
    assert precision.product_dtype(half, half) == torch.float32
    assert precision.product_dtype(narrow, wide.double()) == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert precision.product_dtype(wide, wide) == torch.bfloat16
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: False)
    assert precision.product_dtype(narrow, narrow) == torch.float32


def test_the_gradient_of_a_bias_is_not_the_difference_of_rounded_sums(monkeypatch):
    """Where a model predicts as often as it meets, probabilities sum to about the number of targets."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device: True)
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(1024, 64, generator=draws).bfloat16()
    table = (torch.randn(50, 64, generator=draws) / 8.0).bfloat16()
    bias = -torch.arange(1, 51).log().bfloat16()
    exact = [t.double().requires_grad_() for t in (hidden, table, bias)]
    logits = exact[0] @ exact[1].T + exact[2]
    targets = torch.multinomial(logits.detach().softmax(-1), 1, generator=draws).flatten()
    torch.nn.functional.cross_entropy(logits, targets).backward()
    bias.requires_grad_()
    readout_loss(hidden, table, targets, bias=bias).backward()
    right = exact[2].grad
    assert float((bias.grad - right).norm() / right.norm()) < 5e-3


# ---- sizes


def test_logits_held_at_a_time_stay_within_a_budget():
    for vocab in (1, 1000, 33_527, 151_936, 262_144):
        for width in (8, 128, 4096):
            for tokens in (1, 100, 4096, 100_000):
                blocks = sizes.choose(tokens, vocab, width)
                assert 1 <= blocks.tokens <= min(tokens, 512)
                assert 1 <= blocks.rows <= vocab
                least = vocab * min(tokens, sizes.LEAST_TOKENS) * 4
                assert blocks.tokens * vocab * 4 <= max(sizes.HELD, vocab * width, least)


def test_narrow_logits_that_are_widened_after_all_stay_within_the_budget_too():
    narrow = sizes.choose(4096, 33_527, 128, itemsize=2)
    assert narrow.wide_tokens == sizes.choose(4096, 33_527, 128).tokens == narrow.tokens // 2
    assert sizes.choose(4096, 33_527, 128, itemsize=2, chunk=700).wide_tokens == 700


def test_by_the_book_logits_take_no_more_than_as_they_were_held_before(monkeypatch):
    """Narrow ones are as many as fit; in float32, where their block overflows, they would take twice of that."""
    seen, careful = [], kernel.careful

    def watched(tokens, table, wanted):
        seen.append(len(tokens.targets))
        return careful(tokens, table, wanted)

    monkeypatch.setattr(kernel, "careful", watched)
    monkeypatch.setattr(operator, "choose", lambda *_, **__: sizes.Blocks(4, 8, 2))
    problem = Problem.of((9,), dtype=torch.float64)
    with torch.no_grad():
        problem.hidden[4:] *= 400.0
    torch.testing.assert_close(problem.run(readout_loss), problem.run(cross_entropy), rtol=1e-11, atol=1e-11)
    assert seen == [2, 2, 1]


def test_a_table_that_stays_in_the_cache_is_read_for_few_tokens_at_a_time_in_large_pieces(monkeypatch):
    monkeypatch.setattr(sizes, "outermost_cache", lambda: 480 << 20)
    near, far = (sizes.choose(4096, 33_527, width, in_place=True) for width in (128, 512))
    assert near == sizes.Blocks(tokens=152, rows=33_527, wide_tokens=152)
    assert far == sizes.choose(4096, 33_527, 512)
    assert sizes.choose(4096, 33_527, 128) == far, "nor one whose logits are copied, or not a processor's"


def test_narrow_logits_are_held_for_more_tokens_in_the_same_bytes():
    assert sizes.choose(4096, 33_527, 128, itemsize=2).tokens == 2 * sizes.choose(4096, 33_527, 128).tokens


def test_blocks_of_tokens_are_of_equal_size():
    assert sizes.choose(1000, 33_527, 128).tokens == 504
    assert sizes.choose(520, 100, 8).tokens == 264


def test_tokens_asked_for_are_those_that_are_held():
    assert sizes.choose(1000, 33_527, 128, chunk=7).tokens == 7
    assert sizes.choose(5, 33_527, 128, chunk=7).tokens == 5


def test_a_smaller_cache_makes_smaller_blocks(monkeypatch):
    large = sizes.choose(4096, 33_527, 128).rows
    monkeypatch.setattr(sizes, "outermost_cache", lambda: 4 << 20)
    assert sizes.choose(4096, 33_527, 128).rows <= large
    assert sizes.choose(4096, 33_527, 128).rows == sizes.LEAST_ROWS


def test_rows_of_logits_never_lie_a_power_of_two_apart(monkeypatch):
    for mebibytes in range(1, 512, 3):
        monkeypatch.setattr(sizes, "outermost_cache", lambda size=mebibytes: size << 20)
        rows = {sizes.choose(4096, 33_527, width).rows for width in (8, 128, 512, 2048)}
        assert {n % (2 * sizes.LINE) for n in rows} == {sizes.LINE}


def test_a_system_that_names_no_cache_is_given_a_guess(monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "Path", lambda *_: tmp_path)
    sizes.outermost_cache.cache_clear()
    try:
        assert sizes.outermost_cache() == sizes.UNKNOWN_CACHE
        for index, text in enumerate(("32K", "1M", "nonsense", "512K")):
            (tmp_path / f"index{index}").mkdir()
            (tmp_path / f"index{index}" / "size").write_text(text)
        sizes.outermost_cache.cache_clear()
        assert sizes.outermost_cache() == 1 << 20
    finally:
        sizes.outermost_cache.cache_clear()

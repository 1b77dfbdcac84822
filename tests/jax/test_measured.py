"""What is measured inside loops, branches and shards, and the module that a role is said to belong to."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from tests.jax.models.kit import CASES, VOCAB, WIDTH, ids, load, normal, rms_norm

import tiebeam
from tiebeam.backends.jax.evaluate import pooled
from tiebeam.backends.jax.kinds.scopes import scopes

load()
TREE = {"table": normal(0, VOCAB, WIDTH)}


def rms(x: Any) -> float:
    return float(jnp.sqrt(jnp.mean(x * x)))


def looked(model: Any) -> tiebeam.Table:
    [table] = tiebeam.inspect(model, ids(), params=TREE).tables
    return table


def test_a_while_loop_is_measured_over_its_rounds() -> None:
    """Round i reads out of a state of size i + 1."""

    def model(p: Any, tokens: Any) -> Any:
        h = rms_norm(p["table"][tokens])
        zeros = jnp.zeros((*tokens.shape, VOCAB))
        return jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, (h * (s[0] + 1.0) + 1e-9) @ p["table"].T), (0, zeros)
        )[1]

    assert looked(model).hidden_rms == pytest.approx(((1 + 4 + 9) / 3) ** 0.5, rel=1e-4)


def test_a_scan_is_measured_over_its_rounds() -> None:
    def model(p: Any, tokens: Any) -> Any:
        h = rms_norm(p["table"][tokens])
        return jax.lax.scan(lambda c, by: (c, (h * by + 1e-9) @ p["table"].T), 0, jnp.array([1.0, 2.0, 3.0]))[1]

    assert looked(model).hidden_rms == pytest.approx(((1 + 4 + 9) / 3) ** 0.5, rel=1e-4)


def test_a_scan_of_which_every_round_is_followed_is_measured_too() -> None:
    def model(p: Any, tokens: Any) -> Any:
        shrunk = jax.lax.scan(lambda x, _: (x * 0.5, (x @ p["table"].T) * 1.0), p["table"][tokens], None, length=2)[1]
        return shrunk[-1]

    [readout] = looked(model).readouts[:1]
    assert readout.hidden_rms is not None


def test_the_branch_that_is_taken_is_measured() -> None:
    def model(p: Any, tokens: Any) -> Any:
        h = rms_norm(p["table"][tokens])
        return jax.lax.cond(
            tokens[0, 0] < VOCAB, lambda x: jnp.exp(x) @ p["table"].T, lambda x: jnp.zeros((2, 5, VOCAB)), h
        )

    assert looked(model).hidden_rms == pytest.approx(rms(jnp.exp(rms_norm(TREE["table"][ids()]))), rel=1e-4)


def test_a_branch_that_is_not_taken_leaves_a_note_and_no_figure() -> None:
    def model(p: Any, tokens: Any) -> Any:
        h = rms_norm(p["table"][tokens])
        return jax.lax.cond(
            tokens[0, 0] > VOCAB, lambda x: jnp.exp(x) @ p["table"].T, lambda x: jnp.zeros((2, 5, VOCAB)), h
        )

    report = tiebeam.inspect(model, ids(), params=TREE)
    assert report.tables[0].readouts[0].hidden_rms is None
    assert any("not measured" in n for n in report.notes)


def test_a_loop_of_no_rounds_leaves_a_note_and_no_figure() -> None:
    def model(p: Any, tokens: Any) -> Any:
        h = rms_norm(p["table"][tokens])
        zeros = jnp.zeros((*tokens.shape, VOCAB))
        state = (tokens[0, 0] + VOCAB, zeros)
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, (h + 1e-9) @ p["table"].T), state)[1]

    report = tiebeam.inspect(model, ids(), params=TREE)
    assert report.tables[0].readouts[0].hidden_rms is None
    assert any("not measured" in n for n in report.notes)


def test_logits_in_a_loop_are_measured_when_a_table_is_drawn() -> None:
    case = CASES["generation_in_a_while_loop"]()
    _, report = tiebeam.initialize_params(case.model, case.inputs, case.params)
    assert report.init[0].measured_logit_std == pytest.approx(1.0, abs=0.15)


def test_two_samples_pool_to_the_moments_of_both() -> None:
    a, b = normal(1, 7), normal(2, 5) + 3.0
    both = jnp.concatenate([a, b])
    [weight, mean, variance] = pooled(*(jnp.stack([jnp.float32(x.size), x.mean(), x.var()]) for x in (a, b)))
    assert (float(weight), float(mean), float(variance)) == pytest.approx(
        (12.0, float(both.mean()), float(both.var())), rel=1e-5
    )


def test_parts_on_devices_and_shardings_in_types_are_measured() -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    script = str(Path(__file__).with_name("sharded_measures.py"))
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "lookup", "readout"),
    [
        ("linen_attend", "embed", "embed"),
        ("linen_untied", "embed", None),
        ("linen_module_passed_down", "embed", "head.embed"),
        ("linen_scan_over_positions", "s.e", "s.e"),
        ("nnx_attend", "embed", "embed"),
        ("nnx_shared_param", "embed", "head"),
        ("nnx_bare_param", "embed", ""),
        ("nnx_methods_transformed", "e", "e"),
        ("nnx_split_and_merge_inside", "e", "e"),
        ("nnx_vmap_of_all", "e", "e"),
        ("eqx_scaled", "embed", ""),
        ("eqx_filter_jit", "embed", ""),
        ("eqx_shared", "both.pytree.0", ""),
        ("eqx_same_array_at_two_leaves", "embed", None),
        ("einsum", "", ""),
    ],
)
def test_a_role_is_said_to_be_in_the_module_that_reads(name: str, lookup: str, readout: str | None) -> None:
    case = CASES[name]()
    report = tiebeam.inspect(case.model, case.inputs, params=case.params)
    [table] = [t for t in report.tables if t.lookups]
    assert table.lookups[0].where == lookup
    assert [r.where for r in table.readouts] == ([] if readout is None else [readout])


def test_classes_are_as_before_and_marks_leave_a_program_as_it_was() -> None:
    case = CASES["nnx_attend"]()
    before = {cls: dict(vars(cls)) for cls in type(case.model).__mro__}
    expected = case.model(*case.inputs)
    tiebeam.inspect(case.model, case.inputs)
    assert all(dict(vars(cls)) == held for cls, held in before.items())
    assert jnp.array_equal(case.model(*case.inputs), expected)


def test_names_that_are_no_marks_are_operations_like_others() -> None:
    def model(p: Any, tokens: Any) -> Any:
        x = checkpoint_name(p["table"][tokens], "tiebeam is not asked") * 2.0
        return rms_norm(x) @ p["table"].T

    assert looked(model).lookup_factor == 2.0


def test_scopes_of_transformed_code_are_those_of_the_code() -> None:
    assert scopes("A/transpose(jvp(vmap(b.c)))/vmap()/td,vd->tv/d") == ["A", "b.c", "d"]


def test_versions_name_what_the_model_is_made_of() -> None:
    for name, package in (("linen_attend", "flax"), ("nnx_attend", "flax"), ("eqx_by_hand", "equinox")):
        case = CASES[name]()
        versions = tiebeam.inspect(case.model, case.inputs, params=case.params).versions
        assert {"jax", "jaxlib", package} <= versions.keys()
        assert ("equinox" in versions) == (package == "equinox")


def test_what_is_closed_over_is_named() -> None:
    table = TREE["table"]
    report = tiebeam.inspect(lambda p, t: rms_norm(p["table"][t]) @ table.T, ids(), params=TREE)
    assert report.tables[0].state == "untied"
    assert any("closed over" in n and "(37, 8)" in n for n in report.notes)

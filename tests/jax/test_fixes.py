"""Printed fixes run, and mend what they were printed for."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from tests.jax.models.kit import CASES, VOCAB, WIDTH, ids, load, normal, rms_norm

import tiebeam

load()


def mended(scope: dict[str, Any], code: str, look: Any) -> None:
    finding = next(f for f in look(scope).findings if f.code == code)
    assert finding.fix
    scope |= {"tiebeam": tiebeam, "inputs": ids()}
    exec(compile(finding.fix, code, "exec"), scope)
    assert code not in {f.code for f in look(scope).findings}


def test_two_equal_variables_become_one() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
            self.head = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
            self.head.embedding[...] = self.embed.embedding[...]

        def __call__(self, tokens: Any) -> Any:
            return self.head.attend(jnp.tanh(self.embed(tokens)))

    scope = {"model": Model(nnx.Rngs(0))}
    mended(scope, "copy-not-tie", lambda s: tiebeam.inspect(s["model"], ids()))
    assert scope["model"].head.embedding is scope["model"].embed.embedding


def test_a_table_of_unit_std_is_drawn_anew() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(300, 48, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            return self.embed.attend(rms_norm(self.embed(tokens)))

    mended({"model": Model(nnx.Rngs(0))}, "init-scale", lambda s: tiebeam.inspect(s["model"], ids()))

    def apply(params: Any, tokens: Any) -> Any:
        return rms_norm(params["table"][tokens]) @ params["table"].T

    scope = {"model": apply, "params": {"table": normal(0, 300, 48, std=1.0)}}
    mended(scope, "init-scale", lambda s: tiebeam.inspect(s["model"], ids(), params=s["params"]))


def test_a_kernel_of_another_layout_has_no_line_that_ties_it() -> None:
    case = CASES["nnx_equal_values"]()
    finding = next(f for f in tiebeam.inspect(case.model, case.inputs).findings if f.code == "copy-not-tie")
    assert not finding.fix
    assert finding.hint

"""The rows of the cases that are JAX programs: run as they stand, judged as their diagnosis says."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import tiebeam

FRAMEWORKS = ("flax.linen", "flax.nnx", "jax", "equinox")
IDS = jnp.array([[1, 2, 3]])


def linen(names: dict[str, Any]) -> tiebeam.Report:
    return tiebeam.inspect(names["model"], names["ids"], params=names["params"])


def untied_function(names: dict[str, Any]) -> tiebeam.Report:
    """The row holds a tree alone: the plainest model that reads both of its leaves."""
    return tiebeam.inspect(lambda p, ids: p["embed"][ids] @ p["head"].T, IDS, params=names["params"])


#: row -> (state of the table that is looked up, codes that must appear, how to look)
EXPECTED: dict[str, tuple[str, set[str], Any]] = {
    "fx-copied-kernel": ("copy", {"copy-not-tie"}, linen),
    "fx-attend-bf16-logits": ("tied", set(), linen),
    "fx-normal1-init-loss": ("tied", {"init-scale"}, linen),
    # The tie is made as Flax makes it; what froze it is the transformation's rule: see tests/optim/test_optax.py.
    "fx-optax-label-misses-head": ("tied", set(), linen),
    "fx-torch-ckpt-no-head": ("untied", {"untied"}, linen),
    "nnx-healthy-attend": ("tied", set(), lambda n: tiebeam.inspect(n["model"], IDS)),
    "eqx-tree-at-copy": ("copy", {"copy-not-tie"}, lambda n: tiebeam.inspect(n["model"], IDS[0])),
    "eqx-healthy-shared": ("tied", set(), lambda n: tiebeam.inspect(n["model"], IDS[0])),
    "jax-opt-state-double": ("copy", {"copy-not-tie"}, untied_function),
}


def rows(shared: Path) -> dict[str, Any]:
    lines = (shared / "cases" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {r["id"]: r for r in map(json.loads, lines) if r["framework"] in FRAMEWORKS}


def test_every_row_has_a_verdict(shared: Path) -> None:
    assert rows(shared).keys() == EXPECTED.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict(name: str, shared: Path) -> None:
    row = rows(shared)[name]
    names: dict[str, Any] = {"__name__": name}
    exec(compile(row["input"], name, "exec"), names)
    state, codes, look = EXPECTED[name]
    report = look(names)
    found = {f.code for f in report.findings}
    table = next(t for t in report.tables if t.lookups)
    assert table.state == state, (row["diagnosis"], table.notes)
    assert codes <= found, (row["diagnosis"], found)
    if row["healthy"]:
        report.assert_healthy()
    for finding in report.findings:
        assert finding.fix or finding.hint or finding.severity == "info", finding


class Attends(nn.Module):
    """Flax's own way to tie, or a product in the model's own call."""

    attend: bool

    def setup(self) -> None:
        self.embed = nn.Embed(300, 64)
        self.norm = nn.LayerNorm()

    def __call__(self, ids: jax.Array) -> jax.Array:
        h = self.norm(self.embed(ids))
        return self.embed.attend(h) if self.attend else h @ self.embed.embedding.T


@pytest.mark.parametrize("attend", [True, False], ids=["attend", "a product"])
def test_a_table_is_read_out_by_its_own_module_whichever_tree_was_passed(attend: bool) -> None:
    model, ids = Attends(attend), jnp.arange(8)[None]
    variables = model.init(jax.random.key(0), ids)
    for params in (variables, variables["params"]):
        codes = {f.code for f in tiebeam.inspect(model, ids, params=params).findings}
        assert ("functional-tie" in codes) is not attend

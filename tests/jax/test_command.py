"""The command line on JAX targets: what a callable may return, and what `init` writes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors import safe_open
from safetensors.numpy import load_file

import tiebeam
from tiebeam.cli import main
from tiebeam.cli.save_jax import write

MODULE = """
import equinox as eqx, flax.linen as nn, jax, jax.numpy as jnp
from flax import nnx
from tiebeam.zoo.jax.functional import FunctionalGpt

IDS = jnp.arange(8)[None]

def function():
    model = FunctionalGpt.of("C", vocab=300, width=16)
    return model, IDS, model.init(jax.random.key(0))

class Linen(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(300, 16, name="embed")
        return embed.attend(nn.RMSNorm()(embed(tokens) * 4.0))

def linen():
    return Linen(), IDS, Linen().init(jax.random.key(0), IDS)

def shapes():
    return Linen(), IDS, jax.eval_shape(Linen().init, jax.random.key(0), IDS)

def without_params():
    return Linen(), IDS

class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(300, 16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.norm = nnx.RMSNorm(16, rngs=rngs)
        self.head = nnx.Embed(300, 16, rngs=rngs)
        self.head.embedding = self.embed.embedding

    def __call__(self, tokens):
        return self.head.attend(self.norm(self.drop(self.embed(tokens) * 4.0)))

def of_nnx():
    return Nnx(nnx.Rngs(0))

class Eqx(eqx.Module):
    embed: eqx.nn.Embedding
    norm: eqx.nn.RMSNorm
    name: str = "tied"

    def __call__(self, tokens):
        return jax.vmap(self.norm)(jax.vmap(self.embed)(tokens) * 4.0) @ self.embed.weight.T

def of_equinox():
    return Eqx(eqx.nn.Embedding(300, 16, key=jax.random.key(0)), eqx.nn.RMSNorm(16)), (IDS[0],)

def half():
    model, ids, params = linen()
    return model, ids, jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
"""

TARGETS = ("function", "linen", "shapes", "of_nnx", "of_equinox", "half")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of models in it."""
    (tmp_path / "jax_models.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax_models", raising=False)
    return tmp_path


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_kind_of_model_a_callable_returns_is_looked_at(
    target: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", f"jax_models:{target}", "--format", "json", "--fail-on", "never") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["framework"] == "jax"
    assert [(t["state"], t["lookup_factor"]) for t in report["tables"]] == [("tied", 4.0)]


def run_apart(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_a_target_in_a_process_of_its_own_loads_no_other_framework(models: Path) -> None:
    code = (
        "import sys; from tiebeam.cli import main\n"
        "try: main(['inspect', 'jax_models:function'])\n"
        "except SystemExit as e: assert e.code in (0, 1), e.code\n"
        "assert not {'torch', 'tensorflow', 'keras', 'transformers'} & sys.modules.keys()"
    )
    done = run_apart(code)
    assert done.returncode == 0, done.stderr


def test_linen_without_params_says_how_to_give_them(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "jax_models:without_params") == 2
    assert "model.init" in capsys.readouterr().err


@pytest.mark.slow
def test_meta_without_shapes_is_remarked(models: Path) -> None:
    """In a process of its own: a callable may be PyTorch's, so `--meta` loads that too where it is installed."""
    for target, remarked in (("linen", True), ("shapes", False)):
        done = run_apart(f"from tiebeam.cli import main; main(['inspect', 'jax_models:{target}', '--meta'])")
        assert done.returncode in (0, 1), done.stderr
        assert ("jax.eval_shape" in done.stderr) == remarked


def init(target: str, out: Path, *more: str) -> dict[str, np.ndarray]:
    assert run("init", f"jax_models:{target}", "--out", out, *more) == 0
    assert json.loads((out / "report.json").read_text("utf-8"))["init"]
    assert sorted(p.name for p in out.iterdir()) == ["model.safetensors", "report.json"]
    return load_file(out / "model.safetensors")


def test_params_are_written_by_the_paths_of_their_leaves(models: Path) -> None:
    import jax_models

    arrays = init("linen", models / "out")
    assert sorted(arrays) == ["params.RMSNorm_0.scale", "params.embed.embedding"]
    again = traverse_util.unflatten_dict(arrays, sep=".")
    model, ids, params = jax_models.linen()
    assert jax.tree.structure(again) == jax.tree.structure(params)
    report = tiebeam.inspect(model, ids, params=again)
    assert report.tables[0].std == pytest.approx(0.25, rel=0.02)
    fresh, _ = tiebeam.initialize_params(model, ids, params)
    assert np.array_equal(fresh["params"]["embed"]["embedding"], arrays["params.embed.embedding"])


def test_a_variable_with_two_paths_is_written_once(models: Path) -> None:
    arrays = init("of_nnx", models / "out")
    assert "embed.embedding" in arrays
    assert "head.embedding" not in arrays
    with safe_open(models / "out" / "model.safetensors", "np") as held:
        assert held.metadata()["head.embedding"] == "embed.embedding"


def test_a_module_that_is_a_tree_is_written_leaf_by_leaf(models: Path) -> None:
    import jax_models

    arrays = init("of_equinox", models / "out")
    model, _ = jax_models.of_equinox()
    held = [leaf for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)]
    assert len(arrays) == len(held)
    assert arrays["embed.weight"].std() == pytest.approx(0.25, rel=0.02)


def test_a_narrow_dtype_stays(models: Path) -> None:
    arrays = init("half", models / "out")
    assert {str(a.dtype) for a in arrays.values()} == {"bfloat16"}


def test_one_seed_gives_one_file(models: Path) -> None:
    first, second = init("function", models / "a", "--seed", "3"), init("function", models / "b", "--seed", "3")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[n], second[n]) for n in first)


def test_shapes_alone_are_not_written(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "jax_models:shapes", "--out", models / "out") == 2
    assert "a shape alone" in capsys.readouterr().err
    assert not (models / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = models / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    assert run("init", "jax_models:linen", "--out", out) == 2
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    assert run("init", "jax_models:linen", "--out", out, "--force") == 0
    assert sorted(p.name for p in out.iterdir()) == ["mine.txt", "model.safetensors", "report.json"]


def test_keys_with_dots_keep_their_arrays_apart(tmp_path: Path) -> None:
    tree = {"a.b": jnp.ones((37, 8)), "a": {"b": jnp.zeros((8, 8))}}

    def apply(p: Any, ids: Any) -> Any:
        return jnp.tanh(p["a.b"][ids] @ p["a"]["b"]) @ p["a.b"].T

    report = tiebeam.inspect(apply, jnp.arange(5)[None], params=tree)
    assert [t.names for t in report.tables] == [("['a.b']",)]
    write(apply, tree, report, tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    assert {name: a.shape for name, a in arrays.items()} == {"['a.b']": (37, 8), "['a']['b']": (8, 8)}

"""The layers, read from the sources: who may import what, and which words the rules may not know."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tiebeam"
FRAMEWORKS = {
    "torch",
    "jax",
    "flax",
    "equinox",
    "optax",
    "keras",
    "tensorflow",
    "transformers",
    "accelerate",
    "peft",
}
FAMILY_WORDS = re.compile(
    "embedding_multiplier|logits_scaling|logit_scale|scale_emb|embed_scale|final_logit_softcapping|model_type"
    "|tie_word_embeddings"
)


def sources(*where: str) -> list[Path]:
    found = [path for w in where for path in ([PACKAGE / w] if w.endswith(".py") else (PACKAGE / w).rglob("*.py"))]
    assert found, f"nothing to check under {where}"
    return sorted(found)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.AST, *, inside_functions: bool = True) -> Iterator[str]:
    """Names of the modules that `tree` imports when run; type-checking blocks are left out."""
    for node in ast.iter_child_nodes(tree):
        yield from imported(node)
        nested = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if not is_type_checking(node) and (inside_functions or not nested):
            yield from imports(node, inside_functions=inside_functions)


def tops(text: str, *, inside_functions: bool = True) -> set[str]:
    return {name.partition(".")[0] for name in imports(ast.parse(text), inside_functions=inside_functions)}


def strangers(text: str, allowed: set[str]) -> set[str]:
    """Third-party packages that `text` imports and `allowed` does not hold."""
    return tops(text) - sys.stdlib_module_names - {"tiebeam"} - allowed


#: Below the backends, and none of them: what those have in common that read a graph.
SHARED = "graphs"


def backends() -> list[str]:
    folders = [p.name for p in (PACKAGE / "backends").iterdir() if (p / "__init__.py").is_file()]
    return sorted({*folders} - {SHARED})


@pytest.mark.parametrize(
    "path",
    sources("core", "ir.py", f"backends/{SHARED}", "backends/tables.py"),
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_the_rules_and_what_backends_share_import_numpy_alone(path: Path) -> None:
    assert not strangers(path.read_text(encoding="utf-8"), {"numpy"})


def test_errors_import_nothing_at_all() -> None:
    assert not tops((PACKAGE / "errors.py").read_text(encoding="utf-8"))


def test_a_function_level_import_is_noticed() -> None:
    assert strangers("def f():\n    import torch.nn\n", {"numpy"}) == {"torch"}
    assert strangers("from rich.table import Table", {"numpy"}) == {"rich"}


def test_only_backends_zoo_blocks_and_experiments_import_a_framework_at_module_level() -> None:
    for path in sources("."):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "experiments" or (parts[0] in ("backends", "zoo") and len(parts) > 2):
            continue
        if parts[0] == "blocks" and parts[-1] not in ("__init__.py", "settings.py"):
            continue
        loaded = tops(path.read_text(encoding="utf-8"), inside_functions=False) & FRAMEWORKS
        assert not loaded, f"{path.relative_to(PACKAGE)} imports {loaded} at module level"


def test_a_module_level_import_is_told_from_one_inside_a_function_or_for_types() -> None:
    assert tops("try:\n    import torch\nexcept ImportError:\n    raise", inside_functions=False) == {"torch"}
    assert not tops("def f():\n    import torch", inside_functions=False)
    assert not tops("if TYPE_CHECKING:\n    import torch", inside_functions=False)


#: file or folder below a backend -> the one other backend that it stands on
STANDS_ON = {"keras/on_jax.py": "jax", "keras/on_torch.py": "torch"}


def foreign(path: Path, text: str) -> set[str]:
    """Modules of other backends that a backend's file imports and does not stand on."""
    inside = path.relative_to(PACKAGE / "backends")
    allowed = {inside.parts[0], STANDS_ON.get(inside.as_posix(), inside.parts[0])}
    others = [f"tiebeam.backends.{name}" for name in backends() if name not in allowed]
    found = imports(ast.parse(text))
    return {name for name in found if any(name == o or name.startswith(o + ".") for o in others)}


@pytest.mark.parametrize("own", [*backends(), SHARED])
def test_a_backend_imports_none_but_the_one_that_it_stands_on(own: str) -> None:
    for path in sources(f"backends/{own}"):
        assert not foreign(path, path.read_text(encoding="utf-8")), path.name


def test_an_import_of_a_strange_backend_is_noticed() -> None:
    line = "def f():\n    from tiebeam.backends.torch.model import TorchModel"
    assert foreign(PACKAGE / "backends" / "jax" / "model.py", line)
    assert foreign(PACKAGE / "backends" / "keras" / "on_jax.py", line)
    assert foreign(PACKAGE / "backends" / "keras" / "common.py", line)
    assert not foreign(PACKAGE / "backends" / "keras" / "on_torch.py", line)


def test_no_family_and_no_config_field_is_named_in_core_or_backends() -> None:
    said = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sources("core", "backends")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FAMILY_WORDS.search(line)
    ]
    assert not said, "\n".join(said)


def test_the_words_that_are_looked_for_are_found_where_they_stand() -> None:
    assert FAMILY_WORDS.search("x = config.embedding_multiplier")
    assert FAMILY_WORDS.search('getattr(config, "model_type", None)')
    assert not FAMILY_WORDS.search("table.lookup_factor * table.readout_factor")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the contracts of pyproject.toml on the package below `root`/src."""
    code = (
        "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(config_filename='pyproject.toml', no_cache=True))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_upwards_breaks_the_layers(tmp_path: Path) -> None:
    """A copy of the package in which core imports a backend inside a function must fail the contract."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "src" / "tiebeam", ignore=shutil.ignore_patterns("__pycache__"))
    victim = tmp_path / "src" / "tiebeam" / "core" / "facts.py"
    victim.write_text(
        victim.read_text(encoding="utf-8") + "\n\ndef up():\n    import tiebeam.backends\n", encoding="utf-8"
    )
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert "tiebeam.core is not allowed to import tiebeam.backends" in done.stdout

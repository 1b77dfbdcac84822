"""Which tests share a process: the tables, and the questions asked of them.

TensorFlow beside PyTorch can crash, and Keras fixes its backend when it is imported: so one process for each
framework, one after another. What needs no framework runs with whichever comes first.
"""

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEUTRAL = "neutral"


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        needs: Modules that must be installed.
        strangers: Modules that must not be loaded in it.
        environment: What is set before anything is imported.
        folders: Names of variables that are set to an empty folder of this process alone.
    """

    name: str
    needs: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def intruders(self, loaded: Iterable[str]) -> list[str]:
        """Strangers among the loaded modules."""
        present = set(loaded)
        return [s for s in self.strangers if s in present]


def _version(module: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in re.findall(r"\d+", importlib.metadata.version(module))[:2])
    except importlib.metadata.PackageNotFoundError:
        return ()


# XLA would take longer to compile a small model well than the model ever runs, and again wherever a test builds it.
# Its fusion emitters and the splitting of what is generated cost half of that; a flag that XLA does not know ends
# it, and TensorFlow has an XLA of its own: so from the versions on that were seen to take them.
PLAINLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
COMPILING = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    **({"XLA_FLAGS": PLAINLY} if _version("jaxlib") >= (0, 10) and _version("tensorflow") >= (2, 21) else {}),
}
COMPILED = ("JAX_COMPILATION_CACHE_DIR",)


def _keras(on: str, *strangers: str) -> Process:
    # Where they are installed, keras imports jax on every backend; its `set_random_seed`, and keras_hub, tensorflow.
    return Process(f"keras-{on}", ("keras", on), strangers, {"KERAS_BACKEND": on, **COMPILING}, COMPILED)


PROCESSES = {
    process.name: process
    for process in (
        Process("torch", ("torch",), ("jax", "keras", "tensorflow")),
        Process("jax", ("jax", "flax", "equinox"), ("torch", "keras", "tensorflow"), COMPILING, COMPILED),
        _keras("tensorflow", "torch"),
        _keras("jax", "torch"),
        _keras("torch"),
    )
}
BARE = Process(NEUTRAL, strangers=("torch", "jax", "keras", "tensorflow"))  # where no framework is installed

KERAS = tuple(name for name in PROCESSES if name.startswith("keras-"))
TORCH, JAX = ("torch",), ("jax",)

HOMES: dict[str, tuple[str, ...]] = {
    "tests/torch": TORCH,
    "tests/quantisation": TORCH,
    "tests/quantisation/test_rules.py": (NEUTRAL,),
    "tests/quantisation/test_jax.py": JAX,
    "tests/advice": TORCH,
    "tests/advice/test_rules.py": (NEUTRAL,),
    "tests/cases": TORCH,
    "tests/checkpoints": TORCH,
    "tests/checkpoints/test_keras_files.py": ("keras-jax",),
    "tests/cli": TORCH,
    "tests/docs": TORCH,
    "tests/experiments": TORCH,
    "tests/zoo/minigpt_torch.py": TORCH,
    "tests/zoo/test_minigpt.py": TORCH,
    "tests/zoo/test_minigpt_generation.py": TORCH,
    "tests/zoo/test_factorised.py": TORCH,
    "tests/zoo/test_minigpt_linen.py": JAX,
    "tests/zoo/test_plain_linen.py": JAX,
    "tests/zoo/test_minigpt_keras.py": KERAS,
    "tests/zoo_hf": TORCH,
    "tests/blocks/test_torch.py": TORCH,
    "tests/blocks/torch_kit.py": TORCH,
    "tests/blocks/torch_parallel.py": TORCH,
    "tests/testing": TORCH,
    "tests/contract/test_torch.py": TORCH,
    "tests/measure": TORCH,
    "tests/measure/contract.py": (NEUTRAL,),
    "tests/measure/test_core.py": (NEUTRAL,),
    "tests/measure/test_contract_jax.py": JAX,
    "tests/measure/jax_models.py": JAX,
    "tests/measure/test_jax.py": JAX,
    "tests/measure/test_contract_keras.py": KERAS,
    "tests/measure/test_keras.py": KERAS,
    "tests/optim": TORCH,
    "tests/readout_loss": TORCH,
    "tests/readout_loss/test_jax.py": JAX,
    "tests/readout_loss/sharded_jax.py": JAX,
    "tests/optim/test_rules.py": (NEUTRAL,),
    "tests/optim/optax_kit.py": JAX,
    "tests/optim/test_optax.py": JAX,
    "tests/optim/test_optax_models.py": JAX,
    "tests/optim/test_inspect_optax.py": JAX,
    "tests/optim/keras_pair.py": KERAS,
    "tests/optim/test_keras.py": KERAS,
    "tests/optim/test_inspect_keras.py": KERAS,
    "tests/contract/test_broken.py": TORCH,
    "src/tiebeam/backends/torch": TORCH,
    "src/tiebeam/blocks/readout_loss/torch": TORCH,
    "src/tiebeam/blocks/torch.py": TORCH,
    "src/tiebeam/cli/building.py": TORCH,
    "src/tiebeam/checkpoints/meta.py": TORCH,
    "src/tiebeam/experiments": TORCH,
    "src/tiebeam/testing/contract/__init__.py": TORCH,
    "src/tiebeam/testing/ties.py": TORCH,
    "src/tiebeam/torch": TORCH,
    "src/tiebeam/zoo/torch": TORCH,
    "tests/jax": JAX,
    "tests/blocks/jax_kit.py": JAX,
    "tests/blocks/test_linen.py": JAX,
    "tests/blocks/test_nnx.py": JAX,
    "tests/blocks/test_equinox.py": JAX,
    "tests/contract/test_equinox.py": JAX,
    "tests/contract/test_jax.py": JAX,
    "tests/contract/test_linen.py": JAX,
    "tests/contract/test_nnx.py": JAX,
    "src/tiebeam/backends/jax": JAX,
    "src/tiebeam/blocks/readout_loss/jax.py": JAX,
    "src/tiebeam/blocks/readout_loss/jax_mesh.py": JAX,
    "src/tiebeam/blocks/linen.py": JAX,
    "src/tiebeam/blocks/nnx.py": JAX,
    "src/tiebeam/blocks/equinox.py": JAX,
    "src/tiebeam/blocks/jax.py": JAX,
    "src/tiebeam/equinox": JAX,
    "src/tiebeam/jax": JAX,
    "src/tiebeam/linen": JAX,
    "src/tiebeam/nnx": JAX,
    "src/tiebeam/zoo/jax": JAX,
    "tests/keras": KERAS,
    "tests/keras/tensorflow": ("keras-tensorflow",),
    "tests/keras/test_sensitivity.py": ("keras-torch", "keras-jax"),
    "tests/keras/test_command.py": ("keras-jax",),  # each command has a process of its own, on JAX
    "tests/blocks/test_keras.py": KERAS,
    "tests/readout_loss/test_keras.py": KERAS,
    "tests/contract/test_keras.py": KERAS,
    "src/tiebeam/backends/keras": KERAS,
    "src/tiebeam/backends/keras/on_jax.py": ("keras-jax",),
    "src/tiebeam/backends/keras/on_torch.py": ("keras-torch",),
    "src/tiebeam/backends/keras/tensorflow": ("keras-tensorflow",),
    "src/tiebeam/blocks/keras.py": KERAS,
    "src/tiebeam/blocks/readout_loss/keras.py": KERAS,
    "src/tiebeam/blocks/readout_loss/tensorflow.py": ("keras-tensorflow",),
    "src/tiebeam/keras": KERAS,
    "src/tiebeam/zoo/keras": KERAS,
}
"""Folder or file -> the processes that it runs in. What no row speaks of needs no framework; a module below `src`
that no row speaks of is imported without one, and goes where its examples want to be."""

EXAMPLES = {
    "torch": TORCH,
    "transformers": TORCH,
    "jax": JAX,
    "flax": JAX,
    "equinox": JAX,
    "optax": JAX,
    "keras": KERAS,
}
"""Module that an example imports -> where it runs. Of several rows the first counts."""

_IMPORT = re.compile(r"^\s*(?:>>>|\.\.\.)?\s*(?:import|from)\s+(\w+)(?:[\w.]*)((?:\s*,\s*\w[\w.]*)*)", re.MULTILINE)


def of_examples(source: str) -> tuple[str, ...]:
    """Where examples run, by what they import."""
    named = {name.strip().partition(".")[0] for m in _IMPORT.finditer(source) for name in (m[1], *m[2].split(","))}
    return next((where for module, where in EXAMPLES.items() if module in named), (NEUTRAL,))


def row(file: Path) -> tuple[str, ...] | None:
    """What the table says of a file: its longest row."""
    for part in (file, *file.parents):
        if part.is_relative_to(ROOT) and (found := HOMES.get(part.relative_to(ROOT).as_posix())) is not None:
            return found
    return None


def homes(file: Path) -> tuple[str, ...]:
    """Every process in which something of a file runs."""
    said = row(file)
    if said is not None:
        return said
    if not file.is_relative_to(ROOT / "src"):
        return (NEUTRAL,)
    blocks = _examples_in(file.read_text(encoding="utf-8"))
    return tuple(dict.fromkeys(name for block in blocks for name in of_examples(block))) or (NEUTRAL,)


def _examples_in(text: str) -> Iterator[str]:
    """The examples of each docstring."""
    for docstring in text.split('"""'):
        lines = [line for line in docstring.splitlines() if line.lstrip().startswith((">>>", "..."))]
        if lines:
            yield "\n".join(lines)


def files_below(path: Path) -> list[Path]:
    """What pytest collects below a path: every module may hold examples."""
    if not path.is_dir():
        return [path] if path.suffix == ".py" else []
    return [p for p in path.rglob("*.py") if p.name != "conftest.py"]


@dataclass(frozen=True)
class Part:
    """What one process does: `labels` are its name and, for one of them all, `NEUTRAL`."""

    process: Process
    labels: tuple[str, ...]


class UnknownError(ValueError):
    """`--backends` named what there is not."""


def installed(module: str) -> bool:
    """Whether a module could be imported; it is not, so that a run without it stays fast."""
    return importlib.util.find_spec(module) is not None


def chosen(asked: str, there: Callable[[str], bool] = installed) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """The processes to run, and those left out because a framework is missing.

    Args:
        asked: Comma-separated names of processes, `keras` for all of its three; empty: whatever is installed.

    Raises:
        UnknownError: There is no such process, or it was asked for and cannot run.
    """
    names: dict[str, None] = {}
    for name in filter(None, map(str.strip, asked.split(","))):
        names |= dict.fromkeys(KERAS if name == "keras" else [name])
    if unknown := [name for name in names if name not in PROCESSES]:
        raise UnknownError(f"--backends: no backend {unknown}, expected some of {[*PROCESSES, 'keras']}")
    missing = {name: [m for m in p.needs if not there(m)] for name, p in PROCESSES.items()}
    if absent := {name: missing[name] for name in names if missing[name]}:
        raise UnknownError(f"--backends: {list(absent)} asked for, but {absent} not installed")
    wanted = names or PROCESSES
    run = tuple(PROCESSES[name] for name in wanted if not missing[name])
    return run, tuple(p for name, p in PROCESSES.items() if not names and missing[name])


def parts(files: Sequence[Path], run: Sequence[Process]) -> list[Part]:
    """Share files out among processes; those that have nothing to do are not started."""
    wanted = {name for file in files for name in homes(file)}
    busy = [p for p in run if p.name in wanted]
    if NEUTRAL in wanted and not busy:
        busy = [*run[:1]] or [BARE]
    return [
        Part(p, tuple(dict.fromkeys([p.name, *([NEUTRAL] if i == 0 and NEUTRAL in wanted else [])])))
        for i, p in enumerate(busy)
    ]

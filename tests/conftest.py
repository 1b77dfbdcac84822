"""What every test may ask for: backends to visit, data beside the checkout, one thread."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = pytest.StashKey[tuple[str, ...]]()

# Before any framework is imported, for subprocesses too: workers of xdist must not fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# TensorFlow and PyTorch do not get on in one process, and Keras would take TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "jax")

hypothesis.settings.register_profile("tiebeam", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tiebeam")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        default="",
        metavar="NAMES",
        help="comma-separated backends for tests that take `backend` (default: every installed one)",
    )
    parser.addoption(
        "--update-pages",
        action="store_true",
        help="write what examples print into the README and the documentation",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--backends"):
        backends(config)  # refuse now what cannot be tested


def backends(config: pytest.Config) -> tuple[str, ...]:
    """The backends of this run."""
    from tiebeam.backends import REGISTRY

    if CHOSEN not in config.stash:
        config.stash[CHOSEN] = chosen(config.getoption("--backends"), REGISTRY)
    return config.stash[CHOSEN]


def chosen(asked: str, registered: Iterable[str]) -> tuple[str, ...]:
    """Return the backends to test: those asked for, else every registered one whose framework is installed.

    Raises:
        pytest.UsageError: One that was asked for is not registered, or its framework is not installed.
    """
    known = tuple(registered)
    names = tuple(dict.fromkeys(filter(None, map(str.strip, asked.split(",")))))
    if not names:
        return tuple(name for name in known if installed(name))
    if unknown := [name for name in names if name not in known]:
        raise pytest.UsageError(f"--backends: no backend {unknown}, expected some of {list(known)}")
    if missing := [name for name in names if not installed(name)]:
        raise pytest.UsageError(f"--backends: {missing} asked for, but not installed")
    return names


def installed(framework: str) -> bool:
    """Whether the framework could be imported; it is not, so that a run without it stays fast."""
    return framework in sys.modules or importlib.util.find_spec(framework) is not None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends(metafunc.config))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep PyTorch, where it is loaded, at one thread; a test that asks for more gives them back."""
    _one_thread()
    yield
    _one_thread()


def _one_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the checkout with cases, real checkpoints and the zoo's truth."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("../shared is not beside this checkout")
    return path

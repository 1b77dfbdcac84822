"""What every test may ask for: data beside the checkout, one thread."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# Before any framework is imported, for subprocesses too: workers of xdist must not fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

hypothesis.settings.register_profile("tiebeam", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tiebeam")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-pages",
        action="store_true",
        help="write what examples print into the README and the documentation",
    )


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

"""Each framework has a file of its own, which runs in a process of its own too; those not installed are left out."""

import importlib.util

import pytest

pytest.register_assert_rewrite("tests.blocks.contract")

NEEDED = {
    "test_torch.py": "torch",
    "test_linen.py": "flax",
    "test_nnx.py": "flax",
    "test_equinox.py": "equinox",
    "test_keras.py": "keras",
}
collect_ignore = [file for file, framework in NEEDED.items() if importlib.util.find_spec(framework) is None]

"""Each file needs one framework at most; those whose framework is not installed are left out."""

import importlib.util
import os

NEEDED = {
    "test_torch.py": ("torch", "transformers"),
    "test_training.py": ("torch", "transformers", "peft"),
    "test_inspect_optimizer.py": ("torch",),
    "test_real_architectures.py": ("torch", "transformers"),
    "test_cases.py": ("torch",),
    "test_optax.py": ("jax", "flax", "equinox", "optax"),
    "test_keras.py": ("keras",),
    "test_inspect_keras.py": ("keras",),
}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
collect_ignore = [file for file, names in NEEDED.items() if not all(importlib.util.find_spec(name) for name in names)]

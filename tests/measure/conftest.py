"""Each file needs one framework at most; those whose framework is not installed are left out."""

import importlib.util
import os

NEEDED = {
    "test_untouched.py": ("torch",),
    "test_gradient_check.py": ("torch",),
    "test_mixing.py": ("torch",),
    "test_over_time.py": ("torch",),
    "test_check_architectures.py": ("torch", "transformers"),
    "parallel.py": ("torch",),
    "test_parallel.py": ("torch",),
    "test_training.py": ("torch",),
    "test_watch.py": ("torch", "transformers"),
    "test_split.py": ("torch", "transformers"),
    "test_bad_input.py": ("torch",),
    "test_contract_torch.py": ("torch",),
    "test_contract_keras.py": ("keras",),
    "test_keras.py": ("keras",),
    "test_contract_jax.py": ("jax", "flax", "equinox"),
    "test_jax.py": ("jax", "flax", "equinox"),
    "test_real_architectures.py": ("torch", "transformers"),
}
collect_ignore = [file for file, names in NEEDED.items() if not all(importlib.util.find_spec(name) for name in names)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

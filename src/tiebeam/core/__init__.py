"""Rules: pure functions of facts, NumPy only."""

"""What may have been meant by a name that nothing has."""

import difflib


def near(name: str, known: list[str]) -> str:
    """A hint that names what may have been meant, or "" where nothing is close.

    Example:
        >>> near("gtp2", ["gpt2", "llama"])
        "did you mean 'gpt2'?"
    """
    lowered = {k.lower(): k for k in known}
    close = [lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""

"""Which findings need mending, where some codes are let pass; both kinds of report ask it."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from tiebeam.core.finding import Finding
from tiebeam.core.findings.catalog import CODES
from tiebeam.errors import RangeError, UnhealthyTie


def assert_healthy(what: str, whole: str, findings: Iterable[Finding], ignore: str | Collection[str] = ()) -> None:
    """Raise where findings need mending.

    Args:
        what: They are of, as a sentence starts with it.
        whole: The place of a finding that names none.
        findings, ignore: See `need_mending`.

    Raises:
        UnhealthyTie: With every such finding, its place and its fix.
        RangeError: `ignore` names a code that no finding has.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    bad = need_mending(findings, ignore)
    if bad:
        raise UnhealthyTie(
            f"{what} has {len(bad)} finding(s) that need mending",
            got="\n       ".join(f"[{f.severity}] {f.code} at {f.where or whole}: {f.message}" for f in bad),
            expected="no error and no warning",
            hint="\n      ".join(f.fix or f.hint for f in bad if f.fix or f.hint),
        )


def need_mending(findings: Iterable[Finding], ignore: str | Collection[str] = ()) -> list[Finding]:
    """Errors and warnings whose code is not let pass.

    Args:
        findings: Of a report.
        ignore: Codes, or one code as a string. A code that a finding at hand has is known too.

    Raises:
        RangeError: There is no such code: a check that a slip of the pen switches off would be none.

    Example:
        >>> bad = Finding("init-scale", "error", "embed.weight", "too large")
        >>> need_mending([bad], "init-scale")
        []
    """
    passed = {ignore} if isinstance(ignore, str) else set(ignore)
    findings = tuple(findings)
    known = CODES | {f.code for f in findings}
    unknown = sorted(passed - known)
    if unknown:
        close = [m for code in unknown for m in get_close_matches(code.replace("_", "-"), sorted(known), n=1)]
        raise RangeError(
            "ignore names what is no code of a finding",
            got=", ".join(map(repr, unknown)),
            expected="codes of docs/findings.md, such as 'init-scale'",
            hint=f"did you mean {' or '.join(map(repr, close))}?" if close else "report.findings have a .code each",
        )
    return [f for f in findings if f.severity != "info" and f.code not in passed]

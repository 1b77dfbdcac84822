"""What every report says of its findings: the verdict, its colour, and each finding in words."""

from tiebeam.core.finding import Finding
from tiebeam.reports.numbers import count
from tiebeam.reports.pieces import FindingPart, Tone
from tiebeam.reports.strings import name, program, spans, visible

SEVERITIES = ("error", "warning", "info")


def health(findings: tuple[Finding, ...], well: str = "healthy") -> str:
    """How many findings there are, or that all is well: as far as it was judged, which `well` says."""
    numbers = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    listed = ", ".join(plural(n, s) for s, n in numbers.items() if n)
    if numbers["error"] or numbers["warning"]:
        return f"{plural(len(findings), 'finding')} ({listed})"
    return well + (f" ({listed})" if listed else "")


def tone(findings: tuple[Finding, ...], well: Tone = "good") -> Tone:
    """The colour of the verdict; `well` where nothing needs mending."""
    severities = {f.severity for f in findings}
    if "error" in severities:
        return "error"
    return "warning" if "warning" in severities else well


def plural(amount: int, noun: str) -> str:
    """Write an amount with its noun.

    Example:
        >>> plural(2, "finding")
        '2 findings'
    """
    return f"{count(amount)} {noun}{'' if amount == 1 or noun == 'info' else 's'}"


def finding_parts(findings: tuple[Finding, ...]) -> tuple[FindingPart, ...]:
    """All findings in words, the most severe first."""
    return tuple(_finding(f) for f in sorted(findings, key=_rank))


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def _finding(finding: Finding) -> FindingPart:
    return FindingPart(
        severity=finding.severity,
        code=visible(finding.code),
        where=name(finding.where) if finding.where else None,
        message=spans(finding.message),
        fix=program(finding.fix),
        hint=spans(finding.hint),
    )

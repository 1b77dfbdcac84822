"""The command `tiebeam`: one thin layer over the public calls; loads a framework only when it must."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        argv: Arguments without the program's name; by default those of the process.

    Raises:
        SystemExit: Always. 0: healthy; 1: a finding at or above `--fail-on`; 2: could not look;
            130: interrupted.
    """
    try:
        from tiebeam.cli.app import app

        app(args=None if argv is None else list(argv), prog_name="tiebeam")
    except KeyboardInterrupt:
        raise SystemExit(130) from None

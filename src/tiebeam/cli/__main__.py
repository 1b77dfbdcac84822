"""`python -m tiebeam.cli` is `tiebeam`."""

from tiebeam.cli import main

main()

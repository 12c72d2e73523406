"""`python -m haltune`: the command line."""

from haltune.cli import main

main()

"""`python -m haltune.cli`."""

from . import main

main()

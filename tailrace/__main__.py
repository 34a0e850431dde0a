"""`python -m tailrace` is the `tailrace` command."""

from tailrace.cli.app import main

main()

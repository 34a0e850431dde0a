"""`python -m tailrace_cli` is the `tailrace` command."""

from tailrace_cli.app import main

main()

"""`python -m tailrace` is the `tailrace` command, which stands above this package: it is run, not imported."""

import runpy

runpy.run_module("tailrace_cli", run_name="__main__", alter_sys=True)

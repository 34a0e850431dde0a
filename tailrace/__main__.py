"""`python -m tailrace` is the `tailrace` command. This package must not import `tailrace_cli`, but runs it by name."""

import runpy

runpy.run_module("tailrace_cli", run_name="__main__", alter_sys=True)

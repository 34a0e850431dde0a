"""The `tailrace` command, also as `python -m tailrace_cli`."""

import signal


def main() -> None:
    """Run the command line and exit. Ctrl-C ends the process quietly even while it is still importing."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tailrace_cli import app

    signal.signal(signal.SIGINT, on_interrupt)
    app.main()


if __name__ == "__main__":
    main()

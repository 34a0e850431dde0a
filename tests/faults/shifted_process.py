"""A Tailrace process with a wrong wall clock. A file contains the shift, which may change at any time.

`python -m tests.faults.shifted_process FILE COMMAND...` runs `tailrace COMMAND...`; FILE holds the shift in
milliseconds as eight bytes. If it is written while the process runs, its clock jumps. The monotonic clock stays
correct, as on a real machine.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

from tailrace.clock import SystemClock

_SHIFT = struct.Struct("<q")


def write_shift(file: Path, milliseconds: int) -> None:
    """Shift the clock of the process that was started with `file`."""
    with open(file, "r+b" if file.exists() else "wb") as opened:
        opened.write(_SHIFT.pack(milliseconds))


def shift_clock(file: Path) -> None:
    """Shift this process's wall clock by the file's value from now on."""
    with open(file, "rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    true_wall_ms = SystemClock.wall_ms

    def wall_ms(self: SystemClock) -> int:
        return true_wall_ms(self) + int(_SHIFT.unpack_from(shared)[0])

    SystemClock.wall_ms = wall_ms  # type: ignore[method-assign]


if __name__ == "__main__":
    shift_clock(Path(sys.argv.pop(1)))
    from tailrace_cli.app import main

    main()

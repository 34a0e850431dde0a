"""Files with secrets: made for their owner, refused where others could read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tailrace.security.credentials import BadCredential, make_secret_file, read_secrets
from tests.support.clocks import SeededEntropy


def test_a_made_secret_is_its_owners_alone_and_is_never_made_twice(tmp_path: Path) -> None:
    file = tmp_path / "rpc.secret"
    make_secret_file(file, SeededEntropy(1))
    first = read_secrets(file)
    make_secret_file(file, SeededEntropy(2))

    assert read_secrets(file) == first
    assert len(first) == 1 and len(first[0]) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666])
def test_a_secret_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("x" * 32)
    file.chmod(mode)

    with pytest.raises(BadCredential, match=f"mode {mode:04o}.*run `chmod 600"):
        read_secrets(file)


def test_roots_secret_may_be_read_by_its_group(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x" * 32)
    file.chmod(0o640)

    if os.geteuid() == 0:
        assert read_secrets(file) == ("x" * 32,)
    else:
        with pytest.raises(BadCredential, match="0640"):
            read_secrets(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no secret in it"),
        (b" \n\n", "has no secret in it"),
        (b"\xff\xfe", "is not text"),
        (b"x" * 100_000, "has more than 65536 bytes"),
    ],
)
def test_a_file_without_a_secret_is_named_and_not_shown(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(content)

    with pytest.raises(BadCredential, match=said) as refused:
        read_secrets(file)
    assert "xx" not in str(refused.value).replace(str(file), "")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCredential, match="none' can't be read: No such file"):
        read_secrets(tmp_path / "none")
    with pytest.raises(BadCredential, match=r"directory|not a file"):
        read_secrets(tmp_path)


def test_a_file_may_hold_several_secrets_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("one\n\n  two \n")

    assert read_secrets(file) == ("one", "two")

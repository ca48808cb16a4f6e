"""Files that want to run something, or all of the memory, or for ever, are refused in one line."""

from __future__ import annotations

import datetime as dt
import gzip
import lzma
import os
import pickle
import struct
import sys
import tempfile
from typing import Any

import click
import pytest
import zstandard
from click.testing import CliRunner

from oomscope.cli.options import snapshot_limits_options
from oomscope.errors import OomscopeError, SnapshotError, UsageError
from oomscope.snapshot.read import load
from oomscope.snapshot.read.decode import _brief
from oomscope.snapshot.read.limits import Limits, half_of_the_machine
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Snapshot
from oomscope.units import GiB

PROTO = b"\x80\x04"
EVENT = {"action": "alloc", "addr": 1, "size": 1}
FRAME = {"filename": "a.py", "line": 1, "name": "f"}


class Calls:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def snapshot(**parts: object) -> bytes:
    return pickle.dumps({"segments": [], **parts}, protocol=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(pickle.dumps({"segments": [Calls()]}), r"asks for \w+\.system", id="a call"),
        pytest.param(b"cos\nsystem\n(S'true'\ntR.", r"asks for os\.system", id="a call of protocol 0"),
        pytest.param(pickle.dumps({"at": dt.date(2026, 1, 2)}), "holds datetime.date, and only plain", id="a date"),
        pytest.param(b"PK\x03\x04" + b"\0" * 40, "a zip archive, as torch.save writes", id="torch.save"),
        pytest.param(pickle.dumps(0x1950A86A20F9469CFC6C), "a torch.save file", id="torch.save of old"),
        pytest.param(PROTO + b"\x82\x01.", "unregistered extension", id="an extension"),
        pytest.param(PROTO + b"]]\x81.", "not a readable pickle", id="a new object"),
        pytest.param(PROTO + b"]\x8c\x01ab.", "not a readable pickle", id="a state"),
        pytest.param(PROTO + b"]r\xff\xff\xff\x7f.", "more memory than", id="nine bytes: LONG_BINPUT"),
        pytest.param(PROTO + b"j\xff\xff\xff\xff.", "not a readable pickle", id="LONG_BINGET"),
        pytest.param(PROTO + b"\x8e" + struct.pack("<Q", 2**40) + b".", "more memory than", id="BINBYTES8"),
        pytest.param(PROTO + b"\x8e" + b"\xff" * 8 + b".", "not a readable pickle", id="BINBYTES8 beyond the signed"),
        pytest.param(PROTO + b"\x8d" + struct.pack("<Q", 2**33) + b".", "more memory than", id="BINUNICODE8"),
        pytest.param(PROTO + b"\x95" + struct.pack("<Q", 2**60) + b".", "more memory than", id="FRAME"),
        pytest.param(b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b".", "more memory than", id="BYTEARRAY8"),
        pytest.param(PROTO + b"\x8b\xff\xff\xff\x7f.", "more memory than", id="LONG4"),
        pytest.param(b"L" + b"9" * 100_000 + b"L\n.", "neither a pickle nor JSON", id="a number of 100,000 digits"),
        pytest.param(b'{"segments": [], "x": ' + b"9" * 100_000 + b"}", "not a readable", id="the same in JSON"),
        pytest.param(PROTO + b"}" + b")" + b"\x85" * 1_000_000 + b"Ns.", "crashed the|Stack overflow", id="a deep key"),
        pytest.param(PROTO + b"]" * 300_000 + b"a" * 299_999 + b".", "is no mapping", id="a deep list"),
        pytest.param(PROTO + b")" + b"\x85" * 1_000_000 + b".", "has no segments", id="a deep tuple"),
        pytest.param(b"[" * 100_000, "recursion|Stack overflow", id="deep JSON"),
        pytest.param(PROTO + b"}q\x00\x8c\x08segmentsh\x00s.", "is no list", id="a cycle"),
        pytest.param(PROTO + b"]q\x00h\x00a.", "is no mapping", id="a list in itself"),
        pytest.param(PROTO + b"]" * 8_000_000 + b".", "more memory than", id="a list a byte"),
        pytest.param(gzip.compress(PROTO + b"]" * 50_000_000, 1), "more memory than", id="a gzip bomb"),
        pytest.param(zstandard.compress(PROTO + b"]" * 200_000_000), "more memory than", id="a zstd bomb"),
        pytest.param(gzip.compress(snapshot())[:-8] + bytes(8), "damaged gzip", id="a wrong checksum"),
        pytest.param(zstandard.compress(snapshot())[:-4], "not a readable pickle", id="half a zstd frame"),
        pytest.param(b"\x28\xb5\x2f\xfd" + b"\xff" * 20, "damaged gzip, zstd or xz", id="no zstd frame"),
        pytest.param(lzma.compress(PROTO + b"]" * 50_000_000, preset=1), "more memory than", id="an xz bomb"),
        pytest.param(lzma.compress(snapshot())[:-8] + bytes(8), "damaged gzip, zstd or xz", id="half an xz file"),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=message) as refusal:
        load_snapshot(path)
    assert str(refusal.value).startswith(str(path))
    assert str(refusal.value).isprintable()
    assert list(tmp_path.iterdir()) == [path]


def parse_snapshot(content: bytes, **given: Any) -> Snapshot:
    """Return the snapshot in a file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return load_snapshot(file.name, **given)


def test_one_event_referred_to_a_trillion_times_runs_out_of_memory_not_of_patience():
    many = [EVENT] * 100_000
    with pytest.raises(SnapshotError, match="more memory than the 32"):
        parse_snapshot(snapshot(device_traces=[many] * 100_000), limits=Limits(memory=32 << 20))


def test_processor_time_is_bounded():
    keys = b"".join(b"\x8a\x0d" + (n * (2**61 - 1)).to_bytes(13, "little") + b"N" for n in range(1, 100_000))
    with pytest.raises(SnapshotError, match="longer than allowed"):  # keys of one hash: quadratic
        parse_snapshot(PROTO + b"}(" + keys + b"u.", limits=Limits(seconds=1))


@pytest.mark.parametrize("depth", [3, 40])
def test_free_form_values_are_bounded_in_depth(depth):
    nested: object = {}
    for _ in range(depth):
        nested = {"a": nested}
    content = snapshot(allocator_settings=nested)
    if depth <= 32:
        assert parse_snapshot(content).allocator_settings == nested
    else:
        with pytest.raises(SnapshotError, match="32 levels"):
            parse_snapshot(content)


@pytest.mark.parametrize("value", [b"x", {1: 2}, 2**70, {"a": [b""]}])
def test_settings_that_json_cannot_say_are_refused(value):
    with pytest.raises(SnapshotError, match=r"allocator_settings.* is no plain value"):
        parse_snapshot(snapshot(allocator_settings={"a": value}))


def test_settings_shared_a_million_times_over_are_refused():
    nested: list[object] = []
    for _ in range(25):
        nested = [nested, nested]
    with pytest.raises(SnapshotError, match="more than 10000 values"):
        parse_snapshot(snapshot(allocator_settings={"a": nested}))


def test_nothing_but_files_is_read(tmp_path):
    with pytest.raises(SnapshotError, match="is not a file"):
        load_snapshot("/dev/zero")
    with pytest.raises(SnapshotError, match="is not a file"):
        load_snapshot(tmp_path)


def test_a_name_in_a_message_cannot_drive_the_terminal():
    content = b"c\x1b]0;pwned\x07\n" + b"x" * 500 + b"\n."
    with pytest.raises(SnapshotError, match=r"asks for \?\]0;pwned\?\.x{80}…") as refusal:
        parse_snapshot(content)
    assert "\x1b" not in str(refusal.value)
    assert _brief("a\nb") == "a?b"


def test_the_reader_imports_neither_numpy_nor_torch(monkeypatch):
    reader = "import oomscope.snapshot.read.child"
    program = f"import sys; sys.path += sys.argv[2:]; {reader}; sys.exit(str(sorted(sys.modules)))"
    monkeypatch.setattr(load, "_PROGRAM", program)
    with pytest.raises(OomscopeError, match=r"oomscope\.snapshot\.read\.child") as failure:
        parse_snapshot(snapshot())
    for heavy in ("'numpy'", "'torch'", "'pydantic'", "'click'"):
        assert heavy not in str(failure.value)
    assert "numpy" in sys.modules


def test_settings_change_the_defaults():
    assert Limits.of([]) == Limits()
    assert Limits().memory == half_of_the_machine()
    assert Limits.of(["memory=3GiB", "seconds=60"]) == Limits(memory=3 * GiB, seconds=60)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("memory", "memory: .*; write it as in memory=32GiB"),
        ("ram=3", "ram=3: no such limit; limits are file, unpacked, "),
        ("file=big", "file=big: "),
        ("seconds=0", "seconds: a limit is at least 1"),
    ],
)
def test_a_value_that_is_no_limit_is_refused(setting, message):
    with pytest.raises(UsageError, match=message):
        Limits.of([setting])


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, Limits()),
        (["--read-limit", "unpacked=3", "--read-limit", "file=1GiB"], {}, Limits(unpacked=3, file=GiB)),
        ([], {"OOMSCOPE_READ_LIMITS": "unpacked=3 file=1GiB"}, Limits(unpacked=3, file=GiB)),
        (["--read-limit", "unpacked=5"], {"OOMSCOPE_READ_LIMITS": "file=1GiB"}, Limits(unpacked=5)),
    ],
)
def test_commands_share_the_option(arguments, environment, expected):
    given = []

    @click.command()
    @snapshot_limits_options
    def command(limits):
        given.append(limits)

    result = CliRunner(env=environment).invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert given == [expected]

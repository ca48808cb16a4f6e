"""Limits are said as NAME=VALUE, on the command line or in the environment."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from oomscope.cli.options import snapshot_limits_options
from oomscope.errors import UsageError
from oomscope.snapshot.read.limits import Limits, half_of_the_machine
from oomscope.units import GiB


def test_settings_change_the_defaults():
    assert Limits.of([]) == Limits()
    assert Limits().memory == half_of_the_machine()
    assert Limits.of(["memory=3GiB", "seconds=60"]) == Limits(memory=3 * GiB, seconds=60)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("memory", "memory: .*; write it as in memory=32GiB"),
        ("ram=3", "ram=3: no such limit; there are file, unpacked, "),
        ("file=big", "file=big: "),
        ("seconds=0", "seconds: a limit is at least 1"),
    ],
)
def test_what_is_no_limit_is_said(setting, message):
    with pytest.raises(UsageError, match=message):
        Limits.of([setting])


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, Limits()),
        (["--read-limit", "depth=3", "--read-limit", "file=1GiB"], {}, Limits(depth=3, file=GiB)),
        ([], {"OOMSCOPE_READ_LIMITS": "depth=3 file=1GiB"}, Limits(depth=3, file=GiB)),
        (["--read-limit", "depth=5"], {"OOMSCOPE_READ_LIMITS": "file=1GiB"}, Limits(depth=5)),
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

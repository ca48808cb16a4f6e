"""One card and several processes: forks, shared budgets, and which devices a process sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.virtual.on_card import PREAMBLES, ROOT, on_card

MiB = 1 << 20


def test_a_process_chooses_its_card_at_its_first_call() -> None:
    said = on_card(
        """
        import os
        before = state().entered
        answers = []
        for total in (50, 70):
            readable, writable = os.pipe()
            if not os.fork():
                os.environ["OOMSCOPE_CARD"] = f"total={total * MiB};used={MiB}"
                os.write(writable, str(free_bytes()).encode())
                os.environ["OOMSCOPE_CARD"] = "total=12345"
                os.write(writable, f" {free_bytes()}".encode())
                os._exit(0)
            os.wait()
            answers.append(os.read(readable, 100).decode())
        say([before, answers, state().entered, free_bytes(), state().entered])
        """,
        total=10 * MiB,
    )
    assert said == [False, [f"{49 * MiB} {49 * MiB}", f"{69 * MiB} {69 * MiB}"], False, 10 * MiB, True]


def test_a_fork_of_a_process_that_used_the_card_can_only_give_back() -> None:
    said = on_card(
        """
        import os
        p, made, done = malloc(MiB), stream(), event()
        readable, writable = os.pipe()
        if not os.fork():
            answers = [
                status("cudaMalloc", byref(c_void_p()), c_size_t(512)),
                status("cudaGetDeviceCount", byref(c_int())),
                status("cudaMemset", c_void_p(p), c_int(0), c_size_t(8)),
                status("cudaEventQuery", done),
                status("cuCtxSynchronize"),
                status("cudaFree", c_void_p(p)),
                status("cudaEventDestroy", done),
                status("cudaStreamDestroy", made),
                status("cudaGetDevice", byref(c_int(5))),
            ]
            os.write(writable, json.dumps(answers).encode())
            os._exit(0)
        os.wait()
        say([json.loads(os.read(readable, 1000)), unknown(p, 8)])
        """
    )
    assert said == [[3, 3, 3, 3, 3, 0, 0, 0, 0], 8]


@pytest.mark.parametrize(
    "settings",
    ["total=12x", "colour=blue", "total", "values=twos", "addresses=first", "major=0", "devices=65", "total=-1"],
)
def test_settings_that_cannot_be_parsed_are_reported_and_fail_every_call(settings: str) -> None:
    script = PREAMBLES["calls"] + 'say([status("cudaFree", None), status("cuInit", c_uint(0)), state().entered])'
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"OOMSCOPE_CARD": settings},
    )
    assert json.loads(done.stdout) == [3, 3, False]
    assert done.stderr.startswith("oomscope: virtual card: OOMSCOPE_CARD: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("visible", "devices", "buses"),
    [(None, 3, [0x18, 0x19, 0x1A]), ("2,0", 2, [0x1A, 0x18]), ("1,-1,0", 1, [0x19]), ("", 0, []), ("0,0", 0, []),
     ("GPU-6f6f6d73-636f-7065-0000-000000000002", 1, [0x1A]), ("-1", 0, []), ("1,x", 1, [0x19]),
     ("1, 7,0, 3", 4, [0x19, 0x1F, 0x18, 0x1B]), ("5", 1, [0x1D]), ("64,0", 0, []), ("GPU-8f2b", 0, []),
     ("MIG-GPU-6f6f6d73/0/0", 0, []), ("GPU-6f6f6d73-636f-7065-0000-000000000005", 1, [0x1D])],
)  # fmt: skip
def test_which_devices_are_visible(visible: str | None, devices: int, buses: list[int]) -> None:
    said = on_card(
        f"""
        import os
        if {visible!r} is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = {visible!r}
        count, bus = c_int(9), c_int()
        answer = status("cudaGetDeviceCount", byref(count))
        buses = []
        for device in range(count.value):
            call("cudaDeviceGetAttribute", byref(bus), c_int(33), c_int(device))
            buses.append(bus.value)
        say([answer, count.value, buses])
        """,
        devices=3,
    )
    assert said == [0 if devices else 100, devices, buses]


def test_a_listed_device_is_installed_under_its_index() -> None:
    """NVML counts all that are installed, and torch cuts the list where NVML knows no more."""
    said = on_card(
        """
        import pynvml
        pynvml.nvmlInit()
        malloc(30 * MiB)
        used = [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).used // MiB
                for index in range(pynvml.nvmlDeviceGetCount())]
        call("cudaSetDevice", c_int(1))
        say([used, free_bytes() // MiB, status("cudaSetDevice", c_int(2))])
        """,
        environment={"CUDA_VISIBLE_DEVICES": "3,1"},
        total=100 * MiB,
    )
    assert said == [[0, 0, 0, 30], 100, 101]


def test_devices_have_a_budget_each() -> None:
    said = on_card(
        """
        malloc(30 * MiB)
        first = free_bytes()
        call("cudaSetDevice", c_int(1))
        second = free_bytes()
        p = malloc(8 * MiB)
        left = free_bytes()
        call("cudaSetDevice", c_int(0))
        free(p)
        call("cudaSetDevice", c_int(1))
        say([first, second, left, free_bytes(), status("cudaSetDevice", c_int(2))])
        """,
        total=40 * MiB,
        devices=2,
    )
    assert said == [10 * MiB, 40 * MiB, 32 * MiB, 40 * MiB, 101]


HOLDER = PREAMBLES["calls"] + "malloc(int(sys.argv[1]) * MiB); say(0); sys.stdin.read()"


def _holder(ledger: Path, mib: int, device: str = "0") -> subprocess.Popen[str]:
    """Start a process that holds so many MiB until its standard input ends."""
    settings = {"OOMSCOPE_CARD": f"total={100 * MiB};devices=2;ledger={ledger}", "CUDA_VISIBLE_DEVICES": device}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(mib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | settings,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    return process


def _free_mib(ledger: Path) -> int:
    return on_card("say(free_bytes())", total=100 * MiB, devices=2, ledger=ledger) // MiB


def test_processes_share_a_card_through_the_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    holder, apart = _holder(ledger, 60), _holder(ledger, 50, device="1")
    script = """
        try:
            malloc(50 * MiB)
        except Refused as error:
            refused = error.args[1]
        malloc(30 * MiB)
        call("cudaSetDevice", c_int(1))
        say([refused, free_bytes() // MiB])
        """
    with holder, apart:
        assert on_card(script, total=100 * MiB, devices=2, ledger=ledger) == [2, 50]
        assert _free_mib(ledger) == 40, "what ended without a word holds nothing"
        holder.communicate()
        assert _free_mib(ledger) == 100
        apart.communicate()


def test_the_most_that_living_processes_held_at_once_is_known(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = """
        from oomscope.virtual import most_held
        call("cudaFree", c_void_p(malloc(30 * MiB)))
        malloc(10 * MiB)
        say([most_held(device) // MiB for device in (0, 1)])
        """
    with _holder(ledger, 60) as holder:
        assert on_card(script, total=100 * MiB, devices=2, ledger=ledger) == [90, 0]
        holder.communicate()
        assert on_card(script, total=100 * MiB, devices=2, ledger=ledger) == [90, 0]
    with _holder(tmp_path / "another", 60) as holder:
        holder.communicate()
        assert on_card(script, total=100 * MiB, devices=2, ledger=tmp_path / "another") == [60, 0], (
            "one after the other"
        )
    assert on_card(script, total=100 * MiB, devices=2) == [30, 0]


@pytest.mark.parametrize(("visible", "free"), [("3,2", 40), ("2,3", 100), ("0,3", 100)])
def test_processes_share_what_both_list_whatever_its_ordinal(tmp_path: Path, visible: str, free: int) -> None:
    ledger = tmp_path / "ledger"
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    with _holder(ledger, 60, device="3,1") as holder:
        script = "say(free_bytes() // MiB)"
        assert on_card(script, environment=environment, total=100 * MiB, ledger=ledger) == free
        holder.communicate()


def test_a_killed_process_holds_nothing_even_before_it_is_reaped(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with _holder(ledger, 60) as holder:
        holder.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie
        assert on_card("say(malloc(90 * MiB) > 0)", total=100 * MiB, devices=2, ledger=ledger)


def test_a_process_that_has_a_dead_one_s_number_is_another(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with _holder(ledger, 60) as holder:
        content = bytearray(ledger.read_bytes())
        started = int.from_bytes(content[8:16], "little")
        assert int.from_bytes(content[16:20], "little") == holder.pid
        content[8:16] = (started - 1).to_bytes(8, "little")
        ledger.write_bytes(content)
        assert _free_mib(ledger) == 100


def test_a_living_process_whose_start_time_cannot_be_read_still_holds_its_bytes(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with _holder(ledger, 60) as holder:
        content = bytearray(ledger.read_bytes())
        content[8:16] = bytes([255]) * 8  # what is written where /proc hides processes
        ledger.write_bytes(content)
        assert _free_mib(ledger) == 40
        holder.communicate()
        assert _free_mib(ledger) == 100


def test_a_fork_does_not_keep_the_lock_of_the_ledger(tmp_path: Path) -> None:
    said = on_card(
        """
        import os
        def opened():
            files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            return sum(os.path.basename(file) == "ledger" for file in files)
        malloc(MiB)
        readable, writable = os.pipe()
        if not os.fork():
            os.write(writable, str(opened()).encode())
            os._exit(0)
        os.wait()
        say([opened(), int(os.read(readable, 9))])
        """,
        ledger=tmp_path / "ledger",
    )
    assert said == [1, 0]


def test_many_processes_at_once_never_take_more_than_there_is(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = PREAMBLES["calls"] + (
        "import random\nchoose = random.Random(int(sys.argv[1]))\nheld = []\nleast = 1 << 60\n"
        "for _ in range(300):\n"
        "    try:\n        held.append(malloc(choose.choice([2, 4, 10]) * MiB))\n"
        "    except Refused:\n        pass\n"
        "    least = min(least, free_bytes())\n"
        "    if len(held) > 3:\n        free(held.pop(0))\n"
        "for pointer in held:\n    free(pointer)\nsay(least)"
    )
    environment = os.environ | {"OOMSCOPE_CARD": f"total={40 * MiB};ledger={ledger}"}
    command = [sys.executable, "-c", script]
    running = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        for seed in range(4)
    ]
    least = [int(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert all(0 <= value <= 40 * MiB for value in least)
    assert on_card("say(free_bytes())", total=40 * MiB, ledger=ledger) == 40 * MiB


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    file.write_text("something else")
    assert on_card('say(status("cudaFree", None))', ledger=file) == 3
    assert file.read_text() == "something else"

"""Triton's own compiler and launcher on the virtual card: kernels are compiled for it, and launched on it."""

from __future__ import annotations

from tests.triton_at_hand import needs_triton
from tests.unit.virtual.on_card import on_card

KERNELS = """
    import triton
    from tests.unit.virtual.triton_kernels import add, matmul
    """


@needs_triton
def test_kernels_are_launched_and_report_what_they_were_compiled_to() -> None:
    script = """
    a, b = (torch.arange(64.0 * 64).reshape(64, 64).half().cuda() for _ in range(2))
    out = torch.zeros(64, 64, device="cuda")
    launched = state().launches
    kernel = matmul[(1,)](a, b, out, 64)
    launched = state().launches - launched
    kernel._init_handles()
    says = [kernel.n_regs > 16, kernel.n_spills, kernel.metadata.shared > 0, kernel.n_max_threads]
    say([launched, unknown(out), says, state().unsupported])
    """
    assert on_card(KERNELS + script, preamble="torch") == [1, 64 * 64 * 4, [True, 0, True, 1024], []]


@needs_triton
def test_autotuning_chooses_alike_in_every_run() -> None:
    script = """
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 1024) for warps in (4, 8)]
    tuned = triton.autotune(configs=configs, key=["n"])(add)
    x, y, out = (torch.ones(5000, device="cuda") for _ in range(3))
    tuned[lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)](x, y, out, 5000)
    timings = sorted({tuple(times) for times in tuned.configs_timings.values()})
    say([str(tuned.best_config), timings, state().launches, torch.cuda.max_memory_allocated()])
    """
    first, second = (on_card(KERNELS + script, preamble="torch") for _ in range(2))
    assert first == second
    assert first[0].startswith("BLOCK: 128, num_warps: 4")

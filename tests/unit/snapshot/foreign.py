"""A small training job recorded by somebody else: no categories, no moments, only stacks as torch writes them."""

from __future__ import annotations

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Category, Frame, Moment, Stack
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine

USER = "/home/me/train.py"
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
MAIN = Frame(USER, 90, "main")
CALL = Frame(f"{TORCH}/nn/modules/module.py", 1750, "_call_impl")
FORWARD: Stack = (Frame("/home/me/model.py", 12, "forward"), CALL, Frame(USER, 50, "train_step"), MAIN)
LOSS: Stack = (Frame("/home/me/loss.py", 7, "cross_entropy"), Frame(USER, 51, "train_step"), MAIN)
BACKWARD: Stack = (
    Frame(f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"),
    Frame(f"{TORCH}/_tensor.py", 648, "backward"),
    Frame(USER, 52, "train_step"),
    MAIN,
)
RECOMPUTED: Stack = (*FORWARD[:2], Frame(f"{TORCH}/utils/checkpoint.py", 1100, "unpack_hook"), *BACKWARD)
ENGINE: Stack = ()
"""Autograd's own thread has no Python frames."""
STEP: Stack = (
    Frame(f"{TORCH}/optim/adamw.py", 220, "step"),
    Frame(f"{TORCH}/optim/optimizer.py", 493, "wrapper"),
    Frame(USER, 53, "train_step"),
    MAIN,
)
STATES: Stack = (Frame(f"{TORCH}/optim/adamw.py", 150, "_init_group"), *STEP)
MOVED: Stack = (
    Frame(f"{TORCH}/nn/modules/module.py", 1329, "convert"),
    Frame(f"{TORCH}/nn/modules/module.py", 915, "_apply"),
    Frame(USER, 20, "build"),
    MAIN,
)
BATCH: Stack = (Frame("/home/me/data/loader.py", 5, "get_batch"), Frame(USER, 49, "train_step"), MAIN)
LEAK: Stack = (Frame("/home/me/metrics.py", 33, "keep"), Frame(USER, 54, "train_step"), MAIN)

PARAMETERS = (8 * MiB, 24 * MiB)


class Training(Machine):
    """Two parameters with Adam: a whole step allocates and frees what such a step does."""

    def __init__(self, total: int = 4 * GiB, conf: str = "", *, backward: Stack = BACKWARD) -> None:
        super().__init__(total, conf)
        self.moment = Moment("", -1, -1)
        self.backward = backward
        self.truth: dict[int, Category] = {}
        """Category of each alloc event."""
        self.states: list[int] = []
        self.gradients: list[int] = []

    def make(self, size: int, stack: Stack, category: Category) -> int:
        address = self.alloc(size, stack=stack, category=Category.UNKNOWN)
        assert address is not None
        self.truth[len(self.builder) - 1] = category
        return address

    def build(self) -> None:
        for size in PARAMETERS:
            self.make(size, MOVED, Category.PARAMETER)

    def step(self, *, leak: int = 0) -> None:
        for gradient in self.gradients:
            self.free(gradient)
        batch = self.make(3 * MiB, BATCH, Category.INPUT)
        saved = [self.make(size, FORWARD, Category.ACTIVATION) for size in (40 * MiB, 12 * MiB)]
        self.free(self.make(6 * MiB, FORWARD, Category.TEMPORARY))
        loss = self.make(30 * MiB, LOSS, Category.ACTIVATION)
        between = self.make(9 * MiB, self.backward, Category.TEMPORARY)
        self.free(loss)
        self.gradients = []
        for size, activation in zip(reversed(PARAMETERS), reversed(saved), strict=True):
            self.gradients.append(self.make(size, self.backward, Category.GRADIENT))
            self.free(activation)
        self.free(between)
        if not self.states:
            self.states = [self.make(size, STATES, Category.OPTIMIZER_STATE) for size in PARAMETERS * 2]
        for size in PARAMETERS:
            self.free(self.make(size, STEP, Category.TEMPORARY))
        if leak:
            self.make(leak, LEAK, Category.INPUT)
        self.free(batch)

    def timeline(self) -> Timeline:
        return Timeline.of(self.trace(), self.segments())

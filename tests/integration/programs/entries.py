"""Entries: each function makes what is trained and returns its step."""

from collections.abc import Callable

import torch
from small import model, steps
from torch import nn

Step = Callable[[], object]


def training(after: Callable[[int], object]) -> Step:
    """Train as the programs do; ``after`` is given the number of each step that is complete."""
    net = model()
    numbers = steps(net, torch.optim.AdamW(net.parameters()))
    return lambda: after(next(numbers))


def leaks(_: object) -> Step:
    kept: list[torch.Tensor] = []
    return training(lambda _: kept.append(torch.empty(64 << 20, device="cuda")))


def keeps_a_window(_: object) -> Step:
    kept: list[torch.Tensor] = []

    def keep(_: int) -> None:
        kept[:] = [*kept[-4:], torch.empty(64 << 20, device="cuda")]

    return training(keep)


def leaks_beside_a_buffer(_: object) -> Step:
    kept, buffer = [], [torch.empty(256 << 20, device="cuda")]

    def keep(number: int) -> None:
        kept.append(torch.empty(4 << 20, device="cuda"))
        if number == 4:
            buffer.clear()

    return training(keep)


def under_a_fraction(_: object) -> Step:
    torch.cuda.set_per_process_memory_fraction(0.25)
    return lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda")


def rounded_up(_: object) -> Step:
    return lambda: torch.empty(520 << 20, dtype=torch.uint8, device="cuda")


def sized_by_the_card(_: object) -> Step:
    """Takes half of what is free and a quarter of the card, then more than is left."""
    sizes = torch.cuda.mem_get_info()[0] // 2, torch.cuda.get_device_properties(0).total_memory // 4, 2200 << 20
    return lambda: [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]


def boolean_on_host(_: object) -> Step:
    """How many rows are kept depends on values that the host computes."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        rows = torch.randn(512, 256)
        kept = (rows[:, 0] > 0).nonzero()[:, 0]
        net(rows.cuda()[kept.cuda()]).sum().backward()
        optimizer.step()

    return step


def sized_by_value(_: object, count: int | None = None) -> Step:
    """How many rows are kept depends on values that only the card computes: 300 of 2048."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        rows = torch.cat([torch.ones(300, 256), -torch.ones(1748, 256)]).cuda()
        found = (rows.sum(dim=1) * 2.5 > 0).sum()
        net(rows[: int(found) if count is None else count]).sum().backward()
        optimizer.step()

    return step


def sized_by_the_host(_: object) -> Step:
    """Keep the same rows, which the host counts."""
    return sized_by_value(_, 300)


def experts(_: object, choices: torch.Tensor | None = None) -> Step:
    """A mixture of experts whose loop runs over the experts that were chosen, as transformers' does."""
    router, own = nn.Linear(256, 8).cuda(), nn.ModuleList(model() for _ in range(8))
    optimizer = torch.optim.AdamW([*router.parameters(), *own.parameters()])

    def step() -> None:
        tokens = torch.randn(2048, 256, device="cuda")
        weights, chosen = router(tokens).softmax(-1).topk(2, dim=-1)
        if choices is not None:
            chosen = choices.cuda()
        mask = nn.functional.one_hot(chosen, num_classes=8).permute(2, 1, 0)
        result = torch.zeros_like(tokens)
        for (expert,) in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, token = torch.where(mask[expert])
            result.index_add_(0, token, own[expert](tokens[token]) * weights[token, place, None])
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def experts_chosen_on_host(_: object) -> Step:
    """The same, with choices that the host makes."""
    return experts(_, torch.arange(2 * 2048).remainder(8).view(2048, 2))


def gradient_penalty(_: object) -> Step:
    """The gradient is part of the loss: autograd makes nodes of its graph, on a thread of its own."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        loss = net(torch.randn(64, 256, device="cuda")).square().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        (loss + sum(each.square().sum() for each in gradients)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def guards(_: object) -> Step:
    """Steps only where loss and gradients are finite, asked in the ways that programs ask."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        loss = net(torch.randn(64, 256, device="cuda")).square().mean()
        if torch.isnan(loss) or not torch.isfinite(loss).all():
            return
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        if norm.isinf().any() or (torch.isnan(norm) | torch.isinf(norm)) or ~torch.isfinite(norm):
            return
        if bool((~torch.isfinite(norm) | (norm < 0)).any()) or norm == float("inf"):
            return
        optimizer.step()
        optimizer.zero_grad()

    return step


def fp16(_: object) -> Step:
    """A GradScaler asks the card before each step whether gradients held infinities."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(torch.randn(64, 256, device="cuda")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def quasi_newton(_: object) -> Step:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), history_size=50)
    rows = torch.randn(64, 256, device="cuda")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(rows).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)

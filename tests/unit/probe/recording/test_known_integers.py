"""Integers that the host computes for a virtual card: whatever decides on them decides as on a real card."""

from __future__ import annotations

from tests.unit.virtual.on_card import on_card

BEGIN = "from oomscope.probe.recording.known_integers import integers_are_followed\nd = 'cuda'\n"


def followed(script: str, **settings: object) -> object:
    """Run a script on the card with integers followed; return what it said."""
    lines = "".join(f"    {line.strip() if not line.startswith('    ') else line}\n" for line in script.splitlines())
    return on_card(BEGIN + "with integers_are_followed():\n" + lines, preamble="torch", **settings)


def test_positions_and_masks_are_what_they_would_be() -> None:
    said = followed(
        """before = state().unknown_read_bytes
positions = torch.arange(64, device=d).unsqueeze(0).expand(4, -1)
torch.nn.functional.embedding(positions, torch.randn(64, 8, device=d))
steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
packed = (steps != 1).cumsum(-1)
one_sequence = bool((packed[:, -1] == 0).all())
mask = torch.zeros(4, 8, dtype=torch.bool, device=d)
mask[1, 2] = True
mask[3] = True
torch.randn(4, 8, device=d).masked_fill(mask, 0.0)
hidden = mask.sum().item()
counter = torch.tensor([1, 2, 3], device=d)
counter += 1
counter[0] = 7
say([one_sequence, hidden, counter.tolist(), state().unknown_read_bytes - before])""",
        values="threes",
    )
    assert said == [True, 9, [7, 3, 4], 0]


def test_what_is_not_known_stays_unknown() -> None:
    said = followed(
        """random = torch.randint(0, 9, (8,), device=d)
chosen = torch.arange(8, device=d) + random
numbers = torch.ones(1000, device=d) + torch.arange(1000, device=d)
changed = torch.arange(8, device=d)
torch.add(random, 1, out=changed)
say([unknown(random), unknown(chosen), unknown(numbers), unknown(changed), unknown(torch.arange(8, device=d))])"""
    )
    assert said == [64, 64, 4000, 64, 0]


def test_it_allocates_nothing_and_is_gone_afterwards() -> None:
    said = followed(
        """def work():
        x = torch.arange(1 << 15, device=d)
        y = (x % 7 == 3) & (x > 9)
        return torch.stack([y.sum(), x.max()]).sort()
work()
torch.cuda.reset_peak_memory_stats()
work()
with_it = torch.cuda.max_memory_allocated()
say(with_it)
"""
    )
    plain = on_card(
        """
        d = 'cuda'
        def work():
            x = torch.arange(1 << 15, device=d)
            y = (x % 7 == 3) & (x > 9)
            return torch.stack([y.sum(), x.max()]).sort()
        work()
        torch.cuda.reset_peak_memory_stats()
        work()
        say(torch.cuda.max_memory_allocated())
        """,
        preamble="torch",
    )
    assert said == plain


def test_scripted_functions_are_compiled_as_ever() -> None:
    said = followed("say(list(torch.jit.script(joined)(torch.arange(2, device=d)).shape))")
    assert said == [5]


def test_functions_are_as_before_when_it_ends() -> None:
    said = on_card(
        """
        from oomscope.probe.recording.known_integers import integers_are_followed
        before = [torch.arange, torch.Tensor.add, torch.bool, torch.Tensor.__eq__, torch.nn.functional.cross_entropy]
        with integers_are_followed():
            changed = torch.arange is not before[0]
        after = [torch.arange, torch.Tensor.add, torch.bool, torch.Tensor.__eq__, torch.nn.functional.cross_entropy]
        say([changed, before == after])
        """,
        preamble="torch",
    )
    assert said == [True, True]


def test_a_default_device_counts_as_ever() -> None:
    said = followed(
        """with torch.device(d):
        made = [torch.arange(4), torch.full((2,), 1), torch.ones(3), torch.zeros(3, dtype=torch.long)]
say([each.device.type for each in made])"""
    )
    assert said == ["cuda"] * 4


def test_a_count_that_divides_stays_known() -> None:
    said = followed(
        """count = (torch.arange(8, device=d) > 2).sum()
torch.randn(100, device=d).sum() / count
say([count.item(), (count / 2).item(), state().unknown_reads])"""
    )
    assert said == [5, 2.5, 0]


def test_what_lies_behind_an_operand_stays_known() -> None:
    said = followed(
        """tokens, labels = (torch.arange(512).to(d) for _ in range(2))
touch = labels.data_ptr() - tokens.data_ptr()
torch.nn.functional.embedding(tokens, torch.randn(512, 8, device=d))
say([touch, unknown(labels), unknown(tokens)])"""
    )
    assert said == [4096, 0, 0]

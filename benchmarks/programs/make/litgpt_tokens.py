"""Write random tokens by litdata, which litgpt reads them with."""

import sys
from collections.abc import Iterator

import torch
from litdata import TokensLoader, optimize


def tokens(seed: int) -> Iterator[torch.Tensor]:
    """Yield one row."""
    yield torch.randint(50000, (20000,), generator=torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    for split in ("train", "val"):
        where = f"{sys.argv[1]}/{split}"
        loader = TokensLoader(block_size=513)
        optimize(tokens, [*range(4)], where, chunk_bytes="1MB", num_workers=1, item_loader=loader, mode="overwrite")

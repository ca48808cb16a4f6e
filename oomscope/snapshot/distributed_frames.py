"""Where libraries that train on several ranks allocate: room for weights, buckets of gradients, collectives.

Room for weights is a parameter however long it lives: whole ones may come and go within a forward pass, as temporaries
do, or be held until its backward, as activations are.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Place(NamedTuple):
    """Functions of a file, as patterns."""

    path: str
    function: str

    def holds(self, filename: str, function: str) -> bool:
        """Return whether a frame is there."""
        return bool(re.search(self.path, filename) and re.search(self.function, function))


WEIGHTS: Final = (
    Place(r"(^|/)torch/distributed/fsdp/_fully_shard/_fsdp_param\.py$", r"^(init_all_gather_outputs|alloc_storage)$"),
    Place(
        r"(^|/)torch/distributed/fsdp/_flat_param\.py$",
        r"^(_alloc_padded_unsharded_flat_param|_use_low_precision_shard|init_flat_param_attributes)$",
    ),
    Place(
        r"(^|/)deepspeed/runtime/zero/partition_parameters\.py$",
        r"^(_all_gather_(dtype|sequential|coalesced)|_allgather_param\w*|_partition_param(_sec)?|__init__|wait)$",
    ),
    Place(r"(^|/)deepspeed/runtime/zero/utils\.py$", r"^defragment$"),
)
"""Places of weights in FSDP2, FSDP1 and DeepSpeed's ZeRO-3, whose handles return weights that need no gathering or are
quantised."""

BUCKETS: Final = Place(r"(^|/)torch/nn/parallel/distributed\.py$", r"^(_ddp_init_helper|_pre_forward)$")
"""Places where DistributedDataParallel makes the buckets of its gradients, and again in the order of use."""

_ZERO: Final = r"(^|/)deepspeed/runtime/zero/stage(_1_and_2|3)\.py$"
ZERO_BUCKETS: Final = Place(_ZERO, r"^(setup_buckets|reduce_gradients|_setup_for_real_optimizer)$")
ZERO_GRADIENTS: Final = Place(_ZERO, r"^(copy_grads_in_partition|_setup_for_real_optimizer)$")
"""Places where DeepSpeed's ZeRO allocates buckets, through which gradients pass, and a rank's reduced gradients. ZeRO-3
has one function for both; its gradients are known only from its bucket."""

COLLECTIVES: Final = Place(
    r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives|fsdp/_fully_shard/_fsdp_collectives)\.py$", r"."
)

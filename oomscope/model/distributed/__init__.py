"""Where parameters and gradients are kept: DDP buffers, FSDP2, Megatron-FSDP."""

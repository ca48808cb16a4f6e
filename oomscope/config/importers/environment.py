"""Environment variables that decide about memory; every dialect has them."""

from __future__ import annotations

from oomscope.config.importers.rows import Kept, Row, To, Unmodelled, is_on

TABLE: dict[str, Row] = {
    "ENV:PYTORCH_CUDA_ALLOC_CONF": To("allocator.conf", str),
    "ENV:PYTORCH_ALLOC_CONF": To("allocator.conf", str),
    "ENV:CUBLAS_WORKSPACE_CONFIG": To("device.cublas_workspace_config", str),
    "ENV:NVTE_CPU_OFFLOAD_V1": To("offload.nvte_cpu_offload_v1", lambda value: is_on(int(value))),
    "ENV:NCCL_GRAPH_REGISTER": To("cuda_graph.nccl_graph_register", lambda value: is_on(int(value))),
    "ENV:WORLD_SIZE": Kept(),
    "ENV:NVTE_FLASH_ATTN": Kept(),
    "ENV:NVTE_FUSED_ATTN": Kept(),
    "ENV:NVTE_UNFUSED_ATTN": Kept(),
    "ENV:PYTORCH_NO_CUDA_MEMORY_CACHING": Unmodelled("without the caching allocator nothing is reserved", ("0",)),
}
"""Name to what it becomes (PyTorch docs, notes/cuda; Transformer Engine docs, envvars)."""

WITHOUT_MEMORY = """
ENV:CUDA_DEVICE_MAX_CONNECTIONS ENV:CUDA_VISIBLE_DEVICES ENV:CUDA_LAUNCH_BLOCKING ENV:CUDA_MODULE_LOADING
ENV:NCCL_* ENV:TORCH_NCCL_* ENV:UCX_* ENV:GLOO_* ENV:NVTE_ALLOW_NONDETERMINISTIC_ALGO ENV:NVTE_*_SM_MARGIN
ENV:NVTE_DEBUG* ENV:NVTE_APPLY_QK_LAYER_SCALING ENV:OMP_NUM_THREADS ENV:MASTER_ADDR ENV:MASTER_PORT ENV:RANK
ENV:LOCAL_RANK ENV:NODE_RANK ENV:PYTHON* ENV:HF_* ENV:TOKENIZERS_PARALLELISM ENV:WANDB_* ENV:SKIP_PYTEST ENV:N_REPEAT
ENV:SLURM_* ENV:LOGLEVEL ENV:LD_LIBRARY_PATH ENV:PATH ENV:HOME ENV:TRITON_* ENV:TORCHINDUCTOR_* ENV:NVSHMEM_*
"""

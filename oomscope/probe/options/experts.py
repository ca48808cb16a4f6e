"""Options of experts: how many, how tokens reach them, and what evens their load out."""

from __future__ import annotations

from oomscope.probe.options.option import MOE, Option, keys

EXPERTS = (
    Option(
        keys("model", "num_moe_experts moe_layer_freq"),
        "E experts hold E times the parameters of one MLP, over e ranks; a token visits k of them.",
        "The work of k experts.",
        MOE,
        ("model.num_moe_experts=64",),
    ),
    Option(
        keys("model", "moe_router_topk"),
        "k rows a token: the experts' activations and the permuted copies grow with k.",
        "The experts' work and traffic grow with k.",
        MOE,
        ("model.moe_router_topk=2",),
    ),
    Option(
        keys("model", "moe_ffn_hidden_size"),
        "The width of an expert: parameters and activations grow with it.",
        "So does the work.",
        MOE,
        ("model.moe_ffn_hidden_size=1536",),
    ),
    Option(
        keys("model", "moe_shared_expert_intermediate_size"),
        "An MLP that every token visits: its parameters, and activations of all n tokens.",
        "Its work.",
        MOE,
        ("model.moe_shared_expert_intermediate_size=768",),
    ),
    Option(
        keys("model", "moe_grouped_gemm"),
        "One product over all experts; false joins the experts' outputs by a copy.",
        "Many small products are slow.",
        MOE,
        ("model.moe_grouped_gemm=false",),
    ),
    Option(
        keys("model", "moe_token_dispatcher_type"),
        "allgather holds the tokens of all ranks of the expert group at once, alltoall those that visit.",
        "allgather moves all tokens to every rank.",
        MOE,
        ("model.moe_token_dispatcher_type=allgather",),
    ),
    Option(
        keys("model", "moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop_policy"),
        "Bounds an expert's rows of a rank's tokens by ceil(n·k/E · factor), or pads to it; a mask of nE bytes.",
        "Dropped tokens learn nothing; padding is work for nothing.",
        MOE,
        ("model.moe_expert_capacity_factor=1.0",),
        given=("model.moe_imbalance_factor=2.0",),
    ),
    Option(
        keys("model", "moe_imbalance_factor"),
        "Rows that reach this rank's experts over an even share: dropless routing has no bound below e.",
        "The slowest rank decides.",
        MOE,
        ("model.moe_imbalance_factor=2.0",),
    ),
    Option(
        keys("model", "moe_router_load_balancing_type moe_aux_loss_coeff"),
        "A balancing loss keeps the fp32 scores of all experts, 4nE, and counts; sinkhorn the softmax and a mask.",
        "An all-reduce of the counts.",
        MOE,
        ("model.moe_aux_loss_coeff=0.0",),
    ),
    Option(
        keys("model", "moe_z_loss_coeff"),
        "Keeps the logits, in the router's format, and their log-sum-exp.",
        "Little.",
        MOE,
        ("model.moe_z_loss_coeff=0.001",),
    ),
    Option(
        keys("model", "moe_router_dtype"),
        "Logits, probabilities and the weights of rows in 4 or 8 bytes.",
        "Little.",
        MOE,
        ("model.moe_router_dtype=fp64",),
    ),
    Option(
        keys("model", "moe_router_pre_softmax"),
        "Keeps the softmax of all experts, 4nE, in place of 4nk.",
        "Little.",
        MOE,
        ("model.moe_router_pre_softmax=true",),
    ),
    Option(
        keys("model", "moe_router_score_function moe_router_topk_scaling_factor"),
        "sigmoid keeps the scores of all experts, 4nE, and 4n(k + 1) of the quotient by their sum.",
        "Little.",
        MOE,
        ("model.moe_router_score_function=sigmoid",),
    ),
    Option(
        keys("model", "moe_router_num_groups moe_router_group_topk"),
        "Keeps a mask of nE bytes, unless the expert bias makes the choice.",
        "Little; fewer ranks to send to.",
        MOE,
        ("model.moe_router_num_groups=8", "model.moe_router_group_topk=4"),
    ),
    Option(
        keys("model", "moe_router_enable_expert_bias moe_router_bias_update_rate"),
        "8E bytes a layer for the whole run.",
        "An all-reduce of the counts of all layers once a step.",
        MOE,
        ("model.moe_router_enable_expert_bias=true",),
        given=("model.moe_router_score_function=sigmoid",),
    ),
    Option(
        keys("model", "moe_permute_fusion"),
        "Keeps one map of 4n(2E + 1) bytes in place of the sort's indices, 8nE and 8 a row.",
        "One kernel in place of several.",
        MOE,
        ("model.moe_permute_fusion=false",),
    ),
)

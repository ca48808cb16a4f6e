"""Options that share the model and its batch out over ranks."""

from __future__ import annotations

from oomscope.probe.options.option import FSDP2, LLAMA, MOE, NO_SP, ONE, PIPELINE, SHORT, Option, keys

PARALLEL = (
    Option(
        keys("parallel", "tensor_model_parallel_size"),
        "Matrices, their gradients and states, heads and MLP widths are divided by t; what lies between them is not.",
        "An all-reduce (with SP an all-gather and a reduce-scatter) twice a layer each way.",
        LLAMA,
        ("parallel.tensor_model_parallel_size=4",),
        given=(*ONE, SHORT),
    ),
    Option(
        keys("parallel", "sequence_parallel"),
        "Norms, dropouts and the residual stream are divided by t as well.",
        "None: the all-reduce is cut in two. Gathers are repeated in backward.",
        LLAMA,
        ("parallel.sequence_parallel=true",),
        given=(NO_SP,),
    ),
    Option(
        keys("parallel", "pipeline_model_parallel_size"),
        "Layers, with their parameters and states, are divided by p; rank r holds up to p - r microbatches in flight.",
        "A bubble of (p - 1)/m of the step; activations are sent between stages.",
        LLAMA,
        ("parallel.pipeline_model_parallel_size=2",),
        given=("data.num_microbatches=4",),
    ),
    Option(
        keys("parallel", "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage"),
        "v chunks a rank, interleaved: the first rank holds (p - 1)·2 + (v - 1)·p + 1 chunks of 1/v of its layers in "
        "flight, about p·(1 + (p - 1)/(p·v)) microbatches' worth.",
        "The bubble shrinks to 1/v; v times as many messages.",
        LLAMA,
        ("parallel.virtual_pipeline_model_parallel_size=2",),
        given=PIPELINE,
    ),
    Option(
        keys("parallel", "microbatch_group_size_per_vp_stage"),
        "Each microbatch more in a group keeps v - 1 more chunks in flight.",
        "Fewer switches between chunks.",
        LLAMA,
        ("parallel.microbatch_group_size_per_vp_stage=4",),
        given=(*PIPELINE, "parallel.virtual_pipeline_model_parallel_size=2"),
    ),
    Option(
        keys("parallel", "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage"),
        "Moves layers from the first stage, which holds most microbatches, or from the last, which holds the logits.",
        "Stages that take longer than others are waited for.",
        LLAMA,
        ("parallel.num_layers_in_first_pipeline_stage=1",),
        given=PIPELINE,
    ),
    Option(
        keys("parallel", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split"),
        "Count embedding or loss as a layer: the first or last stage has one transformer layer less. In two stages "
        "both together change nothing.",
        "Evens out the time of the stages.",
        LLAMA,
        (
            "parallel.account_for_embedding_in_pipeline_split=true",
            "parallel.account_for_loss_in_pipeline_split=true",
        ),
        given=PIPELINE,
    ),
    Option(
        keys("parallel", "pipeline_model_parallel_layout"),
        "Says layer by layer what each stage holds; here the last stage, which has the logits, gets fewer.",
        "Stages that take longer than others are waited for.",
        LLAMA,
        ("parallel.pipeline_model_parallel_layout=Et*3|tL",),
        given=PIPELINE,
    ),
    Option(
        keys("parallel", "deallocate_pipeline_outputs"),
        "A stage's output is freed once it is sent: 2nh/S less for each microbatch in flight.",
        "None.",
        LLAMA,
        ("parallel.deallocate_pipeline_outputs=false",),
        given=PIPELINE,
    ),
    Option(
        keys("parallel", "defer_embedding_wgrad_compute wgrad_deferral_limit"),
        "The last stage keeps the logits' gradient and the input of each microbatch that is put off: 2nV/t + 2nh/S.",
        "The other stages wait less for the last one.",
        LLAMA,
        ("parallel.defer_embedding_wgrad_compute=true", "parallel.wgrad_deferral_limit=2"),
        given=(*PIPELINE, "precision.gradient_accumulation_fusion=true", "probe.rank=last"),
    ),
    Option(
        keys("parallel", "overlap_p2p_comm batch_p2p_comm"),
        "How neighbours exchange tensors: with overlap buffers of the next exchange exist while one is computed on.",
        "Overlap hides the exchange.",
        LLAMA,
        ("parallel.overlap_p2p_comm=false", "parallel.batch_p2p_comm=true"),
        given=(
            "parallel.pipeline_model_parallel_size=4",
            "parallel.virtual_pipeline_model_parallel_size=2",
            "model.num_layers=8",
            "data.num_microbatches=8",
        ),
    ),
    Option(
        keys("parallel", "context_parallel_size"),
        "All tensors of tokens are divided by c; parameters are not, and states are sharded over d·c.",
        "Keys and values go round in every layer, each way.",
        LLAMA,
        ("parallel.context_parallel_size=2",),
    ),
    Option(
        keys("parallel", "cp_comm_type"),
        "p2p passes keys and values round a ring, block by block; a2a exchanges heads for tokens; all_gather holds "
        "the keys and values of the whole sequence for a while.",
        "Traffic of (c - 1)/c of keys and values, or of queries and outputs too (a2a).",
        LLAMA,
        ("parallel.cp_comm_type=all_gather",),
        given=("parallel.context_parallel_size=2",),
    ),
    Option(
        keys("parallel", "hierarchical_context_parallel_sizes"),
        "With cp_comm_type a2a+p2p the ring is shorter by the ranks that exchange heads: fewer blocks of keys and "
        "values and fewer partial outputs live at once; the output is kept twice.",
        "Traffic of both ways, the ring's between groups of neighbours.",
        LLAMA,
        ("parallel.cp_comm_type=a2a+p2p", "parallel.hierarchical_context_parallel_sizes=[2,2]"),
        given=("parallel.context_parallel_size=4", "parallel.tensor_model_parallel_size=2"),
    ),
    Option(
        keys("parallel", "expert_model_parallel_size"),
        "Routed experts, with gradients and states, are divided by e.",
        "Two all-to-alls a layer each way.",
        MOE,
        ("parallel.expert_model_parallel_size=16",),
    ),
    Option(
        keys("parallel", "expert_tensor_parallel_size"),
        "Cuts the width of each expert; null means t. 1 keeps experts whole, so that each has more rows at once.",
        "An all-gather and a reduce-scatter of the experts' rows.",
        MOE,
        ("parallel.expert_tensor_parallel_size=1",),
        given=("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"),
    ),
    Option(
        keys("parallel", "data_parallel_size"),
        "With the distributed optimizer masters and moments are divided by d, else nothing is.",
        "Gradients are reduced once a step.",
        LLAMA,
        ("parallel.data_parallel_size=8",),
    ),
    Option(
        keys("parallel", "use_torch_fsdp2"),
        "Parameters, gradients and states are divided by d; one layer's parameters and gradients are whole at a time.",
        "Parameters are gathered in forward and backward, gradients scattered, in every microbatch.",
        LLAMA,
        ("parallel.use_torch_fsdp2=true",),
        given=FSDP2,
    ),
    Option(
        keys("parallel", "torch_fsdp2_reshard_after_forward"),
        "false keeps the gathered parameters of all layers from forward to backward.",
        "One gather of the parameters less.",
        LLAMA,
        ("parallel.torch_fsdp2_reshard_after_forward=false",),
        given=(*FSDP2, "parallel.use_torch_fsdp2=true"),
    ),
)

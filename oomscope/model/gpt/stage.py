"""The stage of a decoder-only GPT that one pipeline rank holds, or one of its model chunks.

Hidden states are [s/σ, b, h], where σ is the TP size under sequence parallelism and 1 without. Legend of the
package: s sequence, b microbatch, h hidden, a query heads, g key/value heads, d head width, f MLP width,
V padded vocabulary, t TP size. Under context parallelism s is what a rank holds of a sequence, 1/c of it.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from oomscope.config.rules.layer_split import has_final_norm
from oomscope.config.schema import Config
from oomscope.model.base.observer import NullObserver, Observer
from oomscope.model.gpt.multi_token_prediction import MultiTokenPrediction
from oomscope.model.gpt.output_layer import OutputLayer
from oomscope.model.gpt.transformer_layer import TransformerLayer
from oomscope.model.layers.cross_entropy import loss_kernels, vocab_parallel_cross_entropy
from oomscope.model.layers.embedding import Embedding, vocabulary
from oomscope.model.layers.norms import make_norm
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.memory.layer_groups import layer_groups
from oomscope.model.memory.offload import LayerOffload
from oomscope.model.memory.recompute import checkpoint
from oomscope.model.parallel.parallel_state import ParallelState

_NULL_OBSERVER = NullObserver()


class GPTStage(nn.Module):
    """Consecutive layers, with the embedding on the first stage and the output layer and loss on the last.

    ``layers`` are counted over the whole model. ``pre_process`` and ``post_process`` say whether it is the first and
    the last; ``beside`` is another model chunk of its rank (:class:`RankContext`).

    Parameters carry ``sequence_parallel`` (each TP rank has only its part of the gradient: sum it over the group),
    ``tensor_model_parallel`` (TP ranks hold different parts) and ``shared_embedding`` (tied between the first and
    the last stage).
    """

    rank: RankContext

    def __init__(
        self,
        config: Config,
        state: ParallelState,
        *,
        layers: range,
        pre_process: bool,
        post_process: bool,
        device: torch.device,
        dtype: torch.dtype,
        observer: Observer = _NULL_OBSERVER,
        beside: GPTStage | None = None,
    ) -> None:
        super().__init__()
        self.is_first = pre_process
        self.is_last = post_process
        self.input_tensor: torch.Tensor | None = None
        """Input that the stage before sent last. It and its gradient, two hidden states a model chunk, stay until the
        next arrives (Megatron-Core transformer/transformer_block.py, set_input_tensor; schedules.py, backward_step)."""
        rank = self.rank = RankContext(
            config,
            state,
            device=device,
            dtype=dtype,
            observer=observer,
            beside=None if beside is None else beside.rank,
        )
        observer.role("input", () if rank.rotary is None else rank.rotary)
        predicts_further = post_process and config.model.mtp_num_layers is not None
        self.embedding = Embedding(rank) if pre_process or predicts_further else None
        self._distribute = rank.tp if config.recompute.distribute_saved_activations and rank.tp.size > 1 else None
        self._groups = layer_groups(config.recompute, len(layers))
        self.layers = nn.ModuleList(TransformerLayer(rank, index) for index in layers)
        offload = config.offload
        offloaded = offload.cpu_offloading_num_layers if offload.cpu_offloading_activations else 0
        self._offload = LayerOffload(self.layers, offloaded, device) if offload.cpu_offloading and offloaded else None
        has_norm = has_final_norm(config, layers, post_process=post_process)
        self.final_norm = make_norm(rank, config.model.hidden_size) if has_norm else None
        self.mtp = MultiTokenPrediction(rank) if predicts_further else None
        self.output_layer = self._make_output_layer() if post_process else None
        self._loss_kernels = loss_kernels(config)

    def forward(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        tokens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden state [s/σ, b, h]; on the last stage the mean loss, or without labels logits [s, b, V/t].

        Args:
            inputs: tokens [b, s] on the first stage, else the hidden state [s/σ, b, h].
            labels: [b, s], for the last stage.
            attention_mask: [b, 1, s, s], true where a query may not look; attention is causal without one too.
            tokens: [b, s], for multi-token prediction on a stage whose ``inputs`` they are not.
        """
        mask = () if attention_mask is None else (attention_mask,)
        hidden = self._run_layers(self._first_hidden(inputs), *mask)
        if self.output_layer is None:
            return self._end(hidden)
        if self.mtp is not None and labels is not None:
            states = self.mtp(self._end(hidden), inputs if self.is_first else tokens, self.embedding, *mask)
            with self.rank.observer.phase("loss"):
                hidden = self.mtp.add_losses(states, labels, output_layer=self.output_layer, loss=self._token_losses)
                return self._token_losses(self.output_layer(hidden), labels.t()).mean()
        with self.rank.observer.phase("loss"):
            logits: torch.Tensor = self.output_layer(self._end(hidden))
            return logits if labels is None else self._token_losses(logits, labels.t()).mean()

    def _first_hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_first and self.embedding is not None:
            return self.embedding(inputs)  # type: ignore[no-any-return]
        self.input_tensor = inputs
        return inputs

    def _end(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what follows the layers: the final norm, or a copy where there was neither layer nor embedding
        (Megatron-Core transformer/transformer_block.py, forward).
        """
        if self.final_norm is not None:
            return self.final_norm(hidden)  # type: ignore[no-any-return]
        return hidden if self.layers or self.is_first else hidden.clone()

    def _token_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss [s, b] of each token."""
        return vocab_parallel_cross_entropy(logits, labels, self.rank.tp, self._loss_kernels)

    def _run_layers(self, hidden: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        with self.rank.random.fork() if self.rank.tp.sequence_parallel else nullcontext():
            if self._offload is not None and torch.is_grad_enabled():
                return self._offload.run(hidden, *mask)
            if torch.is_grad_enabled():
                self.rank.offload.begin(list(self.parameters()))
            for group in self._groups:
                if group.recompute and self.training:
                    hidden = checkpoint(
                        partial(self._run, group.layers), self.rank.random, hidden, *mask, distribute=self._distribute
                    )
                else:
                    hidden = self._run(group.layers, hidden, *mask)
        return hidden

    def _run(self, layers: range, hidden: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        for index in layers:
            hidden = self.layers[index](hidden, *mask)
        return hidden

    def _make_output_layer(self) -> OutputLayer:
        """Return what makes logits [s, b, V/t] of hidden states [s/σ, b, h].

        Where multi-token prediction has its copy of a tied embedding, Megatron-Core multiplies by that, and keeps the
        weight of its output layer, and its states, all the same (``gpt_model.py``: allocation is skipped only on the
        first stage; ``language_module.py::shared_embedding_or_output_weight``).
        """
        rank, config = self.rank, self.rank.config
        if not config.model.share_embeddings_and_output_weights:
            weight = vocabulary(rank, "output")
        elif self.embedding is not None:
            weight = self.embedding.words.weight
            if self.is_first:
                weight.zero_out_wgrad = True  # type: ignore[attr-defined]
            else:
                self.idle_output_weight = vocabulary(rank, "output")
        else:
            weight = vocabulary(rank, "embedding.words")
            weight.shared_embedding = True  # type: ignore[attr-defined]
        return OutputLayer(weight, rank)

"""A configuration in the making: settings with their origin, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oomscope.config.settings import Setting


@dataclass
class Draft:
    """What a dialect's own arithmetic works on."""

    source: str
    given: dict[str, Any]
    """The foreign names that were given, and their values as the rows convert them."""
    wheres: Mapping[str, str]
    world_size: int | None = None
    on_preset: bool = False
    """Whether the configuration is laid upon a preset."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """Dotted key to value and origin."""
    assumed: list[str] = field(default_factory=list)
    """What was filled in or computed, in words."""
    refused: list[tuple[str, Any, str]] = field(default_factory=list)
    """Names that are not modelled together with others, their value, and the reason."""

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value that ``key`` has so far."""
        setting = self.settings.get(key)
        return default if setting is None else setting.value

    def is_set(self, key: str) -> bool:
        """Whether ``key`` has a value."""
        return key in self.settings

    def set(self, key: str, value: Any, *, because: str, name: str | None = None) -> None:
        """Set ``key`` to what was computed; ``name`` is the argument that it was computed from."""
        where = self.wheres.get(name or "", self.source)
        self.settings[key] = Setting(value, f"{where} ({because})")

    def default(self, key: str, value: Any, *, because: str) -> None:
        """Set ``key`` where nothing has set it."""
        if key not in self.settings:
            self.set(key, value, because=because)

    def drop(self, key: str, value: Any) -> None:
        """Remove ``key`` if it has ``value``, the default: logs have all defaults."""
        if self.value(key) == value:
            self.settings.pop(key, None)

    def assume(self, text: str) -> None:
        """Note something that the user should know."""
        self.assumed.append(text)

    def refuse(self, name: str, value: Any, reason: str) -> None:
        """Note that ``name`` means something that is not modelled."""
        self.refused.append((name, value, reason))

    @property
    def is_whole(self) -> bool:
        """Whether this is a job with a model, and not only some of its settings."""
        return self.is_set("model.num_layers")


def replicas(draft: Draft) -> int:
    """Return the data-parallel size, if it is known."""
    given = draft.value("parallel.data_parallel_size", (draft.world_size or 0) // _ranks_of_a_replica(draft))
    return max(given, 1) if isinstance(given, int) else 1


def _ranks_of_a_replica(draft: Draft) -> int:
    ranks = 1
    for size in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        value = draft.value(f"parallel.{size}", 1)
        ranks *= value if isinstance(value, int) and value > 0 else 1
    return ranks


def share_world(draft: Draft) -> None:
    """Set ``parallel.data_parallel_size`` to what the world leaves for it.

    The world is split as Megatron-Core parallel_state.py does: TP * CP * PP ranks hold one replica.
    """
    if not draft.is_whole or draft.is_set("parallel.data_parallel_size"):
        return
    replica = _ranks_of_a_replica(draft)
    if draft.world_size is None:
        draft.assume("the number of GPUs is not given: one replica (give --world-size N)")
    elif draft.world_size % replica:
        draft.assume(f"{draft.world_size} GPUs cannot be cut into replicas of {replica} (TP * PP * CP): one replica")
    else:
        draft.set(
            "parallel.data_parallel_size",
            draft.world_size // replica,
            because=f"{draft.world_size} GPUs over {replica} of a replica",
        )


def note_kept_cache(draft: Draft) -> None:
    """Say what becomes of a cache that is to be emptied."""
    if any(draft.given.get(f"{prefix}empty_unused_memory_level") for prefix in ("", "train.")):
        draft.assume("the cache is not emptied between steps, as empty_unused_memory_level asks: more stays reserved")


def switch_off_overlap(draft: Draft) -> None:
    """Switch tp_comm_overlap off where there is no tensor or no sequence parallelism, as Megatron Bridge and NeMo do.

    Source: Megatron-Bridge training/comm_overlap.py; NeMo nlp/models/language_modeling/megatron_base_model.py.
    """
    parts = draft.value("parallel.tensor_model_parallel_size", 1) > 1 and draft.value("parallel.sequence_parallel")
    if draft.is_whole and draft.value("parallel.tp_comm_overlap") and not parts:
        draft.set("parallel.tp_comm_overlap", False, because="off without tensor and sequence parallelism")
        draft.assume("tp_comm_overlap is off, as it is without tensor and sequence parallelism")


def note_ramp(draft: Draft) -> None:
    """Say what becomes of a batch that ramps up."""
    if any(draft.given.get(f"{prefix}rampup_batch_size") for prefix in ("", "train.", "model.")):
        draft.assume("rampup_batch_size is left out, as Megatron-Core does: the batch has its final size")


def keep_mask_on_host(draft: Draft) -> None:
    """Copy no attention mask to the card where nothing asks for it.

    Source: Megatron-Bridge training/gpt_step.py, get_batch_from_iterator; NeMo
    nlp/models/language_modeling/megatron_gpt_model.py, get_forward_output_and_loss_func.
    """
    key = "data.create_attention_mask_in_dataloader"
    if draft.is_whole or draft.on_preset:
        draft.default(key, False, because="the mask stays on the host by default")
    if draft.value(key) and draft.value("parallel.pipeline_model_parallel_size", 1) > 2:
        draft.assume("inner pipeline stages hold no attention mask here: their peak is too low by it")

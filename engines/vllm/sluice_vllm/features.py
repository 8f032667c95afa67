"""Which features of vLLM an engine may use while Sluice owns its memory: one table, supported or refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice_vllm.errors import SluiceRefused

REPACKED = "it repacks weights after loading, so they would leave the memory that Sluice owns"
UNTESTED = "it is not tested with memory that Sluice owns"


@dataclass(frozen=True)
class Feature:
    """A feature, how a configuration shows it, and why it is refused (None: it is supported)."""

    name: str
    used: Callable[[Any], bool]
    refused: str | None


def _hybrid(config: Any) -> bool:
    model = config.model_config
    return bool(model.is_hybrid or model.is_attention_free or model.has_inner_state)


def _mixed_attention(config: Any) -> bool:
    text = config.model_config.hf_text_config
    return (
        config.model_config.get_sliding_window() is not None or len(set(getattr(text, "layer_types", None) or [])) > 1
    )


def _other_runner(config: Any) -> bool:
    model = config.model_config
    return bool(model.runner_type != "generate" or model.is_encoder_decoder or model.is_diffusion)


def _own_offloading(config: Any) -> bool:
    offload = config.offload_config
    return offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0


def _custom_classes(config: Any) -> bool:
    worker, scheduler = config.parallel_config.worker_cls, config.scheduler_config.scheduler_cls
    own_worker = worker in ("auto", WORKER_CLASS) or worker.startswith("vllm.")
    return not (own_worker and (scheduler is None or scheduler in SCHEDULER_CLASSES))


def _expandable_segments(config: Any) -> bool:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in names)


WORKER_CLASS = "sluice_vllm.worker.SluiceWorker"
SCHEDULER_CLASSES = ("sluice_vllm.scheduler.SluiceScheduler", "sluice_vllm.scheduler.SluiceAsyncScheduler")

FEATURES: tuple[Feature, ...] = (
    Feature("prefix caching", lambda c: bool(c.cache_config.enable_prefix_caching), None),
    Feature("chunked prefill", lambda c: bool(c.scheduler_config.enable_chunked_prefill), None),
    Feature("async scheduling", lambda c: bool(c.scheduler_config.async_scheduling), None),
    Feature("grouped-query attention", lambda c: _heads_differ(c.model_config.hf_text_config), None),
    Feature("several ranks", lambda c: c.parallel_config.world_size_across_dp > 1, UNTESTED),
    Feature("speculative decoding", lambda c: c.speculative_config is not None, UNTESTED),
    Feature("multi-head latent attention", lambda c: bool(c.model_config.use_mla), UNTESTED),
    Feature("hybrid or Mamba layers", _hybrid, UNTESTED),
    Feature("sliding-window or mixed attention", _mixed_attention, UNTESTED),
    Feature("FP8 KV", lambda c: str(c.cache_config.cache_dtype).startswith("fp8"), UNTESTED),
    Feature("LoRA", lambda c: c.lora_config is not None, UNTESTED),
    Feature("quantisation", lambda c: c.model_config.quantization is not None, REPACKED),
    Feature(
        "--enable-sleep-mode", lambda c: bool(c.model_config.enable_sleep_mode), "Sluice hibernates engines itself"
    ),
    Feature("expandable segments", _expandable_segments, "torch would move what Sluice measures"),
    Feature("KV connectors", lambda c: c.kv_transfer_config is not None or c.ec_transfer_config is not None, UNTESTED),
    Feature("vLLM's weight offloading", _own_offloading, "Sluice moves layers itself"),
    Feature(
        "weight transfer", lambda c: c.weight_transfer_config is not None, "weights would change behind the sidecar"
    ),
    Feature("multimodal models", lambda c: bool(c.model_config.is_multimodal_model), UNTESTED),
    Feature("pooling, encoder-decoder or diffusion models", _other_runner, UNTESTED),
    Feature("other --worker-cls or --scheduler-cls", _custom_classes, "Sluice uses both"),
    Feature(
        "an engine core in the same process as its client",
        lambda c: os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0",
        "it has no loop that can be held; unset VLLM_ENABLE_V1_MULTIPROCESSING",
    ),
)
"""All rows; what no row shows is supported as far as a tested version has it."""


def _heads_differ(text: Any) -> bool:
    groups = getattr(text, "num_key_value_heads", None)
    return groups is not None and groups != text.num_attention_heads


def check_features(config: Any) -> None:
    """Raises `SluiceRefused` that names every refused feature that this configuration uses."""
    found = [feature for feature in FEATURES if feature.refused is not None and feature.used(config)]
    if found:
        reasons = "; ".join(f"{feature.name} ({feature.refused})" for feature in found)
        raise SluiceRefused(f"not supported while Sluice owns this engine's memory: {reasons}")


def adopt(config: Any) -> Any:
    """Checks a configuration and makes its engine use Sluice's worker and scheduler."""
    check_features(config)
    config.parallel_config.worker_cls = WORKER_CLASS
    config.scheduler_config.scheduler_cls = SCHEDULER_CLASSES[bool(config.scheduler_config.async_scheduling)]
    return config

"""vLLM's worker whose weights and KV the sidecar owns (`--worker-cls`)."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.logger import init_logger
from vllm.platforms import current_platform

from sluice_vllm.features import check_features
from sluice_vllm.memory import EngineMemory

logger = init_logger("vllm.sluice")

FRACTION_VARIABLE = "SLUICE_MEMORY_FRACTION"
"""Environment variable with the part of the GPU that torch's allocator may take, as 0.08."""


def _base() -> type:
    """The worker class of this platform."""
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    return Worker


class SluiceWorker(_base()):  # type: ignore[misc]
    """The platform's worker; it neither trusts nor asserts free memory, since neighbours use the device too."""

    def __init__(self, vllm_config: Any, local_rank: int, rank: int, *args: Any, **kwargs: Any) -> None:
        check_features(vllm_config)
        self._memory = EngineMemory.connect(rank, vllm_config.parallel_config.world_size)
        # With an explicit size the CPU's worker does not compare free memory with a fraction of all memory.
        vllm_config.cache_config.kv_cache_memory_bytes = self._memory.kv_bytes
        super().__init__(vllm_config, local_rank, rank, *args, **kwargs)

    def init_device(self) -> None:
        """As vLLM's; then torch's own memory is capped and the addresses are reserved."""
        super().init_device()
        cap_torch_memory(self.device)
        self._memory.start(self.device)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """As vLLM's; after `process_weights_after_loading` the weights are final."""
        super().load_model(load_dummy_weights=load_dummy_weights)
        self._memory.loaded()

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """The bytes of the KV range. The profiling run is kept (it compiles the model), its readings are not used."""
        if not current_platform.is_cpu():
            with set_current_vllm_config(self.vllm_config):
                self.model_runner.profile_run(randomize_inputs=self.randomize_dummy_inputs)
        elif self._should_warm_up_model():
            self.model_runner.warming_up_model()
        return self._memory.kv_bytes

    def execute_model(self, scheduler_output: Any) -> Any:
        """As vLLM's, as one pass that changes of mappings wait for."""
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens == 0:
            return super().execute_model(scheduler_output)
        with self._memory.passes.one(tokens, len(scheduler_output.num_scheduled_tokens)):
            return super().execute_model(scheduler_output)


def cap_torch_memory(device: torch.device) -> None:
    """Caps what torch takes in addition to the sidecar's memory, so that excess fails this engine and no neighbour."""
    fraction = os.environ.get(FRACTION_VARIABLE)
    if fraction and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(float(fraction), device)
        logger.info("sluice: torch may take %s of the GPU", fraction)

"""The places where vLLM has no official entry point: few patches, each with a name and a reason.

Each patch first checks that what it replaces has the parameters that it knows; otherwise the plugin refuses to start.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from typing import Any, Literal

from sluice_vllm.errors import SluiceRefused


class Patch(ABC):
    """One attribute of vLLM that is replaced."""

    name: str
    why: str
    module: str
    """Module in which the attribute is defined."""
    attribute: str
    """Name of a function, or `Class.method`."""
    parameters: tuple[str, ...]
    """Parameters that it must have, in order."""
    platform: Literal["cpu", "gpu", "both"] = "both"
    importers: tuple[str, ...] = ()
    """Modules that imported the function by name, which use their own reference."""

    def check(self) -> None:
        """Raises `SluiceRefused` if the attribute is missing or has other parameters."""
        try:
            found = tuple(inspect.signature(self._original()).parameters)
        except (ImportError, AttributeError) as error:
            raise SluiceRefused(f"patch {self.name}: {self.module}.{self.attribute} is missing: {error}") from error
        if found != self.parameters:
            raise SluiceRefused(
                f"patch {self.name}: {self.module}.{self.attribute} has the parameters {found}, not {self.parameters}"
            )

    def apply(self) -> None:
        """Replaces the attribute where it is defined, and in modules that imported it already."""
        original = self._original()
        replacement = self.replacement(original)
        holder, attribute = self._holder()
        setattr(holder, attribute, replacement)
        for name in self.importers:
            module = sys.modules.get(name)
            if module is not None and getattr(module, self.attribute, None) is original:
                setattr(module, self.attribute, replacement)

    @abstractmethod
    def replacement(self, original: Any) -> Any:
        """What comes in the place of the original."""

    def _holder(self) -> tuple[Any, str]:
        holder: Any = importlib.import_module(self.module)
        *path, attribute = self.attribute.split(".")
        for name in path:
            holder = getattr(holder, name)
        return holder, attribute

    def _original(self) -> Any:
        holder, attribute = self._holder()
        return getattr(holder, attribute)


class EngineConfig(Patch):
    """Refuses features by name and sets `worker_cls` and `scheduler_cls`, which are official."""

    name = "engine-config"
    why = "no entry point sees the whole configuration before the engine starts"
    module = "vllm.engine.arg_utils"
    attribute = "EngineArgs.create_engine_config"
    parameters = ("self", "usage_context", "headless")

    def replacement(self, original: Any) -> Any:
        """The original, then Sluice's checks and classes."""

        def create_engine_config(args: Any, *more: Any, **named: Any) -> Any:
            from sluice_vllm.features import adopt

            return adopt(original(args, *more, **named))

        return create_engine_config


class CreateOffloader(Patch):
    """Gives vLLM an offloader that keeps decoder layers in the sidecar's memory."""

    name = "create-offloader"
    why = "the factory of offloaders is closed: it knows vLLM's own only"
    module = "vllm.model_executor.offloader.base"
    attribute = "create_offloader"
    parameters = ("offload_config",)
    importers = (
        "vllm.model_executor.offloader",
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.worker.gpu.model_runner",
    )

    def replacement(self, original: Any) -> Any:
        """Sluice's offloader, whatever the configuration says (features refuse vLLM's own)."""

        def create_offloader(offload_config: Any) -> Any:
            from sluice_vllm.memory import EngineMemory

            return EngineMemory.current().offloader()

        return create_offloader

    def apply(self) -> None:
        """The package exports the function too, and runners that are imported later take it from there."""
        importlib.import_module("vllm.model_executor.offloader")
        super().apply()


class AllocateKvCache(Patch):
    """Makes the KV cache of views of a reserved range."""

    name = "allocate-kv-cache"
    why = "vLLM allocates and zeroes the whole KV cache at once"
    module = "vllm.v1.worker.utils"
    attribute = "allocate_kv_cache"
    parameters = ("kv_cache_config", "device", "layout", "kernel_block_sizes")
    importers = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.attn_utils")

    def replacement(self, original: Any) -> Any:
        """The KV range of this process's worker."""

        def allocate_kv_cache(kv_cache_config: Any, device: Any, layout: Any, kernel_block_sizes: Any = None) -> Any:
            from sluice_vllm.memory import EngineMemory

            return EngineMemory.current().allocate_kv_cache(kv_cache_config, device, layout, kernel_block_sizes)

        return allocate_kv_cache


class RequestMemory(Patch):
    """Lets an engine start while neighbours use the GPU."""

    name = "request-memory"
    why = "vLLM refuses to start unless a fraction of the GPU is free, which neighbours use"
    module = "vllm.v1.worker.utils"
    attribute = "request_memory"
    parameters = ("init_snapshot", "cache_config", "external_weight_memory")
    platform = "gpu"
    importers = ("vllm.v1.worker.gpu_worker",)

    def replacement(self, original: Any) -> Any:
        """What vLLM would request, without comparing it with the free memory."""

        def request_memory(init_snapshot: Any, cache_config: Any, external_weight_memory: int = 0) -> int:
            return int(init_snapshot.total_memory * cache_config.gpu_memory_utilization)

        return request_memory


class HasWork(Patch):
    """Wakes an idle engine core for an order of the sidecar."""

    name = "has-work"
    why = "the busy loop of an idle core waits for requests only"
    module = "vllm.v1.engine.core"
    attribute = "EngineCoreProc.has_work"
    parameters = ("self",)

    def replacement(self, original: Any) -> Any:
        """The gate's answer."""

        def has_work(engine: Any) -> bool:
            return bool(engine.scheduler.core_gate.has_work(engine, original))

        return has_work


class EngineStep(Patch):
    """Holds the engine core between two steps."""

    name = "engine-step"
    why = "vLLM's pause is visible to users and theirs to undo"
    module = "vllm.v1.engine.core"
    attribute = "EngineCoreProc._process_engine_step"
    parameters = ("self",)

    def replacement(self, original: Any) -> Any:
        """A step, or what the sidecar orders instead."""

        def _process_engine_step(engine: Any) -> bool:
            return bool(engine.scheduler.core_gate.step(engine, original))

        return _process_engine_step


PATCHES: tuple[type[Patch], ...] = (
    EngineConfig,
    CreateOffloader,
    AllocateKvCache,
    RequestMemory,
    HasWork,
    EngineStep,
)
"""All of them; a test fails when the set changes."""

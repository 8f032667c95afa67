"""vLLM's KV cache as views of the reserved KV range, which the sidecar backs by extents."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.utils import create_kv_cache_views

from sluice_vllm.errors import SluiceRefused


class KvLayout:
    """Where block `b` of layer `l` lies: `l * layer_stride + b * block_stride` bytes into the KV range."""

    def __init__(self, config: KVCacheConfig) -> None:
        """Raises `SluiceRefused` for a cache that is more than one group of attention layers."""
        if len(config.kv_cache_groups) != 1 or len(config.kv_cache_tensors) != 1:
            raise SluiceRefused(
                f"a KV cache of {len(config.kv_cache_groups)} groups and {len(config.kv_cache_tensors)} tensors is "
                "not supported, one of each is"
            )
        self.tensor = config.kv_cache_tensors[0]
        self.spec = config.kv_cache_groups[0].kv_cache_spec
        self.blocks = config.num_blocks
        if self.tensor.offset or self.tensor.host_resident or not self.spec.has_layer_views:
            raise SluiceRefused("a KV cache with offsets, in host memory or without a view per layer is not supported")

    def message(self) -> dict[str, Any]:
        """The message of the worker's link."""
        return {
            "type": "kv_layout",
            "layers": len(self.tensor.layers),
            "blocks": self.blocks,
            "block_bytes": self.spec.page_size_bytes,
            "layer_stride_bytes": self.tensor.layer_stride,
            "block_stride_bytes": self.tensor.block_stride,
            "block_tokens": self.spec.block_size,
        }

    def views(self, buffer: torch.Tensor, layout: Any, kernel_block_sizes: list[int] | None) -> dict[str, torch.Tensor]:
        """One tensor per layer over the buffer, as vLLM's `allocate_kv_cache` makes them."""
        views = create_kv_cache_views(
            buffer,
            self.spec,
            self.blocks,
            layout,
            self.tensor,
            kernel_block_size=kernel_block_sizes[0] if kernel_block_sizes else None,
        )
        return dict(zip(self.tensor.layers, views))

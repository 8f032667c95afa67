"""Decoder layers whose parameters lie in ranges that the sidecar backs, by vLLM's interface for offloading."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.offloader.base import BaseOffloader

from sluice_vllm.errors import SluiceRefused
from sluice_vllm.link import WorkerLink
from sluice_vllm.passes import Passes
from sluice_vllm.tensors import bytes_at

ALIGN_BYTES = 64
"""Every parameter begins at a multiple of this, as torch's own allocator places them."""


@dataclass
class _Place:
    """Where one parameter of a layer must lie."""

    address: int
    size: int


class LayerRange:
    """The range of one decoder layer and the parameters in it."""

    def __init__(self, layer: int, address: int, size: int, device: torch.device) -> None:
        self._layer = layer
        self._address = address
        self._bytes = bytes_at(address, size, device)
        self._places: dict[str, _Place] = {}
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes from the beginning of the range to the end of its last parameter."""
        return self._used

    def take(self, module: nn.Module) -> None:
        """Moves the parameters of a layer into the range. Raises `SluiceRefused` if they do not fit."""
        for name, parameter in module.named_parameters():
            if parameter.numel():
                self._take_one(name, parameter)

    def check(self, module: nn.Module) -> None:
        """Raises `SluiceRefused` if a parameter does not lie where it was put."""
        for name, parameter in module.named_parameters():
            if not parameter.numel():
                continue
            place = self._places.get(name)
            data = parameter.data
            size = data.numel() * data.element_size()
            if place is None or data.data_ptr() != place.address or size != place.size:
                raise SluiceRefused(
                    f"parameter {name} of layer {self._layer} was repacked after loading: quantisation or kernels "
                    "that repack weights are not supported while Sluice owns the memory"
                )

    def _take_one(self, name: str, parameter: nn.Parameter) -> None:
        data = parameter.data
        begin = -(-self._used // ALIGN_BYTES) * ALIGN_BYTES
        size = data.numel() * data.element_size()
        if begin + size > self._bytes.numel():
            raise SluiceRefused(
                f"layer {self._layer} does not fit its range of {self._bytes.numel()} bytes at parameter {name}"
            )
        # Strides are kept: some layers make transposed parameters.
        if not _is_dense(data):
            raise SluiceRefused(f"parameter {name} of layer {self._layer} is not dense in memory")
        flat = self._bytes[begin : begin + size].view(data.dtype)
        home = flat.as_strided(data.shape, data.stride())
        home.copy_(data)
        parameter.data = home
        self._places[name] = _Place(self._address + begin, size)
        self._used = begin + size


def _is_dense(data: torch.Tensor) -> bool:
    """Whether a tensor covers as many places as it has elements."""
    return sum((n - 1) * stride for n, stride in zip(data.shape, data.stride())) + 1 == data.numel()


class SluiceOffloader(BaseOffloader):
    """In the place of vLLM's offloaders: `make_layers` of every model hands its decoder layers over, one by one."""

    def __init__(self, link: WorkerLink, passes: Passes, layers: int, device: torch.device) -> None:
        self._link = link
        self._passes = passes
        self._expected = layers
        self._device = device
        self._ranges: list[LayerRange] = []
        self._modules: list[nn.Module] = []

    def use_device(self, device: torch.device) -> None:
        """The device of the ranges, which torch chooses after the offloader exists."""
        assert not self._modules, "the device is known before layers are made"
        self._device = device

    def wrap_modules(self, modules_generator: Generator[nn.Module, None, None], prefix: str = "") -> list[nn.Module]:
        """Moves each layer into its range before the next one is made: one at most lies outside."""
        if self._modules:
            raise SluiceRefused("the model makes a second stack of layers; only one decoder is supported")
        for module in modules_generator:
            if len(self._modules) == self._expected:
                raise SluiceRefused(f"the model has more than the {self._expected} layers that the sidecar expects")
            self._take(len(self._modules), module)
            self._modules.append(module)
        if len(self._modules) != self._expected:
            raise SluiceRefused(f"the model has {len(self._modules)} layers, the sidecar expects {self._expected}")
        return self._modules

    def check_loaded(self) -> list[int]:
        """Checks that all parameters lie in their ranges and returns the bytes used of each range."""
        if not self._modules:
            raise SluiceRefused("the model makes its layers without make_layers; it is not supported")
        for place, module in zip(self._ranges, self._modules):
            place.check(module)
        return [place.used_bytes for place in self._ranges]

    def _wait_for_layer(self, layer_idx: int) -> None:
        self._passes.before_layer(layer_idx)

    def _start_prefetch(self, layer_idx: int) -> None:
        self._passes.after_layer(layer_idx)

    def _take(self, layer: int, module: nn.Module) -> None:
        for part in module.modules():
            if isinstance(part, LinearBase):
                # Read by vLLM's CPU backend only: oneDNN would keep packed copies of weights.
                part._cpu_skip_gemm_dispatch = True
        place = LayerRange(layer, *self._link.layer_range(layer), self._device)
        place.take(module)
        self._ranges.append(place)
        _hook_forward(layer, module)


def _hook_forward(layer: int, module: nn.Module) -> None:
    """Waits before and publishes after a layer's forward, as vLLM's `PrefetchOffloader` hooks it.

    The two operators survive torch.compile: they say that they change the tensor, so nothing moves across them.
    """
    import vllm.model_executor.offloader.prefetch_ops  # noqa: F401 (registers the operators)

    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        module.forward = inner
        input_tensor = args[0] if args else kwargs.get("hidden_states")
        torch.ops.vllm.wait_prefetch(input_tensor, layer)
        output = inner(*args, **kwargs)
        torch.ops.vllm.start_prefetch(output[0] if isinstance(output, tuple) else output, layer)
        module.forward = forward
        return output

    module.forward = forward

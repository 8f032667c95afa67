"""The memory of one worker: the link, the orders for mappings, the layers and the KV."""

from __future__ import annotations

import threading
from typing import Any

import torch
import vllm
from vllm.logger import init_logger

from sluice_vllm.errors import SluiceRefused
from sluice_vllm.kv_buffer import KvLayout
from sluice_vllm.layers import SluiceOffloader
from sluice_vllm.link import WorkerLink, build_name, leave_on_failure
from sluice_vllm.passes import Passes, Turns
from sluice_vllm.tensors import bytes_at

logger = init_logger("vllm.sluice")

MAPPED_TIMEOUT_S = 60.0
"""How long a worker waits at start for the memory that the sidecar promised."""


class EngineMemory:
    """What a worker does with memory that the sidecar owns."""

    _current: EngineMemory | None = None

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._turns = Turns()
        self.passes = Passes(link, self._turns)
        self._offloader: SluiceOffloader | None = None
        self._device = torch.device("cpu")
        self._event = threading.Condition()
        self._chunks_mapped = 0
        self._zeroed = 0
        self._replies: list[dict[str, Any]] = []

    @classmethod
    def connect(cls, rank: int, ranks: int) -> EngineMemory:
        """Connects this process's worker; vLLM's patched functions find it by `current`."""
        engine = f"vllm {vllm.__version__.split('+')[0]}"
        cls._current = cls(WorkerLink.connect({"build": build_name(), "engine": engine, "rank": rank, "ranks": ranks}))
        return cls._current

    @classmethod
    def current(cls) -> EngineMemory:
        """The memory of this process's worker."""
        if cls._current is None:
            raise SluiceRefused("this worker is not Sluice's: --worker-cls is taken by something else")
        return cls._current

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV range: the addresses, of which a part has memory."""
        return self._link.setup["kv_chunks"] * self._link.setup["chunk_bytes"]

    def offloader(self) -> SluiceOffloader:
        """The offloader that vLLM asks for when it makes its model runner."""
        if self._offloader is None:
            layers = len(self._link.setup["layer_chunks"])
            self._offloader = SluiceOffloader(self._link, self.passes, layers, self._device)
        return self._offloader

    def start(self, device: torch.device) -> None:
        """Reserves the addresses on the device that torch chose, and waits for the memory of all layers."""
        self._check_device(device)
        self._device = device
        self.offloader().use_device(device)
        self._link.reserve()
        threading.Thread(target=self._serve, name="sluice-worker-link", daemon=True).start()
        expected = sum(self._link.setup["layer_chunks"])
        self._await(lambda: self._chunks_mapped >= expected, f"{expected} chunks of layers")

    def loaded(self) -> None:
        """Says that the weights are final, and waits until the sidecar has its master copy."""
        used = self.offloader().check_loaded()
        self._link.send({"type": "loaded", "layer_bytes": used})
        self._reply("captured")
        logger.info("sluice: %d layers with %.1f MiB lie in the sidecar's memory", len(used), sum(used) / 2**20)

    def allocate_kv_cache(
        self, config: Any, device: torch.device, layout: Any, kernel_block_sizes: list[int] | None = None
    ) -> dict[str, torch.Tensor]:
        """In the place of vLLM's function: views of the KV range, of which the first extents have memory."""
        kv = KvLayout(config)
        zeroed = self._zeroed
        self._link.send(kv.message())
        accepted = self._reply("kv_accepted")
        self._await(lambda: self._zeroed > zeroed, "the memory of the first extents")
        address, size = self._link.kv_range()
        if kv.tensor.size > size:
            raise SluiceRefused(f"a KV cache of {kv.tensor.size} bytes does not fit its range of {size} bytes")
        logger.info("sluice: KV of %d blocks in %d extents", kv.blocks, accepted["extents"])
        buffer = bytes_at(address, size, device).view(torch.int8)[: kv.tensor.size]
        return kv.views(buffer, layout, kernel_block_sizes)

    # --- orders, on the link's thread

    @leave_on_failure
    def _serve(self) -> None:
        while True:
            message = self._link.receive()
            if message is not None:
                self._carry_out(message)

    def _carry_out(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("remap", "zero"):
            self._change(message)
        elif kind == "moving":
            self._move(message)
        elif kind == "bye":
            raise RuntimeError("the sidecar ended the link")
        else:
            with self._event:
                self._replies.append(message)
                self._event.notify_all()

    def _move(self, message: dict[str, Any]) -> None:
        if message["layers"] and self._device.type == "cuda":
            # The host publishes `done` before a GPU has read the weights, and CUDA graphs do not call the host.
            text = "layers cannot move on a GPU yet: it needs a kernel that waits and publishes"
            self._link.send({"type": "refused", "id": message["id"], "message": text})
            return
        with self._turns.change_turn():
            self.passes.set_moving(message["layers"], message["first_pass"])
        self._link.send({"type": "applied", "id": message["id"]})

    def _change(self, message: dict[str, Any]) -> None:
        with self._turns.change_turn():
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            applied = self._link.apply(message["id"])
        if not applied:
            return
        with self._event:
            if message["type"] == "remap":
                self._chunks_mapped += message["maps"]
            else:
                self._zeroed += 1
            self._event.notify_all()

    # --- waiting at start, on the worker's thread

    def _await(self, condition: Any, what: str) -> None:
        with self._event:
            if not self._event.wait_for(condition, MAPPED_TIMEOUT_S):
                raise SluiceRefused(f"the sidecar did not give {what} in {MAPPED_TIMEOUT_S:.0f} s")

    def _reply(self, kind: str) -> dict[str, Any]:
        with self._event:
            if not self._event.wait_for(lambda: bool(self._replies), MAPPED_TIMEOUT_S):
                raise SluiceRefused(f"the sidecar did not answer {kind} in {MAPPED_TIMEOUT_S:.0f} s")
            reply = self._replies.pop(0)
        if reply["type"] == "setup_refused":
            raise SluiceRefused(f"the sidecar refused this engine: {reply['message']}")
        if reply["type"] != kind:
            raise RuntimeError(f"the sidecar answered {reply['type']} instead of {kind}")
        return reply

    def _check_device(self, device: torch.device) -> None:
        expected = "cuda" if self._link.setup["device"] == "cuda" else "cpu"
        if device.type != expected:
            raise SluiceRefused(f"the sidecar's memory is on {expected}, this engine runs on {device.type}")

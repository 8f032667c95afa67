"""A worker and a scheduler link inside vLLM's own processes, over memory of the process: vLLM without a sidecar.

The entry point `register` stands in for the plugin's: it installs the plugin and replaces the two links.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
from typing import Any

CHUNK = 32768


class LocalWorkerLink:
    """Layers and KV lie in anonymous memory; every order that a sidecar gives at start comes at once."""

    def __init__(self) -> None:
        layers = int(os.environ["SLUICE_TEST_LAYERS"])
        self.setup = {
            "device": "host",
            "device_uuid": None,
            "chunk_bytes": CHUNK,
            "capacity_chunks": 1 << 20,
            "layer_chunks": [int(os.environ["SLUICE_TEST_LAYER_CHUNKS"])] * layers,
            "kv_chunks": int(os.environ["SLUICE_TEST_KV_CHUNKS"]),
        }
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.number = 0

    @classmethod
    def connect(cls, hello: dict[str, Any]) -> LocalWorkerLink:
        return cls()

    def reserve(self) -> None:
        chunks = sum(self.setup["layer_chunks"]) + self.setup["kv_chunks"]
        self.memory = mmap.mmap(-1, chunks * CHUNK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.messages.put({"type": "remap", "id": 1, "maps": sum(self.setup["layer_chunks"]), "unmaps": 0})

    def layer_range(self, layer: int) -> tuple[int, int]:
        begin = sum(self.setup["layer_chunks"][:layer])
        return self.address + begin * CHUNK, self.setup["layer_chunks"][layer] * CHUNK

    def kv_range(self) -> tuple[int, int]:
        begin = sum(self.setup["layer_chunks"])
        return self.address + begin * CHUNK, self.setup["kv_chunks"] * CHUNK

    def receive(self) -> dict[str, Any] | None:
        return self.messages.get()

    def send(self, message: dict[str, Any]) -> None:
        print("worker sends", str(message)[:300], flush=True)
        if message["type"] == "loaded":
            self.messages.put({"type": "captured"})
        if message["type"] == "kv_layout":
            self.messages.put({"type": "kv_accepted", "extent_blocks": 1, "extents": message["blocks"]})
            self.messages.put({"type": "zero", "id": 2, "positions": 1})

    def apply(self, order: int) -> bool:
        return True

    def begin_pass(self) -> int:
        self.number += 1
        return self.number

    def end_pass(self, *_: Any) -> None:
        pass

    def wait_ready(self, *_: Any) -> None:
        pass

    def publish_done(self, *_: Any) -> None:
        pass


class LocalSchedulerLink:
    """Grants the first extents of the pool and gives no orders."""

    def __init__(self, hello: dict[str, Any]) -> None:
        print("scheduler says", hello, flush=True)
        self.setup = {"extent_blocks": 1, "extents": hello["blocks"], "granted": list(range(24))}
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()

    @classmethod
    def connect(cls, hello: dict[str, Any]) -> LocalSchedulerLink:
        return cls(hello)

    def receive(self) -> dict[str, Any] | None:
        return self.orders.get()

    def send(self, message: dict[str, Any]) -> None:
        print("scheduler sends", str(message)[:300], flush=True)


def register() -> None:
    """The plugin with the links of this module."""
    from sluice_vllm import link

    link.WorkerLink = LocalWorkerLink
    link.SchedulerLink = LocalSchedulerLink
    from sluice_vllm.plugin import install

    install()

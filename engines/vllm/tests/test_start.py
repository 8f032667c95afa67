"""Starting next to neighbours that borrow and give back memory: no reading of free memory decides."""

from __future__ import annotations

import os
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.needs import needs_vllm

needs_vllm()

import torch  # noqa: E402
from vllm.v1.worker import cpu_worker  # noqa: E402
from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: E402

from sluice_vllm.worker import FRACTION_VARIABLE, SluiceWorker, cap_torch_memory  # noqa: E402

GIB = 1 << 30
READINGS = [100 * GIB, 3 * GIB, 80 * GIB, 0, 41 * GIB]
"""Free memory as it rises and falls while neighbours lend and borrow."""


def worker(cls: type) -> Any:
    """A worker of vLLM before its device exists, with an explicit KV of 8 GiB."""
    under_test = cls.__new__(cls)
    under_test.cache_config = SimpleNamespace(kv_cache_memory_bytes=8 * GIB)
    under_test.compilation_config = SimpleNamespace(mode=0)
    under_test.model_runner = SimpleNamespace(warming_up_model=lambda: None)
    under_test._memory = SimpleNamespace(kv_bytes=8 * GIB)
    return under_test


def readings() -> Any:
    nodes = [SimpleNamespace(available_memory=free, total_memory=128 * GIB) for free in READINGS]
    return mock.patch.object(cpu_worker, "get_memory_node_info", side_effect=nodes)


class FreeMemory(unittest.TestCase):
    def test_the_size_of_kv_is_what_the_sidecar_reserved_whatever_is_free(self) -> None:
        with readings() as read:
            for _ in READINGS:
                self.assertEqual(worker(SluiceWorker).determine_available_memory(), 8 * GIB)
            read.assert_not_called()

    def test_vllm_itself_refuses_where_less_is_free(self) -> None:
        refused = 0
        with readings():
            for _ in READINGS:
                try:
                    worker(CPUWorker).determine_available_memory()
                except ValueError:
                    refused += 1
        self.assertEqual(refused, 2)


class TorchMemory(unittest.TestCase):
    def test_it_is_capped_by_the_environment_on_a_gpu_only(self) -> None:
        cuda = torch.device("cuda:0")
        with mock.patch.object(torch.cuda, "set_per_process_memory_fraction") as cap:
            cap_torch_memory(cuda)
            with mock.patch.dict(os.environ, {FRACTION_VARIABLE: "0.08"}):
                cap_torch_memory(torch.device("cpu"))
                cap.assert_not_called()
                cap_torch_memory(cuda)
        cap.assert_called_once_with(0.08, cuda)


if __name__ == "__main__":
    unittest.main()

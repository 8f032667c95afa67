"""What a worker does with memory that it does not own: turns, waits, layers in ranges, views of the KV range."""

from __future__ import annotations

import ctypes
import mmap
import threading
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.needs import needs_vllm

needs_vllm()

import torch  # noqa: E402
from torch import nn  # noqa: E402
from vllm.model_executor.layers.linear import LinearBase  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor  # noqa: E402

from sluice_vllm.errors import SluiceRefused  # noqa: E402
from sluice_vllm.kv_buffer import KvLayout  # noqa: E402
from sluice_vllm.layers import LayerRange, SluiceOffloader  # noqa: E402
from sluice_vllm.memory import EngineMemory  # noqa: E402
from sluice_vllm.passes import Passes, Turns  # noqa: E402
from sluice_vllm.tensors import bytes_at  # noqa: E402
from tests.fakes import FakeWorkerLink  # noqa: E402

CPU = torch.device("cpu")


class Memory:
    """Pages of this process, as the library reserves them."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.size = size


class TakingTurns(unittest.TestCase):
    def test_a_change_that_waits_comes_before_the_next_pass(self) -> None:
        turns, order = Turns(), []
        in_pass, changed = threading.Event(), threading.Event()

        def change() -> None:
            in_pass.wait()
            with turns.change_turn():
                order.append("change")
            changed.set()

        threading.Thread(target=change, daemon=True).start()
        with turns.pass_turn():
            in_pass.set()
            while not turns._changes_waiting:
                pass
            order.append("pass")
        # The thread of the passes goes on at once, as vLLM's does.
        with turns.pass_turn():
            order.append("pass")
        self.assertTrue(changed.wait(20))
        self.assertEqual(order, ["pass", "change", "pass"])

    def test_many_changes_and_passes_never_overlap(self) -> None:
        turns, busy, overlaps = Turns(), [], []

        def use(turn: Any) -> None:
            for _ in range(300):
                with turn():
                    overlaps.extend(busy)
                    busy.append(1)
                    busy.pop()

        threads = [threading.Thread(target=use, args=(turn,)) for turn in (turns.change_turn, turns.pass_turn)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        self.assertEqual(overlaps, [])


class WaitingForLayers(unittest.TestCase):
    def test_only_moving_layers_wait_from_their_first_pass_on(self) -> None:
        link = FakeWorkerLink()
        passes = Passes(link, Turns())
        passes.set_moving([1], first_pass=2)
        for _ in range(3):
            with passes.one(tokens=5, sequences=2):
                for layer in (0, 1):
                    passes.before_layer(layer)
                    passes.after_layer(layer)
        self.assertEqual(link.waits, [(1, 2), (1, 3)])
        self.assertEqual(link.done, link.waits)
        self.assertEqual(link.ended, [(1, 5, 2), (2, 5, 2), (3, 5, 2)])

    def test_a_warm_up_run_is_no_pass_and_waits_for_nothing(self) -> None:
        link = FakeWorkerLink()
        passes = Passes(link, Turns())
        passes.set_moving([0], first_pass=1)
        passes.before_layer(0)
        passes.after_layer(0)
        self.assertEqual((link.waits, link.done), ([], []))


class ALayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3), requires_grad=False)
        self.turned = nn.Parameter(torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, None]:
        return hidden_states @ self.weight.t(), None


class LayersInRanges(unittest.TestCase):
    def test_parameters_keep_values_and_strides_and_lie_in_the_range(self) -> None:
        memory, layer = Memory(4096), ALayer()
        before = [p.data.clone() for p in (layer.weight, layer.turned)]
        place = LayerRange(3, memory.address, memory.size, CPU)
        place.take(layer)
        self.assertEqual([layer.weight.data_ptr(), layer.turned.data_ptr()], [memory.address, memory.address + 64])
        self.assertTrue(torch.equal(layer.weight, before[0]) and torch.equal(layer.turned, before[1]))
        self.assertEqual(layer.turned.stride(), (1, 3))
        self.assertEqual(place.used_bytes, 64 + 12)
        place.check(layer)
        ctypes.memset(memory.address, 0, 4)
        layer.weight[0, 1].copy_(torch.tensor(9.0))
        self.assertEqual(layer.weight.flatten().tolist(), [0, 9, 2, 3, 4, 5])

    def test_a_repacked_parameter_is_refused_by_name(self) -> None:
        for change in (
            lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight.data.clone(), requires_grad=False)),
            lambda layer: setattr(layer, "packed", nn.Parameter(torch.ones(3), requires_grad=False)),
            lambda layer: setattr(layer.weight, "data", layer.weight.data[:1]),
        ):
            memory, layer = Memory(4096), ALayer()
            place = LayerRange(3, memory.address, memory.size, CPU)
            place.take(layer)
            change(layer)
            with self.assertRaisesRegex(SluiceRefused, "(weight|packed) of layer 3 was repacked"):
                place.check(layer)

    def test_a_layer_that_does_not_fit_is_refused(self) -> None:
        memory = Memory(4096)
        with self.assertRaisesRegex(SluiceRefused, "layer 0 does not fit its range of 70 bytes at parameter turned"):
            LayerRange(0, memory.address, 70, CPU).take(ALayer())

    def test_at_most_one_layer_lies_outside_while_layers_are_made(self) -> None:
        memories = [Memory(4096) for _ in range(3)]
        link = SimpleNamespace(layer_range=lambda layer: (memories[layer].address, memories[layer].size))
        made: list[ALayer] = []

        def layers() -> Any:
            for _ in range(3):
                inside = [layer.weight.data_ptr() == memories[i].address for i, layer in enumerate(made)]
                self.assertTrue(all(inside))
                made.append(ALayer())
                yield made[-1]

        fake = FakeWorkerLink()
        passes = Passes(fake, Turns())
        passes.set_moving([0, 1, 2], first_pass=1)
        offloader = SluiceOffloader(link, passes, 3, CPU)
        self.assertEqual(offloader.wrap_modules(layers()), made)
        self.assertEqual(offloader.check_loaded(), [76, 76, 76])
        from vllm.model_executor.offloader.base import get_offloader, set_offloader

        self.addCleanup(set_offloader, get_offloader())
        set_offloader(offloader)
        with passes.one(1, 1):
            for layer in made:
                layer(torch.ones(1, 3))
        self.assertEqual(fake.waits, [(0, 1), (1, 1), (2, 1)])
        self.assertEqual(fake.done, fake.waits)

    def test_another_number_of_layers_is_refused(self) -> None:
        memories = [Memory(4096) for _ in range(3)]
        link = SimpleNamespace(layer_range=lambda layer: (memories[layer].address, memories[layer].size))
        for layers, text in ((1, "has 1 layers"), (3, "more than the 2 layers")):
            offloader = SluiceOffloader(link, Passes(FakeWorkerLink(), Turns()), 2, CPU)
            with self.assertRaisesRegex(SluiceRefused, text):
                offloader.wrap_modules(ALayer() for _ in range(layers))
        with self.assertRaisesRegex(SluiceRefused, "without make_layers"):
            SluiceOffloader(link, Passes(FakeWorkerLink(), Turns()), 2, CPU).check_loaded()

    def test_linear_layers_keep_no_packed_copies_on_a_cpu(self) -> None:
        class Linear(LinearBase):
            def __init__(self) -> None:
                nn.Module.__init__(self)
                self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

        memory, linear = Memory(4096), Linear()
        link = SimpleNamespace(layer_range=lambda layer: (memory.address, memory.size))
        SluiceOffloader(link, Passes(FakeWorkerLink(), Turns()), 1, CPU).wrap_modules(iter([linear]))
        self.assertTrue(linear._cpu_skip_gemm_dispatch)


class Orders(unittest.TestCase):
    """Orders of the sidecar, carried out by the thread of the worker's link."""

    def started(self) -> tuple[EngineMemory, FakeWorkerLink]:
        link = FakeWorkerLink()
        memory = EngineMemory(link)
        link.orders.put({"type": "remap", "id": 1, "maps": 1, "unmaps": 0})
        link.orders.put({"type": "remap", "id": 2, "maps": 1, "unmaps": 0})
        memory.start(CPU)
        return memory, link

    def test_a_worker_starts_when_all_layers_have_memory(self) -> None:
        _, link = self.started()
        self.assertEqual(link.applied, [1, 2])

    def test_a_worker_without_memory_is_refused_in_time(self) -> None:
        memory = EngineMemory(FakeWorkerLink())
        with mock.patch("sluice_vllm.memory.MAPPED_TIMEOUT_S", 0.01):
            with self.assertRaisesRegex(SluiceRefused, "did not give 2 chunks of layers"):
                memory.start(CPU)

    def test_memory_on_another_device_is_refused(self) -> None:
        with self.assertRaisesRegex(SluiceRefused, "is on cpu, this engine runs on cuda"):
            EngineMemory(FakeWorkerLink()).start(torch.device("cuda:0"))

    def test_orders_wait_for_the_end_of_a_pass(self) -> None:
        memory, link = self.started()
        with memory.passes.one(tokens=1, sequences=1):
            link.orders.put({"type": "remap", "id": 3, "maps": 0, "unmaps": 4})
            link.orders.put({"type": "moving", "id": 4, "layers": [1], "first_pass": 2})
            while not memory._turns._changes_waiting:
                pass
            self.assertEqual((link.applied, link.sent.qsize()), ([1, 2], 0))
        self.assertEqual(link.sent.get(timeout=20), {"type": "applied", "id": 4})
        self.assertEqual(link.applied, [1, 2, 3])
        with memory.passes.one(tokens=1, sequences=1):
            memory.passes.before_layer(1)
        self.assertEqual(link.waits, [(1, 2)])

    def test_layers_do_not_move_on_a_gpu_yet(self) -> None:
        link = FakeWorkerLink()
        memory = EngineMemory(link)
        memory._device = torch.device("cuda:0")
        memory._carry_out({"type": "moving", "id": 5, "layers": [1], "first_pass": 2})
        self.assertEqual(link.sent.get(timeout=20)["type"], "refused")
        memory._carry_out({"type": "moving", "id": 6, "layers": [], "first_pass": 0})
        self.assertEqual(link.sent.get(timeout=20), {"type": "applied", "id": 6})

    def test_a_layout_that_the_sidecar_refuses_ends_the_start_with_its_text(self) -> None:
        memory, link = self.started()
        link.orders.put({"type": "setup_refused", "reason": "layout", "message": "no extent"})
        with self.assertRaisesRegex(SluiceRefused, "no extent"):
            memory._reply("kv_accepted")


class TheKvRange(unittest.TestCase):
    def spec(self) -> FullAttentionSpec:
        return FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32)

    def config(self, **changes: Any) -> KVCacheConfig:
        page = self.spec().page_size_bytes
        tensor = dict(size=2 * 5 * page, layers=["a", "b"], layer_stride=5 * page, block_stride=page) | changes
        return KVCacheConfig(5, [KVCacheTensor(**tensor)], [KVCacheGroupSpec(["a", "b"], self.spec())])

    def test_the_layout_says_where_a_block_of_a_layer_lies(self) -> None:
        page = 2 * 16 * 32 * 4
        self.assertEqual(
            KvLayout(self.config()).message(),
            {
                "type": "kv_layout",
                "layers": 2,
                "blocks": 5,
                "block_bytes": page,
                "layer_stride_bytes": 5 * page,
                "block_stride_bytes": page,
                "block_tokens": 16,
            },
        )

    def test_what_is_not_one_group_in_one_tensor_is_refused(self) -> None:
        two = self.config()
        two.kv_cache_groups.append(two.kv_cache_groups[0])
        for config in (two, self.config(offset=64), self.config(host_resident=True)):
            with self.assertRaises(SluiceRefused):
                KvLayout(config)

    def test_tensors_over_an_address_read_and_write_it(self) -> None:
        memory = Memory(4096)
        tensor = bytes_at(memory.address, 16, CPU).view(torch.int32)
        tensor.copy_(torch.tensor([1, 2, 3, 4], dtype=torch.int32))
        self.assertEqual(memory.map[:8], bytes([1, 0, 0, 0, 2, 0, 0, 0]))


if __name__ == "__main__":
    unittest.main()

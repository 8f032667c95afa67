"""Every row of the table of features, from configurations that vLLM itself makes where a CPU can."""

from __future__ import annotations

import os
import types
import unittest
from typing import Any, ClassVar
from unittest import mock

from tests.needs import needs_vllm

needs_vllm()

from sluice_vllm.errors import SluiceRefused  # noqa: E402
from sluice_vllm.features import FEATURES, SCHEDULER_CLASSES, WORKER_CLASS, adopt, check_features  # noqa: E402
from tests.pools import model_folder, vllm_config  # noqa: E402


def used(config: Any) -> set[str]:
    return {feature.name for feature in FEATURES if feature.used(config)}


BASE = {"prefix caching", "chunked prefill", "grouped-query attention"}


class Features(unittest.TestCase):
    TESTED: ClassVar[set[str]] = set()

    def row(self, name: str, config: Any, but: frozenset[str] = frozenset()) -> None:
        """The configuration shows this row, and besides what a plain one shows no other but `but`."""
        self.TESTED.add(name)
        self.assertEqual(used(config) - BASE - but, {name} - BASE)
        refused = next(feature for feature in FEATURES if feature.name == name).refused
        if refused is None:
            check_features(config)
        else:
            with self.assertRaisesRegex(SluiceRefused, name.replace("(", ".").replace(")", ".")):
                check_features(config)

    def test_a_plain_llama_is_supported(self) -> None:
        config = vllm_config()
        self.assertEqual(used(config), BASE)
        for name in BASE:
            self.row(name, config)

    def test_async_scheduling_is_supported_and_gets_its_scheduler(self) -> None:
        config = vllm_config()
        config.scheduler_config.async_scheduling = True
        self.row("async scheduling", config)
        adopt(config)
        self.assertEqual(config.scheduler_config.scheduler_cls, SCHEDULER_CLASSES[1])

    def test_a_configuration_that_is_adopted_has_the_classes_of_sluice(self) -> None:
        config = adopt(vllm_config())
        self.assertEqual(config.parallel_config.worker_cls, WORKER_CLASS)
        self.assertEqual(config.scheduler_config.scheduler_cls, SCHEDULER_CLASSES[0])
        check_features(config)

    def test_features_without_which_vllm_works_are_absent_when_switched_off(self) -> None:
        config = vllm_config(enable_prefix_caching=False, enable_chunked_prefill=False)
        self.assertEqual(used(config), {"grouped-query attention"})
        wide = vllm_config(model_folder(num_key_value_heads=2))
        self.assertNotIn("grouped-query attention", used(wide))

    def test_several_ranks_are_refused(self) -> None:
        self.row("several ranks", vllm_config(tensor_parallel_size=2))

    def test_speculative_decoding_is_refused(self) -> None:
        ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
        config = vllm_config(speculative_config=ngram)
        self.row("speculative decoding", config, but=frozenset({"async scheduling"}))

    def test_fp8_kv_is_refused(self) -> None:
        config = vllm_config()
        config.cache_config.cache_dtype = "fp8_e4m3"
        self.row("FP8 KV", config)

    def test_lora_is_refused(self) -> None:
        self.row("LoRA", vllm_config(enable_lora=True, max_lora_rank=8))

    def test_quantisation_is_refused(self) -> None:
        config = vllm_config()
        config.model_config.quantization = "awq"
        self.row("quantisation", config)

    def test_sleep_mode_is_refused(self) -> None:
        config = vllm_config()
        # A CPU's vLLM refuses it itself when it makes the configuration.
        config.model_config.enable_sleep_mode = True
        self.row("--enable-sleep-mode", config)

    def test_kv_connectors_are_refused(self) -> None:
        config = vllm_config(kv_transfer_config={"kv_connector": "ExampleConnector", "kv_role": "kv_both"})
        self.row("KV connectors", config)

    def test_expandable_segments_are_refused(self) -> None:
        with mock.patch.dict(os.environ, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}):
            self.row("expandable segments", vllm_config())

    def test_vllms_own_offloading_is_refused(self) -> None:
        self.row("vLLM's weight offloading", vllm_config(offload_group_size=2, offload_num_in_group=1))

    def test_weight_transfer_is_refused(self) -> None:
        config = vllm_config()
        config.weight_transfer_config = types.SimpleNamespace()
        self.row("weight transfer", config)

    def test_an_engine_core_in_the_clients_process_is_refused(self) -> None:
        with mock.patch.dict(os.environ, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}):
            self.row("an engine core in the same process as its client", vllm_config())

    def test_a_foreign_worker_or_scheduler_is_refused(self) -> None:
        config = vllm_config()
        config.parallel_config.worker_cls = "other.Worker"
        self.row("other --worker-cls or --scheduler-cls", config)
        config = vllm_config(scheduler_cls="other.Scheduler")
        self.row("other --worker-cls or --scheduler-cls", config)

    def test_sliding_windows_are_refused(self) -> None:
        folder = model_folder(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=64)
        self.row("sliding-window or mixed attention", vllm_config(folder))

    def test_latent_attention_is_refused(self) -> None:
        config = vllm_config()
        with mock.patch.object(type(config.model_config), "use_mla", True):
            self.row("multi-head latent attention", config)

    def test_mamba_is_refused(self) -> None:
        config = vllm_config()
        with mock.patch.object(type(config.model_config), "is_hybrid", True):
            self.row("hybrid or Mamba layers", config)

    def test_multimodal_models_are_refused(self) -> None:
        config = vllm_config()
        with mock.patch.object(type(config.model_config), "is_multimodal_model", True):
            self.row("multimodal models", config)

    def test_pooling_is_refused(self) -> None:
        config = vllm_config(runner="pooling")
        self.row("pooling, encoder-decoder or diffusion models", config)

    def test_zz_every_row_has_a_test(self) -> None:
        self.assertEqual({feature.name for feature in FEATURES}, self.TESTED)


if __name__ == "__main__":
    unittest.main()

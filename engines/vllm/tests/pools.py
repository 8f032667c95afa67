"""Real objects of vLLM for tests: a tiny Llama's configuration, schedulers and requests, without weights."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS = 16

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model_folder(**changes: Any) -> str:
    """A folder with the configuration of a small Llama, with changes; it lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="sluice-vllm-test-")
    _FOLDERS.append(folder)
    Path(folder.name, "config.json").write_text(json.dumps(LLAMA | changes))
    return folder.name


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def vllm_config(folder: str | None = None, **arguments: Any) -> Any:
    """vLLM's own configuration of an engine with these arguments."""
    defaults: dict[str, Any] = {
        "model": folder or model_folder(),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "block_size": BLOCK_TOKENS,
        "enforce_eager": True,
    }
    return EngineArgs(**(defaults | arguments)).create_engine_config()


def kv_cache_config(blocks: int) -> KVCacheConfig:
    """One group of full attention with this number of blocks."""
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0", "layer.1"], spec)]
    )


def scheduler(cls: type, blocks: int, config: Any = None, **more: Any) -> Any:
    """A scheduler of class `cls` over a real KVCacheManager with this number of blocks."""
    config = config or vllm_config()
    config.cache_config.num_gpu_blocks = blocks
    return cls(
        vllm_config=config,
        kv_cache_config=kv_cache_config(blocks),
        structured_output_manager=StructuredOutputManager(config),
        include_finished_set=False,
        log_stats=True,
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        **more,
    )


def request(name: str, prompt: list[int], max_tokens: int = 16) -> Request:
    """A request whose full blocks enter the prefix cache."""
    init_none_hash(sha256)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )


def prompt(blocks: int, seed: int) -> list[int]:
    """Tokens for this number of whole blocks, and one more token so that all of them can be hits."""
    return [3 + (seed * 131 + position) % 250 for position in range(blocks * BLOCK_TOKENS)] + [3 + seed % 250]

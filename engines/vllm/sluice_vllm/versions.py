"""Versions of vLLM with which a run of this plugin is committed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sluice_vllm.errors import SluiceRefused

ALLOW_UNTESTED_VARIABLE = "SLUICE_VLLM_ALLOW_UNTESTED"
"""Environment variable that lets another version start; `--allow-untested` of the sidecar sets it."""


@dataclass(frozen=True)
class TestedVersion:
    """A version, and the names of the patches that a committed run of each platform executed."""

    version: str
    cpu: tuple[str, ...]
    gpu: tuple[str, ...]


TESTED = (
    TestedVersion(
        "0.32.0",
        cpu=("engine-config", "create-offloader", "allocate-kv-cache", "has-work", "engine-step"),
        gpu=(),
    ),
)
"""Every entry is a version that ran; no GPU has run one yet."""


def check_version(installed: str) -> None:
    """Raises `SluiceRefused` for a version that is not in the table, unless the environment allows it."""
    release = installed.split("+")[0]
    if any(entry.version == release for entry in TESTED):
        return
    if os.environ.get(ALLOW_UNTESTED_VARIABLE) == "1":
        return
    known = ", ".join(entry.version for entry in TESTED)
    raise SluiceRefused(
        f"vLLM {installed} was not tested with Sluice (tested: {known}). "
        f"Start the sidecar with --allow-untested, or set {ALLOW_UNTESTED_VARIABLE}=1, to try it."
    )

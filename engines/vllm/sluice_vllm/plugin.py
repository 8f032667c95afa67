"""What the entry point does when a sidecar is there: checks, then patches."""

from __future__ import annotations

import vllm
from vllm.platforms import current_platform

from sluice_vllm.patches import PATCHES
from sluice_vllm.versions import check_version

_installed = False


def install() -> None:
    """Checks vLLM's version and every patch before the first one is applied; does nothing the second time.

    Raises `SluiceRefused`, which ends the start of vLLM.
    """
    global _installed
    if _installed:
        return
    check_version(vllm.__version__)
    platform = "cpu" if current_platform.is_cpu() else "gpu"
    patches = [patch() for patch in PATCHES if patch.platform in ("both", platform)]
    for patch in patches:
        patch.check()
    for patch in patches:
        patch.apply()
    _installed = True

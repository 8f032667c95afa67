"""Sluice under vLLM: the weights and the KV of an engine lie in memory that a Sluice sidecar owns.

vLLM loads `register` through the entry point group `vllm.general_plugins`. Without `SLUICE_LINK` in the environment
nothing happens: the engine is vLLM as it is installed.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

LINK_VARIABLE = "SLUICE_LINK"
"""Environment variable with the path of the sidecar's socket."""


def register() -> None:
    """Entry point of the plugin, called in every process of vLLM.

    The import is here because vLLM logs and ignores a plugin that it cannot import, and starts without it.
    """
    if not os.environ.get(LINK_VARIABLE):
        return
    from sluice_vllm.plugin import install

    install()

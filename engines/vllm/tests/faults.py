"""The plugin with a fault that a file switches on: no wait for the weights of layers that move."""

from __future__ import annotations

import os

DROP_WAITS_VARIABLE = "SLUICE_TEST_DROP_WAITS"
"""Names the file; while it exists no pass waits."""


def register() -> None:
    """Entry point of test engines, in the place of the plugin's."""
    if not os.environ.get("SLUICE_LINK"):
        return
    from sluice_vllm.passes import Passes

    waits, flag = Passes.before_layer, os.environ[DROP_WAITS_VARIABLE]

    def before_layer(self: Passes, layer: int) -> None:
        if not os.path.exists(flag):
            waits(self, layer)

    Passes.before_layer = before_layer  # type: ignore[method-assign]
    from sluice_vllm.plugin import install

    install()

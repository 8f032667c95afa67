"""Says plainly why tests are skipped."""

from __future__ import annotations

import importlib.util
import unittest


def needs_vllm() -> None:
    """Skips the module where vLLM is not installed, and says so."""
    if importlib.util.find_spec("vllm") is None:
        raise unittest.SkipTest("skipped: vLLM is not installed for this Python")

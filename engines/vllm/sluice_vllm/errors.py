"""The error by which the plugin refuses to start or to go on."""

from __future__ import annotations


class SluiceRefused(RuntimeError):
    """Something that this engine asked for is refused; the text names it and says why."""


class BudgetError(ValueError):
    """The sidecar asked for a change of the block budget that would break it."""

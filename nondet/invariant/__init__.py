"""Invariant kernels behind one switch: which operation is replaced, by what, on which device.

from nondet.invariant import invariant_kernels

with invariant_kernels(model) as switch:
    model.generate(...)
    print(switch.coverage(lambda: model(ids)))
"""

from .api import default_kernels, invariant, invariant_kernels, observed
from .coverage import Coverage, Entry
from .switch import ALL, GROUPS, active, active_groups, registered_groups

__all__ = [
    "ALL",
    "GROUPS",
    "Coverage",
    "Entry",
    "active",
    "active_groups",
    "default_kernels",
    "invariant",
    "invariant_kernels",
    "observed",
    "registered_groups",
]

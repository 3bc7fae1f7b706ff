"""Adasum: gradients that point the same way are averaged, those at right angles are added up.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), for any number of
ranks: halves are combined with halves, the lower one larger where they are not equal, as the C++
library does (adapters/exchange/adasum.h)."""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch import Tensor

_SHORTEST = math.sqrt(torch.finfo(torch.float64).tiny)


def combine(parts: Sequence[Tensor]) -> Tensor:
    """One float64 vector of all ranks' float64 vectors. The same bits on every rank."""
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    a, b = combine(parts[:middle]), combine(parts[middle:])
    both = float(torch.dot(a, b))
    return a * _share(both, float(torch.dot(a, a))) + b * _share(both, float(torch.dot(b, b)))


def _share(both: float, own: float) -> float:
    """How much is left of a vector; all of it where it is too short to divide by."""
    return 1.0 if own < _SHORTEST else 1.0 - both / (2 * own)

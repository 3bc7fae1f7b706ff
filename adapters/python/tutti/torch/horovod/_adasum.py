"""Adasum: parallel gradients are averaged, and orthogonal ones are added up.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), for any number of
ranks. The ranks are halved recursively and the halves are combined. If the halves differ, the lower
one is larger, as in the C++ library (adapters/exchange/adasum.h)."""

from __future__ import annotations

import math
from typing import Sequence

import torch
from torch import Tensor

_SHORTEST = math.sqrt(torch.finfo(torch.float64).tiny)


def combine(parts: Sequence[Tensor]) -> Tensor:
    """Combines all ranks' float64 vectors into one float64 vector, with the same bits on every
    rank."""
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    a, b = combine(parts[:middle]), combine(parts[middle:])
    both = float(torch.dot(a, b))
    return a * _share(both, float(torch.dot(a, a))) + b * _share(both, float(torch.dot(b, b)))


def _share(both: float, own: float) -> float:
    """Returns the factor of a vector. It is 1 if the vector is too short to divide by."""
    return 1.0 if own < _SHORTEST else 1.0 - both / (2 * own)

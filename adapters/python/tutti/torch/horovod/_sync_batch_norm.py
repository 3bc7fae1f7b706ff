"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ._blocking import allreduce
from ._operations import Sum
from ._world import size


class SyncBatchNorm(_BatchNorm):
    """Normalizes by the means and variances of all ranks' inputs [n, channels, ...], also on the
    CPU. In eval mode, or with one rank, it is torch's batch norm. All ranks call it in one
    order."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or size() == 1:
            return super().forward(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        wide = input.double() if input.dtype == torch.float64 else input.float()
        own = wide.new_tensor([input.numel() // max(input.shape[1], 1)])
        # There are two passes, because the squares of large means would make the variance
        # inaccurate.
        sums = allreduce(torch.cat([wide.sum(dims), own]), op=Sum)
        count = sums[-1].detach()
        if count <= 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(input.shape)} on all ranks together"
            )
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        variance = allreduce((centred * centred).sum(dims), op=Sum) / count
        self._remember(mean.detach(), variance.detach(), float(count))
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor, count: float) -> None:
        if not self.training or not self.track_running_stats or self.running_mean is None:
            return
        with torch.no_grad():
            tracked: Any = self.num_batches_tracked
            tracked += 1
            share = self.momentum
            if share is None:
                share = 1.0 / float(tracked)
            unbiased = variance * (count / (count - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)  # type: ignore

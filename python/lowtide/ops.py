"""Operators. Each is also a torch op, ``torch.ops.lowtide.<name>``."""

from __future__ import annotations

import torch

from lowtide import _core


def ms_deform_attn(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """Multi-scale deformable attention (Zhu et al., ICLR 2021, equation 3) on the CPU, fused forward and backward.

    value: (bs, N, heads, D), float32, float64, bfloat16 or float16.
    spatial_shapes: (L, 2) int64, (height, width) of each level; their areas add up to N.
    level_start_index: (L,) int64, the token at which each level begins.
    sampling_locations: (bs, Q, heads, L, P, 2) as (x, y), fractions of the level's size; float32, float64 for float64.
    attention_weights: (bs, Q, heads, L, P), used as they are; of the locations' dtype.

    Returns (bs, Q, heads * D) of value's dtype. Gradients flow to value, sampling_locations and attention_weights.
    Bitwise repeatable, also from one thread count to another. Raises UsageError: LT0401 for a shape, LT0402 a dtype,
    LT0403 the level tables, LT0404 another device, LT0405 double backward, LT0406 forward-mode gradients.
    """
    return _core.ms_deform_attn(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)

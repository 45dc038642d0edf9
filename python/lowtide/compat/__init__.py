"""Lowtide in the place of other packages, for programs that ask for those. Nothing happens by importing this.

    lowtide.compat.fairscale.install()              fairscale.nn.checkpoint, where fairscale is not installed
    lowtide.compat.enable_cpu_ms_deform_attn()      mmcv's and transformers' deformable attention on the CPU
"""

from lowtide.compat import fairscale
from lowtide.compat._ms_deform_attn import enable_cpu_ms_deform_attn

__all__ = ["enable_cpu_ms_deform_attn", "fairscale"]

from __future__ import annotations

from typing import Callable

import torch

from lowtide import _core
from lowtide._checkpoint import checkpoint
from lowtide.errors import UsageError

FactorisedComparison = _core.FactorisedComparison


def _bytes_of(size: int | str) -> int:
    return _core.parse_bytes(size) if isinstance(size, str) else int(size)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    class_weights: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    chunk: int | str = "64MiB",
    vocabulary_chunk: int | None = None,
    gradients_in_forward: bool = True,
) -> torch.Tensor:
    """``F.cross_entropy(F.linear(hidden, weight, bias), target, ...)`` without the logits, value and gradients exact.

    Logits exist for a chunk of tokens at a time. Where a gradient will be wanted it is made in the same pass, so that
    the layer's three matrix products are done once each, as by the plain pair; backward only scales.

    hidden: (..., D); weight: (V, D); bias, class_weights: (V). float32, bfloat16, float16 or float64, mixed as you like;
        computed in float32 (float64 where an input is), gradients rounded once to their input's dtype. Autocast changes
        nothing here.
    target: (...) int64 classes, or (..., V) probabilities.
    ignore_index: tokens with this target count for nothing, and are left out of the products.
    label_smoothing: in [0, 1], the share of the target that is spread over all classes.
    z_loss: adds z_loss * logsumexp(logits) ** 2 to each token's loss (PaLM, 2022).
    reduction: "mean" (over the targets' class weights, as cross_entropy), "sum" or "none".
    chunk: bytes of logits that exist at a time.
    vocabulary_chunk: classes of a chunk; None: all, while a few rows fit ``chunk``. Fewer need a fourth product.
    gradients_in_forward: off, backward makes the logits again: four products, and no gradient lies between forward and
        backward. So it is always with reduction="none".

    Returns float32 (float64 where an input is). Raises UsageError: LT0430 shapes, LT0431 dtypes or device, LT0432 a
    target out of range, LT0433 options, LT0434 double backward, LT0435 tensors of torch.func or subclasses.
    """
    if reduction not in ("none", "mean", "sum"):
        raise UsageError(
            f'cannot run linear_cross_entropy: reduction must be "none", "mean" or "sum", not {reduction!r} [LT0433]',
            "LT0433")
    return _core.linear_cross_entropy(
        hidden, weight, target, bias, class_weights, ignore_index, label_smoothing, z_loss, reduction,
        _bytes_of(chunk), vocabulary_chunk or 0, gradients_in_forward)


def checkpointed_mlp(
    mlp: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    *,
    chunk_tokens: int | None = None,
    chunk: int | str = "64MiB",
    offload: str | None = None,
) -> torch.Tensor:
    """``mlp(x)`` for an MLP that treats each token alone, with its wide hidden activations there for a chunk at a time.

    Each chunk of tokens is a checkpointed region: kept for backward is x, and the forward runs once more. Gradients of
    weights are the sum over chunks. With one chunk all is bit for bit what ``lowtide.checkpoint`` gives.

    x: (..., features). mlp: linear layers, activations, norms over the features; dropout draws chunk by chunk.
    chunk_tokens: tokens of a chunk. None: as many as have hidden activations of ``chunk`` bytes, the hidden width taken
        to be the largest number of outputs among the module's linear layers.
    offload: as ``lowtide.checkpoint``'s.

    Raises UsageError (LT0436) when there are no tokens, or mlp is no module and chunk_tokens is not given, or the number
    of tokens changes.
    """
    if chunk_tokens is None:
        widths = [m.out_features for m in mlp.modules() if isinstance(m, torch.nn.Linear)] if isinstance(
            mlp, torch.nn.Module) else []
        if not widths:
            raise UsageError(
                "checkpointed_mlp: the hidden width is not known, as there is no nn.Linear to ask; give chunk_tokens "
                "[LT0436]", "LT0436")
        chunk_tokens = max(1, _bytes_of(chunk) // (max(widths) * x.element_size()))
    if chunk_tokens < 1 or x.dim() < 1 or x.numel() == 0:
        raise UsageError(
            f"checkpointed_mlp: cannot run in chunks of {chunk_tokens} tokens on an input of {list(x.shape)}: give at "
            "least one token, (..., features), and at least one a chunk [LT0436]", "LT0436")
    tokens = x.reshape(-1, x.shape[-1])
    parts = [checkpoint(mlp, part, offload=offload) for part in tokens.split(chunk_tokens)]
    if any(part.dim() != 2 for part in parts) or sum(len(part) for part in parts) != len(tokens):
        raise UsageError(
            f"checkpointed_mlp: the MLP returned {list(parts[0].shape)} for the first chunk of {len(tokens)} tokens; it "
            "must treat each token alone and return (tokens, features) [LT0436]", "LT0436")
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined.reshape(*x.shape[:-1], joined.shape[-1])


def compare_factorised(
    inputs: int,
    outputs: int,
    rank: int,
    *,
    bias: bool = True,
    element_bytes: int = 4,
    optimizer_values: int = 2,
    optimizer_element_bytes: int = 4,
) -> FactorisedComparison:
    """What a linear layer costs in training, and what one of low rank would: n m parameters against r (n + m), as much
    again for gradients, and the optimizer's state for each. ``print`` it.

    element_bytes: of a weight and of its gradient. optimizer_values: kept a parameter, of optimizer_element_bytes each;
    AdamW 2, SGD with momentum 1, SGD 0. Raises UsageError (LT0437) unless 1 <= rank <= min(inputs, outputs).
    """
    return _core.compare_factorised(
        inputs, outputs, rank, bias, element_bytes, optimizer_values, optimizer_element_bytes)


def factorise(weight: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The best factors of that rank, by the singular value decomposition: (up, down, relative error), weight ~ up @ down.

    weight: (outputs, inputs), float32 or float64. up: (outputs, rank), down: (rank, inputs). The error is
    ||weight - up @ down|| / ||weight||. Raises UsageError (LT0437).
    """
    return _core.factorise(weight, rank)


def factorised_linear(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``F.linear(F.linear(x, down), up, bias)``, shapes checked: UsageError (LT0437)."""
    return _core.factorised_linear(x, up, down, bias)

"""Modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lowtide import _core


class DeformableDetrTransformerEncoder(nn.Module):
    """The encoder of Deformable DETR, with activation checkpointing that needs no other package.

    Names in the state dict and initialisation are those of mmdetection's class: ``layers.{i}.self_attn
    .{sampling_offsets,attention_weights,value_proj,output_proj}``, ``layers.{i}.norms.{0,1}``,
    ``layers.{i}.ffn.layers.0.0`` and ``.1``, each with weight and bias. Computes on the CPU, in C++.

    num_layers: encoder layers.
    embed_dims: C, a multiple of num_heads.
    num_levels: feature levels, L.
    num_points: samples of a token on each level and head.
    feedforward_channels: width of the hidden layer.
    dropout: in [0, 1].
    num_cp: the first num_cp layers are checkpointed; -1 and 0 are off. Gradients are bitwise the same for each.

    Raises UsageError (LT0420) when num_cp is below -1 or above num_layers, or an option is out of its range.
    """

    def __init__(
        self,
        num_layers: int = 6,
        *,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        feedforward_channels: int = 1024,
        dropout: float = 0.1,
        num_cp: int = -1,
    ) -> None:
        super().__init__()
        self._arguments: dict[str, Any] = {
            "num_layers": num_layers, "embed_dims": embed_dims, "num_heads": num_heads, "num_levels": num_levels,
            "num_points": num_points, "feedforward_channels": feedforward_channels, "dropout": dropout,
            "num_cp": num_cp}
        self._encoder = _core.DeformableDetrTransformerEncoder(**self._arguments)
        for name, tensor in self._encoder.state_dict().items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, nn.Parameter(tensor.clone()))

    @property
    def num_layers(self) -> int:
        return self._arguments["num_layers"]

    @property
    def num_cp(self) -> int:
        """Layers that are checkpointed; may be set."""
        return max(self._arguments["num_cp"], 0)

    @num_cp.setter
    def num_cp(self, count: int) -> None:
        self._encoder.set_num_cp(count)
        self._arguments["num_cp"] = count

    def forward(
        self,
        query: torch.Tensor,
        query_pos: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        spatial_shapes: torch.Tensor | None = None,
        level_start_index: torch.Tensor | None = None,
        valid_ratios: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Encodes ``query`` (bs, N, C), the flattened feature maps; returns the memory, (bs, N, C).

        query_pos: (bs, N, C), added to the query where it is a query.
        key_padding_mask: (bs, N) bool, true = padding.
        spatial_shapes: (L, 2) int64, (height, width).
        level_start_index: (L,) int64, the token at which each level begins.
        valid_ratios: (bs, L, 2), the part of each level that is no padding, (of the width, of the height).

        Other keywords that mmdetection's encoder takes are not known here and raise TypeError.
        Raises UsageError: LT0421 query and query_pos, LT0422 the mask, LT0423 the level tables, LT0424 valid_ratios.
        """
        if kwargs:
            raise TypeError(f"forward() got unexpected keyword arguments {', '.join(sorted(kwargs))}")
        self._encoder.use_parameters(dict(self.named_parameters()))
        self._encoder.train(self.training)
        return self._encoder.forward(
            query, query_pos, key_padding_mask, spatial_shapes, level_start_index, valid_ratios)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As nn.Module's; takes Hugging Face's names too, with any prefix, when called with the tensors alone."""
        if args or kwargs or set(state_dict) == set(self.state_dict()):
            return super().load_state_dict(state_dict, *args, **kwargs)
        self._encoder.use_parameters(dict(self.named_parameters()))
        self._encoder.load_state_dict(dict(state_dict))
        return super().load_state_dict(self._encoder.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_encoder"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Its own parameters are not used, so it need not draw from the program's generator.
        with torch.random.fork_rng(devices=[]):
            self._encoder = _core.DeformableDetrTransformerEncoder(**self._arguments)


class FactorisedLinear(nn.Module):
    """A linear layer whose weight is a product of two thin ones: (x @ down.T) @ up.T + bias.

    in_features, out_features, rank: down is (rank, in_features), up is (out_features, rank). Raises UsageError (LT0437)
    unless 1 <= rank <= min(in_features, out_features). ``of`` makes one of a layer that is trained, ``cost`` says what
    it costs and saves beside the full layer.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True, **factory: Any) -> None:
        super().__init__()
        _core.compare_factorised(in_features, out_features, rank, bias, 4, 2, 4)  # checks them
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.down = nn.Parameter(torch.empty(rank, in_features, **factory))
        self.up = nn.Parameter(torch.empty(out_features, rank, **factory))
        self.bias = nn.Parameter(torch.empty(out_features, **factory)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights whose product has entries of the variance that nn.Linear's have."""
        # nn.Linear: uniform within 1 / sqrt(in), of variance 1 / (3 in). A sum of rank products has rank times theirs.
        with torch.no_grad():
            self.down.uniform_(-1, 1).mul_(self.in_features ** -0.5)
            self.up.uniform_(-1, 1).mul_((3 / self.rank) ** 0.5)
            if self.bias is not None:
                self.bias.uniform_(-1, 1).mul_(self.in_features ** -0.5)

    @classmethod
    def of(cls, linear: nn.Linear, rank: int) -> FactorisedLinear:
        """The best layer of that rank, by the singular value decomposition. ``relative_error`` says how good."""
        up, down, error = _core.factorise(linear.weight, rank)
        made = cls(
            linear.in_features, linear.out_features, rank, linear.bias is not None, dtype=linear.weight.dtype)
        with torch.no_grad():
            made.up.copy_(up)
            made.down.copy_(down)
            if linear.bias is not None:
                made.bias.copy_(linear.bias)
        made.relative_error = error
        return made

    def cost(self, optimizer_values: int = 2) -> Any:
        """The comparison with the full layer, as ``lowtide.compare_factorised``; optimizer_values as there."""
        size = self.up.element_size()
        return _core.compare_factorised(
            self.in_features, self.out_features, self.rank, self.bias is not None, size, optimizer_values, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        return _core.factorised_linear(x, self.up, self.down, self.bias)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, "
                f"bias={self.bias is not None}")

# The bindings (python/bindings), for type checkers. What each does is said in the modules that use it and in the public
# headers; tests/docs/stubs_test.py holds the names and parameters here against the module.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from torch import Tensor

version: str
torch_version: str

# error.cpp
@final
class ReplayDone(BaseException):
    """Ends a checkpointed region's replay; not an error."""

def set_error_classes(arg0: dict[str, type[BaseException]], /) -> None: ...

# bytes.cpp
def parse_bytes(text: str) -> int: ...
def format_bytes(bytes: int) -> str: ...

# host.cpp
def set_block_reuse(on: bool) -> bool: ...
def saved_tensors(ctx: Any, plain: Callable[[Any], Any]) -> Any: ...
def frame_locals(frame: Any) -> list[tuple[str, Any]]: ...

# memory_meter.cpp
class MemoryMeter:
    def __init__(self) -> None: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    def reset_peak(self) -> None: ...
    def by_kind(self) -> dict[str, int]: ...
    def peak_by_kind(self) -> dict[str, int]: ...

# budget.cpp
class MemoryBudget:
    def __init__(
        self,
        limit: int | str | None,
        check_replays: bool,
        verify_replay: bool,
        on_event: Callable[[dict[str, Any]], None] | None,
        trace_path: str,
        tape_path: str,
        spill_directory: str,
        spill_limit: int,
        reserve: int,
        pack: bool,
        always_put_away: bool,
    ) -> None: ...
    def attach(self, tensors: Sequence[Tensor]) -> None: ...
    def mark_step(self) -> None: ...
    def report(self) -> dict[str, Any]: ...

# watch.cpp
class StepWatch:
    def __init__(self, on_finding: Callable[[dict[str, Any], str], None] | None) -> None: ...
    def step(self) -> None: ...
    def optimizer_stepped(self) -> None: ...
    def set_paused(self, paused: bool) -> None: ...
    def report(self) -> dict[str, Any]: ...
    def text(self) -> str: ...
    def json(self) -> str: ...

# checkpoint.cpp
def run_region(
    function: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    early_stop: bool,
    offload: str,
    offload_directory: str,
) -> Any: ...

# ms_deform_attn.cpp
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor: ...

# deformable_detr_encoder.cpp
class DeformableDetrTransformerEncoder:
    def __init__(
        self,
        num_layers: int,
        embed_dims: int,
        num_heads: int,
        num_levels: int,
        num_points: int,
        feedforward_channels: int,
        dropout: float,
        num_cp: int,
    ) -> None: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None: ...
    def reset_parameters(self) -> None: ...
    def use_parameters(self, tensors: Mapping[str, Tensor]) -> None: ...
    def set_num_cp(self, num_cp: int) -> None: ...
    def train(self, on: bool) -> None: ...
    def forward(
        self,
        query: Tensor,
        query_pos: Tensor | None,
        key_padding_mask: Tensor | None,
        spatial_shapes: Tensor | None,
        level_start_index: Tensor | None,
        valid_ratios: Tensor | None,
    ) -> Tensor: ...

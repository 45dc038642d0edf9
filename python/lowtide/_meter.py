from __future__ import annotations

from lowtide import _core


class Meter:
    """Live bytes of the process's CPU tensors, and their peak since the meter was made or reset.

    Counts are exact, and in bytes as asked for: a storage counts once, however many tensors view it. Not counted:
    tensors from before ``import lowtide``, memory that torch did not allocate (numpy arrays, mapped files), scratch
    that kernels take from malloc, other devices.
    """

    def __init__(self) -> None:
        self._core = _core.MemoryMeter()

    @property
    def live_bytes(self) -> int:
        """Bytes of all tensors that are there now."""
        return self._core.live_bytes

    @property
    def peak_bytes(self) -> int:
        """The highest value that live_bytes took, for however short a moment."""
        return self._core.peak_bytes

    def reset_peak(self) -> None:
        """Starts over: the peak is what is live now."""
        self._core.reset_peak()

    def by_kind(self) -> dict[str, int]:
        """Live bytes by kind: parameters, gradients, optimizer_state, saved, program, workspace.

        Kinds are told apart while a budget lives; else all is "program".
        """
        return self._core.by_kind()

    def peak_by_kind(self) -> dict[str, int]:
        """The same as it was at the peak; adds up to peak_bytes."""
        return self._core.peak_by_kind()

    def __repr__(self) -> str:
        return f"Meter(live_bytes={self.live_bytes}, peak_bytes={self.peak_bytes})"


def meter() -> Meter:
    """A meter of the process's CPU tensors; its peak begins at what is live now. Any number may live at once.

    Raises TorchError (LT0602) when another tool's allocator is in the place of Lowtide's.
    """
    return Meter()

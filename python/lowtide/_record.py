from __future__ import annotations

import os

from lowtide._budget import Budget


def record(path: str | os.PathLike[str], *, batch_size: int | None = None) -> Budget:
    """Writes down what a training step does, for ``lowtide plan`` and ``lowtide explain``.

        with lowtide.record("step.tape"):
            for batch in itertools.islice(loader, 2):
                train_step(batch)

    A budget without a limit, so nothing is dropped and ``report()`` works. The file is written at the end: the tape of
    the second step, which has the optimizer's state too, or of a later step of another kind; with one step, of that
    one. Some 40 bytes an op, no contents and no shapes. Ops have the module that they run in ("encoder.layers.0.linear1"),
    in backward that of the op whose gradient they compute.

    batch_size: how many samples a step has, for ``lowtide plan --largest-batch``. Without it, the first dimension of the
        first tensor that a module gets.

    Raises UsageError: LT0307 when the file cannot be created; LT0309, on stderr, when no whole step was seen.
    """
    return Budget(None, tape=path, batch_size=batch_size)

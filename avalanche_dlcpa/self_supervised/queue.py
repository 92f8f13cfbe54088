"""Step 1, plastic learning: the queue of past features of MoCo and NNCLR.

A queue is a buffer of shape (D, Q), one unit vector a column, and a pointer to the column that is
overwritten next. The paper refreshes it at the beginning of each task, since features of an earlier
task would be exemplars (Section "Implementation details").
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_dlcpa.self_supervised.head import SelfSupervisedHead


def random_unit_columns_(queue: Tensor) -> Tensor:
    """Fill a queue (D, Q) with random unit columns, in place, and return it."""
    drawn = torch.randn(queue.shape, dtype=queue.dtype, device=queue.device)  # whatever its layout
    queue.copy_(F.normalize(drawn, dim=0))
    return queue


@torch.no_grad()
def enqueue_(queue: Tensor, pointer: Tensor, keys: Tensor) -> None:
    """Write keys over the oldest columns of a queue and move its pointer, both in place.

    Args:
        queue: (D, Q).
        pointer: The column to be overwritten next; an integer tensor without dimensions, on the
            device of the queue, so that moving it needs no host synchronisation.
        keys: (B, D) with B <= Q. Any B: the queue wraps round.

    Raises:
        ValueError: More keys than columns.

    Example:
        >>> queue, pointer = torch.zeros(1, 3), torch.tensor(2)
        >>> enqueue_(queue, pointer, torch.tensor([[1.0], [2.0]]))
        >>> queue.tolist(), pointer.item()
        ([[2.0, 0.0, 1.0]], 1)
    """
    if len(keys) > queue.shape[1]:
        raise ValueError(
            f"Expected `queue_size` to be at least the batch size {len(keys)}, "
            f"got {queue.shape[1]}: pass a head with a longer queue or use smaller batches."
        )
    columns = (pointer + torch.arange(len(keys), device=queue.device)) % queue.shape[1]
    queue.index_copy_(1, columns, keys.T.to(queue.dtype))
    pointer.add_(len(keys)).remainder_(queue.shape[1])


class QueueHead(SelfSupervisedHead):
    """Base of the heads with a queue, which holds it over an experience and no longer.

    ``forward`` leaves the new keys (B, D) in ``_keys``; they enter the queue only after the update,
    since the backward pass still reads it.

    Attributes:
        queue: (D, Q), a unit vector a column.
        queue_pointer: The column to be overwritten next.
    """

    queue: Tensor
    queue_pointer: Tensor
    _keys: Tensor | None = None

    def make_queue(self, num_features: int, queue_size: int) -> None:
        """Add the queue's buffers; each column lies in one piece, as it is written and read."""
        self.register_buffer("queue", torch.zeros(queue_size, num_features).T)
        self.register_buffer("queue_pointer", torch.zeros((), dtype=torch.long))

    def before_training_exp(self) -> None:
        """Refresh the queue with random unit columns."""
        random_unit_columns_(self.queue)
        self.queue_pointer.zero_()

    def after_update(self, plastic: nn.Module) -> None:
        """Let the keys enter the queue."""
        assert self._keys is not None
        enqueue_(self.queue, self.queue_pointer, self._keys)
        self._keys = None

    def after_training_exp(self) -> None:
        """Forget the queue and the last keys."""
        self.queue.zero_()
        self._keys = None

"""Collectives over the data-parallel ranks of the training that this thread runs."""
import threading
import weakref

import torch

_current = threading.local()


def set_trainer(trainer):
    """The training of this thread, for functions that are called without one. It is not kept alive: the end of a thread, when
    its local values are freed, is too late to free a trainer."""
    _current.trainer = weakref.ref(trainer)


def trainer():
    """RuntimeError if this thread has none."""
    found = getattr(_current, "trainer", lambda: None)()
    if found is None:
        raise RuntimeError("there is no training on this thread: call it after prepare(), or in a hook of a Trainer")
    return found


def avg_losses_across_data_parallel_group(losses):
    """The means of losses over the data-parallel ranks.

    Args:
        losses: list of n tensors of one element.

    Returns:
        [n], detached.

    Example:
        averaged = avg_losses_across_data_parallel_group([loss])
    """
    values = torch.cat([loss.detach().clone().reshape(1) for loss in losses])
    group = trainer().mesh.group("dp")
    return group.all_reduce(values) / group.size


def gather_across_data_parallel_groups(tensor):
    """Tensors of all data-parallel ranks, concatenated along dimension 0.

    Args:
        tensor: a tensor, or lists, tuples and dicts of them; of no dimensions counts as [1].

    Returns:
        The same structure; the same on all data-parallel ranks.

    Example:
        logits = gather_across_data_parallel_groups(outputs.logits)
    """
    if isinstance(tensor, torch.Tensor):
        rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
        return trainer().mesh.group("dp").all_gather(rows)
    if isinstance(tensor, dict):
        return type(tensor)({key: gather_across_data_parallel_groups(value) for key, value in tensor.items()})
    if isinstance(tensor, (list, tuple)):
        return type(tensor)(map(gather_across_data_parallel_groups, tensor))
    raise TypeError(f"gather_across_data_parallel_groups takes tensors, and structures of them, not {type(tensor).__name__}")

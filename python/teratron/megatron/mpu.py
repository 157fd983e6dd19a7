"""Ranks of the training, by Megatron-LM's names. Groups are ProcessGroups of torch.distributed, which need no
init_process_group()."""
import torch
import torch.distributed as dist

from . import _state

_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}


class _Done(dist.Work):
    """Work that is done."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class EngineGroup(dist.ProcessGroup):
    """A group of the engine's as torch.distributed's functions take it: all_reduce, broadcast, all_gather, barrier.

    Example:
        torch.distributed.all_reduce(loss, group=mpu.get_data_parallel_group())
    """

    def __init__(self, group):
        super().__init__(group.rank, group.size)
        self.engine_group = group

    def allreduce(self, tensors, opts=None):
        """In place. ValueError for other operations than sum, max, min and avg."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        is_mean = op == dist.ReduceOp.AVG
        name = "sum" if is_mean else next((name for known, name in _OPS.items() if op == known), None)
        if name is None:
            raise ValueError(f"{op} is not built: use SUM, AVG, MAX or MIN")
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            result = self.engine_group.all_reduce(tensor.detach().reshape(-1), name).view(tensor.shape)
            tensor.detach().copy_(result / self.engine_group.size if is_mean else result)
        return _Done()

    def broadcast(self, tensors, opts=None):
        """In place, from the group's rank opts.rootRank."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            root = opts.rootRank if opts is not None else 0
            tensor.detach().copy_(self.engine_group.broadcast(tensor.detach().reshape(-1), root).view(tensor.shape))
        return _Done()

    def allgather(self, outputs, inputs, opts=None):
        """Fills the lists of outputs."""
        for parts, tensor in zip(outputs, inputs):
            whole = self.engine_group.all_gather(tensor.detach().reshape(-1))
            for part, values in zip(parts, whole.chunk(self.engine_group.size)):
                part.copy_(values.view(part.shape))
        return _Done()

    def barrier(self, opts=None):
        """Waits for all ranks of the group."""
        self.engine_group.barrier()
        return _Done()

    def getBackendName(self):
        """teratron."""
        return "teratron"

    def getSize(self):
        """The number of ranks."""
        return self.engine_group.size


def _group(*axes):
    return _state.required("mesh").group(*axes)


def _torch_group(*axes):
    groups = _state.value("torch_groups")
    if groups is None:
        _state.remember(torch_groups=(groups := {}))
    if axes not in groups:
        groups[axes] = EngineGroup(_group(*axes))
    return groups[axes]


def model_parallel_is_initialized():
    """Whether there are groups on this thread."""
    return _state.value("mesh") is not None


def get_tensor_model_parallel_rank():
    """This rank's place in its tensor-parallel group."""
    return _group("tp").rank


def get_tensor_model_parallel_world_size():
    """The size of the tensor-parallel group."""
    return _group("tp").size


def get_tensor_model_parallel_group():
    """The tensor-parallel group."""
    return _torch_group("tp")


def get_tensor_model_parallel_src_rank():
    """The number of the first rank of this rank's tensor-parallel group."""
    mesh = _state.required("mesh")
    return mesh.rank - mesh.group("tp").rank


def get_pipeline_model_parallel_rank():
    """This rank's pipeline stage."""
    return _group("pp").rank


def get_pipeline_model_parallel_world_size():
    """The number of pipeline stages."""
    return _group("pp").size


def get_pipeline_model_parallel_group():
    """The ranks of the stages of this rank's pipeline."""
    return _torch_group("pp")


def get_context_parallel_rank():
    """This rank's place in its context-parallel group."""
    return _group("cp").rank


def get_context_parallel_world_size():
    """The size of the context-parallel group."""
    return _group("cp").size


def get_context_parallel_group():
    """The context-parallel group."""
    return _torch_group("cp")


def get_data_parallel_rank(with_context_parallel=False):
    """This rank's place in its data-parallel group."""
    return _group(*_data_axes(with_context_parallel)).rank


def get_data_parallel_world_size(with_context_parallel=False):
    """The size of the data-parallel group."""
    return _group(*_data_axes(with_context_parallel)).size


def get_data_parallel_group(with_context_parallel=False):
    """The data-parallel group; with_context_parallel: all replicas."""
    return _torch_group(*_data_axes(with_context_parallel))


def _data_axes(with_context_parallel):
    return ("dp", "cp") if with_context_parallel else ("dp",)


def get_model_parallel_group():
    """The tensor- and pipeline-parallel ranks of a replica."""
    return _torch_group("tp", "pp")


def is_pipeline_first_stage(ignore_virtual=False, vp_stage=None):
    """Whether this rank has the embedding."""
    return _group("pp").rank == 0


def is_pipeline_last_stage(ignore_virtual=False, vp_stage=None):
    """Whether this rank has the loss."""
    group = _group("pp")
    return group.rank == group.size - 1


def broadcast_data(keys, data, datatype):
    """The columns of an item of pretrain()'s data iterator, of the first tensor-parallel rank: the engine has given them to all
    ranks of the group.

    Args:
        keys: names. data: the item. datatype: of the tensors.

    Returns:
        A dict of tensors by key.

    Raises:
        ValueError: data is None; the iterator is there on all ranks.

    Example:
        tokens = broadcast_data(["text"], next(data_iterator), torch.int64)["text"].long()
    """
    if data is None:
        raise ValueError("broadcast_data() takes an item of the data iterator, which pretrain() gives on every rank")
    return {key: torch.as_tensor(data[key]).to(datatype) for key in keys}

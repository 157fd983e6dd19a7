"""What a training loop needs beside layers."""
import json

from .._load import close_at_exit, engine
from .._steps import Batch, EngineDataset


class Pipeline:
    """This rank's stage of a pipeline, which runs 1F1B.

    Args:
        mesh: a Mesh; its axis "pp" are the stages. scope: the root, for dtype and device of what is sent.

    Attributes:
        stage: this rank's. stages: how many. is_first, is_last.

    Example:
        pipeline = nn.Pipeline(mesh, root)
        pipeline.run(forward, hidden_shape=(S // tp, B, H), microbatches=4, before_last=buffers.set_last_microbatch)
    """

    def __init__(self, mesh, scope):
        self._pipeline = engine.Pipeline(mesh._mesh, scope._set)
        self.stage, self.stages = self._pipeline.rank, self._pipeline.size
        self.is_first, self.is_last = self.stage == 0, self.stage + 1 == self.stages

    def layers(self, count):
        """The layers of this stage, if the stages share `count` of them evenly: a range. ConfigError if they cannot."""
        return range(*self._pipeline.layers(count))

    def run(self, forward, *, hidden_shape, microbatches, before_last=None, forward_only=False):
        """Forward and backward of all micro-batches.

        Args:
            forward: f(i, hidden) for micro-batch i -> hidden states for the next stage, or on the last stage the number to
                differentiate. `hidden` is None on the first stage.
            hidden_shape: of hidden states between stages.
            microbatches: how many. before_last: called before the last backward. forward_only: without backward.

        Raises:
            What forward() raises. ValueError, TypeError: for a result of another shape.
        """
        self._pipeline.run(forward, before_last, list(hidden_shape), microbatches, forward_only)


class GradBuffers:
    """Flat buffers of the parameters of a root Scope and of their gradients, which are summed over the data-parallel ranks.

    Args:
        scope, mesh. sharded: whether the ranks divide the optimizer (ZeRO-1). bucket_size: elements that are reduced at once.
        betas, eps: of Adam, which steps them.

    Example:
        buffers = nn.GradBuffers(root, mesh, sharded=True)
        buffers.zero_grad(); ...; buffers.finish_grad_sync()
    """

    def __init__(self, scope, mesh, sharded=False, bucket_size=40_000_000, betas=(0.9, 0.999), eps=1e-8):
        self._scope, self._mesh = scope, mesh
        self._buffers = engine.GradBuffers(scope._set, mesh._mesh, sharded, bucket_size, [*betas, eps])

    def zero_grad(self):
        """Before the first backward of a step."""
        self._buffers.zero_grad()

    def set_last_microbatch(self):
        """Gradients from now on are the last of the step: complete buckets are reduced under backward."""
        self._buffers.set_last_microbatch()

    def finish_grad_sync(self):
        """After the last backward: waits for the sums."""
        self._buffers.finish_grad_sync()

    def finish_param_gather(self):
        """Before parameters are read outside of layers: waits for what the optimizer has sent."""
        self._buffers.finish_param_gather()


class Optimizer:
    """Adam with decoupled weight decay and gradient clipping, over buffers.

    Args:
        buffers: GradBuffers. clip_grad: the largest norm of the gradient; 0: any.

    Attributes:
        steps: taken so far.

    Example:
        norm = nn.Optimizer(buffers).step(lr=1e-3, weight_decay=0.01)
    """

    def __init__(self, buffers, clip_grad=1.0):
        self._buffers = buffers
        self._optimizer = engine.Optimizer(buffers._buffers, buffers._mesh._mesh, clip_grad)

    @property
    def steps(self):
        return self._optimizer.steps

    def step(self, lr, weight_decay=0.01):
        """Updates the parameters from the gradients, which finish_grad_sync() has completed. Gradients with Inf or NaN change
        nothing. Biases and norms do not decay.

        Returns:
            The norm of the whole model's gradient before clipping, on the device.
        """
        return self._optimizer.step(lr, weight_decay)


class LRSchedule:
    """A learning rate that follows the samples so far, as Megatron-LM's.

    Args:
        max_lr, min_lr, init_lr. warmup_samples, decay_samples: lengths. decay_style: "constant", "linear", "cosine" or
            "inverse-square-root". weight_decay: constant.

    Attributes:
        lr, weight_decay: of the next step. samples: so far.

    Example:
        schedule = nn.LRSchedule(max_lr=1e-3, warmup_samples=100, decay_samples=10_000, decay_style="cosine")
        optimizer.step(schedule.lr, schedule.weight_decay); schedule.step(global_batch_size)
    """

    def __init__(self, *, max_lr, min_lr=0.0, init_lr=0.0, warmup_samples=0, decay_samples, decay_style="linear", weight_decay=0.01):
        self._schedule = engine.Schedule({
            "max_lr": max_lr, "min_lr": min_lr, "init_lr": init_lr, "warmup_samples": warmup_samples,
            "decay_samples": decay_samples, "decay_style": decay_style, "weight_decay": weight_decay})

    @property
    def lr(self):
        return self._schedule.lr

    @property
    def weight_decay(self):
        return self._schedule.weight_decay

    @property
    def samples(self):
        return self._schedule.samples

    def step(self, samples):
        """So many samples more."""
        self._schedule.step(samples)

    def state_dict(self):
        """For checkpoints."""
        return json.loads(self._schedule.state())

    def load_state_dict(self, state):
        """Goes on from there, with this schedule's own rates and lengths."""
        self._schedule.load(json.dumps(state))


class MockGPTDataset:
    """Synthetic samples, those of the setting mock_data.

    Args:
        samples: how many. seq_length: tokens. vocab_size: ids.

    Example:
        batches = nn.Batches(nn.MockGPTDataset(1000, 64, 201), mesh, seq_length=64, micro_batch_size=2)
    """

    def __init__(self, samples, seq_length, vocab_size):
        self._dataset = engine.MockGPTDataset(samples, seq_length, vocab_size)


class Batches:
    """Micro-batches of this data-parallel rank, an iterator of Batch; tensor-parallel ranks get the same.

    Args:
        dataset: a MockGPTDataset, or an object as of Trainer(dataset=). mesh. seq_length, micro_batch_size: sizes.
        consumed_samples: of all ranks, that are skipped. device: of the batches.

    Raises:
        DataError: at the end of the data, or for a sample that does not fit.

    Example:
        tokens = next(batches).tokens  # [S, B]
    """

    def __init__(self, dataset, mesh, *, seq_length, micro_batch_size, consumed_samples=0, device="cpu"):
        data = dataset._dataset if isinstance(dataset, MockGPTDataset) else EngineDataset(dataset, "train")
        self._reader = engine.SampleReader(data, mesh._mesh, str(device), [seq_length, micro_batch_size, consumed_samples])
        close_at_exit(self)

    def close(self):
        """Ends the reading; done at the end of the process."""
        self._reader = None

    def __iter__(self):
        return self

    def __next__(self):
        if self._reader is None:
            raise StopIteration
        return Batch(self._reader.next())


def save(folder, iteration, *, mesh, scope, optimizer=None, state=None):
    """Saves parameters, the optimizer's state and `state`, a dict for JSON, as a checkpoint. Collective.

    Example:
        nn.save("run", step, mesh=mesh, scope=root, optimizer=optimizer, state={"step": step})
    """
    if optimizer is not None:
        optimizer._buffers.finish_param_gather()
    engine.save_loop(mesh._mesh, scope._set, optimizer and optimizer._optimizer, str(folder), iteration,
                     json.dumps({"state": state or {}, "optimizer_steps": optimizer.steps if optimizer is not None else 0}))


def load(folder, *, mesh, scope, optimizer=None):
    """Takes parameters and the optimizer's state from the newest checkpoint of save(), whatever layout wrote it. Collective.

    Returns:
        The state that was saved; None if there is no checkpoint.

    Raises:
        CheckpointError: damaged, or of another model.

    Example:
        state = nn.load("run", mesh=mesh, scope=root, optimizer=optimizer) or {"step": 0}
    """
    if optimizer is not None:
        optimizer._buffers.finish_param_gather()
    text = engine.load_loop(mesh._mesh, scope._set, optimizer and optimizer._optimizer, str(folder))
    if text is None:
        return None
    saved = json.loads(text)
    if optimizer is not None:
        optimizer._optimizer.steps = saved["optimizer_steps"]
    return saved["state"]

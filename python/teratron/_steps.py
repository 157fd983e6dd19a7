"""Hooks of a training, and what they see."""
import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ._load import engine


class Batch(Mapping):
    """Columns of samples as tensors: attributes and keys. It owns them and stays readable.

    Columns of a GPT: tokens, labels (int64 [S, B]) and loss_mask (float32 [S, B]); B are the samples of a micro-batch, or
    in an item of Trainer.batches() those of a step. Context-parallel ranks have their part of S in hooks, all of it in
    items.

    Args:
        columns: tensors by name, to feed Trainer.step(); a missing loss_mask is all ones.

    Raises:
        AttributeError, KeyError: for a column that this pipeline stage does not have.

    Example:
        batch.tokens.shape, batch["labels"], list(batch)
    """

    __slots__ = ("_batch",)

    def __init__(self, columns):
        if not isinstance(columns, engine.Batch):
            _check_names(columns)
            columns = engine.Batch({name: _host_tensor(value) for name, value in columns.items()})
        object.__setattr__(self, "_batch", columns)

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._batch:
            raise AttributeError(f"the batch has no column '{name}'; it has {', '.join(self._batch.keys())}")
        return self._batch[name]

    def __getitem__(self, name):
        return self._batch[name]

    def __iter__(self):
        return iter(self._batch.keys())

    def __len__(self):
        return len(self._batch.keys())

    def __contains__(self, name):
        return name in self._batch

    def __repr__(self):
        return f"Batch({', '.join(f'{name}: {list(self[name].shape)}' for name in self)})"

    def __reduce__(self):
        return Batch, (dict(self),)  # its columns alone

    @property
    def sample_ids(self):
        """int64 [B]: the samples' places in the whole training; None outside of hooks."""
        return self._batch.sample_ids

    @property
    def training(self):
        """Whether dropout is active."""
        return self._batch.training

    def replace(self, **columns):
        """The batch with other values in some columns, of the same shape and dtype: what get_batch() may return.

        Raises:
            KeyError: the batch has no such column.
            ValueError: another shape or dtype.

        Example:
            return batch.replace(tokens=torch.where(noise, mask_id, batch.tokens))
        """
        for name, value in columns.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{name} is a {type(value).__name__}, not a torch.Tensor")
        return Batch(self._batch.replaced(columns))


def _host_tensor(value):
    return value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _check_names(columns):
    for name in columns:
        if not isinstance(name, str):
            raise TypeError(f"names of columns are texts, and {name!r} is a {type(name).__name__}")


@dataclass(frozen=True)
class StepResult:
    """What a step or an evaluation measured; the same on every rank.

    Attributes:
        loss: sum of the losses.
        losses: each loss by name, a mean over what it counts in the global batch: {"lm loss": 5.3}.
        metrics: the train step's sums over the first loss's count, by name.
        grad_norm: norm of all gradients before clipping; None in evaluations and skipped steps.
        lr: learning rate of the next step.
        tokens: how many the first loss counted.
        iteration: steps of the whole training so far.
        consumed_samples: samples of the whole training so far.
        skipped: whether the weights are unchanged (loss scale, NaN policy, iterations_to_skip).
        seconds: that step() took; where the result is awaited, from the end of the step before it.

    Example:
        result = trainer.step()
        print(result.iteration, result.losses["lm loss"], result.grad_norm)
    """

    # Without values of the class, so that an awaited result looks for its own.
    loss: float
    losses: dict = field(default_factory=dict)
    metrics: dict = field(default_factory=dict)
    grad_norm: float | None = field(default_factory=lambda: None)
    lr: float = field(default_factory=float)
    tokens: int = field(default_factory=int)
    iteration: int = field(default_factory=int)
    consumed_samples: int = field(default_factory=int)
    skipped: bool = field(default_factory=bool)
    seconds: float = field(default_factory=float)

    @classmethod
    def awaited(cls, values):
        """A result whose values() are asked for when one of its attributes is first read."""
        result = cls.__new__(cls)
        object.__setattr__(result, "_values", values)
        return result

    def __getattr__(self, name):
        values = self.__dict__.get("_values")
        if values is None or name not in self.__dataclass_fields__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        self.__dict__.update(values())
        del self.__dict__["_values"]
        return self.__dict__[name]

    def __getstate__(self):
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class ParamGroup:
    """Factors for a parameter, in place of its layer's. Trainer(param_groups=f) asks f(name, shape) for it.

    Args:
        weight_decay: whether the parameter decays; or a factor of the decay.
        lr_mult: factor of the learning rate; 0 freezes the parameter, if it does not decay.

    Example:
        def groups(name, shape):
            if name.endswith("word_embeddings.weight"):
                return teratron.ParamGroup(weight_decay=False, lr_mult=0.1)
    """

    weight_decay: bool | float = True
    lr_mult: float = 1.0


class TrainStep:
    """What happens to a micro-batch. Derive from it, override what differs, and give the class to Trainer(train_step=).

    Hooks are called with gradients on, on every rank that they name, whatever context step() is called in. An exception
    in one leaves step() as it is; the weights are then unchanged, and the next step repeats its samples.

    Attributes:
        metrics: names of the metrics that loss() returns, a tuple in the class; stages without the loss need them too.
        all_columns: True: every pipeline stage has all columns of a batch, not those alone that its layers need.

    Example:
        class Weighted(teratron.TrainStep):
            metrics = ("masked",)

            def loss(self, losses, batch):
                mask = batch.loss_mask
                return (losses * mask).sum(), mask.sum(), {"masked": (1 - mask).sum()}

        trainer = teratron.Trainer(config, train_step=Weighted)
    """

    metrics = ()
    all_columns = False

    def get_batch(self, source):
        """The next micro-batch; called on every rank of the model, in the same order.

        Args:
            source: source.next() -> Batch of this data-parallel rank.

        Returns:
            A Batch: the same, or one of Batch.replace().
        """
        return source.next()

    def forward_step(self, model, batch):
        """The loss of a micro-batch; called on the last pipeline stage. By default loss() of the tokens' losses.

        Args:
            model: its output: model.token_losses() -> [S, B] with gradient; model.logits() -> [S, B, V / tp], this
                rank's part of the padded vocabulary; model.losses() -> [(sum, count), ...] as without a hook.
            batch: a Batch.

        Returns:
            What loss() returns.
        """
        return self.loss(model.token_losses(), batch)

    def loss(self, losses, batch):
        """The loss from the losses of all tokens. By default their mean where loss_mask is set.

        Args:
            losses: float32 [S, B], with gradient.
            batch: a Batch with the columns of the last stage.

        Returns:
            (sum, count) or (sum, count, {metric: sum}): tensors of one element, or numbers. The gradient is that of
            sum / count, averaged over micro-batches and data-parallel ranks; reported are sums over counts. A model of
            several losses: ([(sum, count), ...], metrics).

        Raises:
            TypeError, ValueError: out of step(), for anything else, for a metric that is not declared, and for a loss that
                does not depend on `losses`.
        """
        mask = batch.loss_mask
        return (losses * mask).sum(), mask.sum()


class EngineStep:
    """A train step as the engine calls it."""

    def __init__(self, step):
        hooks = ("get_batch", "forward_step", "loss")
        if not any(callable(getattr(step, name, None)) for name in hooks):
            raise TypeError(f"train_step is a {type(step).__name__}, which has none of {', '.join(hooks)}: derive from "
                            "teratron.TrainStep, or give a function loss(losses, batch)")
        self.metrics = getattr(step, "metrics", ())
        if isinstance(self.metrics, str) or not all(isinstance(name, str) for name in self.metrics):
            raise TypeError(f"metrics = {self.metrics!r} of the train step is not a tuple of names: (\"name\",)")
        self.metrics = list(self.metrics)
        self.all_columns = bool(getattr(step, "all_columns", False))
        self.get_batch = self.forward_step = None
        if _overrides(step, "get_batch"):
            self.get_batch = lambda source: _engine_batch(step.get_batch(_Source(source)))
        if _overrides(step, "forward_step"):
            self.forward_step = lambda model, batch: step.forward_step(model, Batch(batch))
        elif _overrides(step, "loss"):
            self.forward_step = lambda model, batch: step.loss(model.token_losses(), Batch(batch))


def _engine_batch(batch):
    if not isinstance(batch, Batch):
        raise TypeError(f"get_batch() returned a {type(batch).__name__}; return a Batch, as source.next() does")
    return batch._batch


def _overrides(step, name):
    method = getattr(step, name, None)
    return callable(method) and getattr(method, "__func__", method) is not getattr(TrainStep, name)


class _Source:
    def __init__(self, source):
        self._source = source

    def next(self):
        return Batch(self._source.next())


class LossFunction(TrainStep):
    """A train step of a plain function, f(losses, batch)."""

    def __init__(self, function):
        self.metrics = tuple(getattr(function, "metrics", ()))
        self.loss = function


def samples_for_engine(item):
    """An item of batches() as the engine takes it: host tensors by name; None stays None."""
    if item is None:
        return None
    if not isinstance(item, Mapping):
        raise TypeError(f"a step takes an item of batches(), or columns by name, not a {type(item).__name__}")
    _check_names(item)
    return {name: _host_tensor(item[name]) for name in item}


class EngineDataset:
    """A dataset of Python as the engine reads it: tensors by column."""

    def __init__(self, dataset, split):
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise TypeError(f"dataset['{split}'] is a {type(dataset).__name__} without {method}()")
        self._dataset = dataset

    def __len__(self):
        return len(self._dataset)

    def get(self, i):
        sample = self._dataset[i]
        if not isinstance(sample, Mapping):
            raise TypeError(f"the sample is a {type(sample).__name__}, not a dict of columns by name")
        _check_names(sample)
        sample = {name: torch.as_tensor(value) for name, value in sample.items()}
        text = sample.pop("text", None)
        if text is not None:
            sample.setdefault("tokens", text[:-1])
            sample.setdefault("labels", text[1:])
        return sample

    @staticmethod
    def explained(error):
        """What was raised, and where."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        return f"{type(error).__name__}: {error}{place}"


def check_hooks(dataset, callbacks):
    """TypeError, ValueError for what Trainer cannot call."""
    if dataset is not None:
        if not isinstance(dataset, Mapping):
            raise TypeError(f"dataset is a {type(dataset).__name__}, not a dict of splits: {{'train': object}}")
        unknown = set(dataset) - {"train", "valid", "test"}
        if unknown:
            raise ValueError(f"dataset has {', '.join(map(repr, unknown))}; its splits are 'train', 'valid' and 'test'")
    for callback in callbacks:
        if inspect.isclass(callback) or not hasattr(callback, "on_step"):
            raise TypeError(f"callbacks has {callback!r}, not an object of teratron.Callback")

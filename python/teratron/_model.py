"""Models of Python in a Trainer."""
from dataclasses import dataclass

import torch

from ._steps import Batch


@dataclass(frozen=True)
class Stage:
    """The part of a model on a pipeline stage, as Trainer(model=f) asks f for it.

    f(stage) returns a torch.nn.Module whose forward(hidden, batch) computes these layers from the hidden states of the
    stage before, [S, B, hidden_size], or where `is_first` from the batch's columns (hidden is None). It returns hidden
    states, or where `is_last` the losses of all tokens [S, B]. Its parameters are trained, saved and loaded by their names
    in the module, which must differ between stages; replicas get the values of the first one. Ranks that are threads
    (run_ranks) share torch's default generator: draw values that a seed decides from a torch.Generator. A parameter with
    `tensor_model_parallel = True` and `partition_dim` is this rank's part (then the module communicates: Group.copy_to,
    Group.reduce_from); others are the same on all tensor-parallel ranks. Modules without buffers that training changes.

    Attributes:
        first_layer, layers: which of the settings' layers the stage has. is_first, is_last: whether it begins or ends the
            model.

    Example:
        def model(stage):
            return MyLayers(stage.first_layer, stage.layers, embeds=stage.is_first, has_loss=stage.is_last)

        teratron.Trainer(config, model=model)
    """

    first_layer: int
    layers: int
    is_first: bool
    is_last: bool


class StageMaker:
    """f(stage) as the engine calls it."""

    def __init__(self, make):
        self._make = make

    def __call__(self, first_layer, layers, is_first, is_last):
        module = self._make(Stage(first_layer, layers, is_first, is_last))
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"model(stage) returned a {type(module).__name__}; return a torch.nn.Module")
        return module, lambda values, hidden, batch: torch.func.functional_call(module, values, (hidden, Batch(batch)))

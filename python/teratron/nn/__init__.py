"""Parts of a training, for loops that a program writes itself: parallel layers as torch.nn.Module, a pipeline, gradient
buffers, the distributed optimizer, schedules and checkpoints. examples/own_loop.py puts them together.

Activations are [S, B, features]; under sequence parallelism, outside of a column and row pair, S is this rank's part.
Parameters are created under a Scope, which names them in checkpoints. They have no .grad: gradients accumulate in main_grad.
"""
from ._layers import (Embedding, MLP, ColumnParallelLinear, Norm, OutputLayer, Parallel, RowParallelLinear, Scope, SelfAttention,
                      TransformerLayer, VocabParallelEmbedding, apply_bias_grad, vocab_parallel_cross_entropy)
from ._loop import Batches, GradBuffers, LRSchedule, MockGPTDataset, Optimizer, Pipeline, load, save

__all__ = [
    "Batches",
    "ColumnParallelLinear",
    "Embedding",
    "GradBuffers",
    "LRSchedule",
    "MLP",
    "MockGPTDataset",
    "Norm",
    "Optimizer",
    "OutputLayer",
    "Parallel",
    "Pipeline",
    "RowParallelLinear",
    "Scope",
    "SelfAttention",
    "TransformerLayer",
    "VocabParallelEmbedding",
    "apply_bias_grad",
    "load",
    "save",
    "vocab_parallel_cross_entropy",
]

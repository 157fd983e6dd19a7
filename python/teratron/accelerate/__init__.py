"""Accelerate's Megatron-LM integration on Teratron's engine: the same names, `accelerate` -> `teratron.accelerate`."""
from ._accelerator import Accelerator, DistributedType
from ._data import MegatronLMDummyDataLoader
from ._engine import MegatronEngine, MegatronLMDummyScheduler, MegatronLMOptimizerWrapper, MegatronLMSchedulerWrapper
from ._groups import avg_losses_across_data_parallel_group, gather_across_data_parallel_groups
from ._plugin import MegatronLMPlugin
from ._train_steps import AbstractTrainStep, BertTrainStep, GPTTrainStep, T5TrainStep

__all__ = [
    "AbstractTrainStep",
    "Accelerator",
    "BertTrainStep",
    "DistributedType",
    "GPTTrainStep",
    "MegatronEngine",
    "MegatronLMDummyDataLoader",
    "MegatronLMDummyScheduler",
    "MegatronLMOptimizerWrapper",
    "MegatronLMPlugin",
    "MegatronLMSchedulerWrapper",
    "T5TrainStep",
    "avg_losses_across_data_parallel_group",
    "gather_across_data_parallel_groups",
]

"""Megatron-LM's pretrain() on Teratron's engine: its names, with `megatron` -> `teratron.megatron` in a script's imports."""
from . import core, mpu
from ._batches import get_batch_on_this_cp_rank, get_batch_on_this_tp_rank, get_ltor_masks_and_position_ids
from ._datasets import build_train_valid_test_datasets
from ._models import BertModel, GPTModel, ModelType, T5Model
from ._timers import Timers
from ._training import (average_losses_across_data_parallel_group, get_args, get_num_microbatches, get_tensorboard_writer, get_timers,
                        get_tokenizer, initialize_megatron, pretrain, print_rank_0, print_rank_last)

__all__ = [
    "BertModel",
    "GPTModel",
    "ModelType",
    "T5Model",
    "Timers",
    "average_losses_across_data_parallel_group",
    "build_train_valid_test_datasets",
    "core",
    "get_args",
    "get_batch_on_this_cp_rank",
    "get_batch_on_this_tp_rank",
    "get_ltor_masks_and_position_ids",
    "get_num_microbatches",
    "get_tensorboard_writer",
    "get_timers",
    "get_tokenizer",
    "initialize_megatron",
    "mpu",
    "pretrain",
    "print_rank_0",
    "print_rank_last",
]

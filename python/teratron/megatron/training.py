"""The names that megatron.training has."""
from ._training import (get_args, get_num_microbatches, get_tensorboard_writer, get_timers, get_tokenizer, initialize_megatron,  # noqa: F401
                        pretrain, print_rank_0, print_rank_last)

"""The names that megatron.utils has."""
from ._batches import get_batch_on_this_cp_rank, get_batch_on_this_tp_rank, get_ltor_masks_and_position_ids  # noqa: F401
from ._training import average_losses_across_data_parallel_group, print_rank_0, print_rank_last  # noqa: F401

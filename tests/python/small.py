"""The small GPT that the tests train."""
import os
import sys
from pathlib import Path

import teratron

PROGRAM = Path(sys.executable).with_name("teratron")
LONG = bool(os.environ.get("TERATRON_LONG_TESTS"))  # ./run test --long
SIZES = dict(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=64, max_position_embeddings=64,
             micro_batch_size=2, global_batch_size=4, train_iters=10, lr=1e-3, tokenizer_type="NullTokenizer",
             vocab_size=200, mock_data=True, device="cpu")
GRID = dict(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)


def C(**more):
    return teratron.Config(**{**SIZES, **more})


class Same(teratron.TrainStep):
    """The model's loss, in Python."""

    def loss(self, losses, batch):
        return (losses * batch.loss_mask).sum(), batch.loss_mask.sum()


def losses(trainer, steps):
    return [trainer.step().loss for _ in range(steps)]

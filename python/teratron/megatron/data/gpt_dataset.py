"""The names that megatron.data.gpt_dataset has."""
from .._datasets import build_train_valid_test_datasets  # noqa: F401

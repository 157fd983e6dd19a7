"""The names that megatron.data.dataset_utils has."""
from .._datasets import build_train_valid_test_datasets  # noqa: F401

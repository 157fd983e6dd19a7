"""The names that megatron.model has."""
from ._models import BertModel, GPTModel, ModelType, T5Model  # noqa: F401

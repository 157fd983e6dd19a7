"""ModelType, where megatron.core has it."""
from .._models import ModelType  # noqa: F401

"""The names that megatron.initialize has."""
from ._training import initialize_megatron  # noqa: F401

"""The names that megatron.data has."""

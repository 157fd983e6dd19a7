"""broadcast_data, where megatron.core has it."""
from ..mpu import broadcast_data  # noqa: F401

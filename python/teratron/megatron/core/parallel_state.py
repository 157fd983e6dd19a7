"""mpu, where megatron.core has it."""
from ..mpu import *  # noqa: F401, F403

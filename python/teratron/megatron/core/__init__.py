"""The names that megatron.core has, as far as scripts of pretrain() use them."""
from .. import mpu
from . import enums, parallel_state, tensor_parallel

__all__ = ["enums", "mpu", "parallel_state", "tensor_parallel"]

"""The names that accelerate.utils has."""
from . import *  # noqa: F401, F403
from . import __all__  # noqa: F401

"""Loads torch, then the engine that is linked to it."""
import atexit
import warnings
import weakref

import torch

from . import __version__

if tuple(torch.__version__.split(".")[:2]) != ("2", "11"):
    raise ImportError(f"teratron {__version__} is built for torch 2.11, and this is torch {torch.__version__}. "
                      "Install it: pip install torch==2.11.0")

from . import _engine  # noqa: E402

engine = _engine
_open = weakref.WeakSet()


def close_at_exit(thing):
    """`thing.close()` is called at the end of the process, while Python still runs; the newest first."""
    _open.add(thing)


@atexit.register
def _close():
    for thing in sorted(_open, key=lambda thing: thing.closing_order):
        try:
            thing.close()
        except Exception as error:  # the others are closed anyway
            warnings.warn(f"{type(thing).__name__}: {error}")

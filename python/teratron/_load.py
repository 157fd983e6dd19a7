"""Loads torch, then the engine that is linked to it."""
import atexit
import os
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
_with_threads = weakref.WeakSet()


def close_at_exit(thing):
    """`thing.close()` is called at the end of the process, while Python still runs; the newest first."""
    _open.add(thing)
    keep_in_children(thing)


def keep_in_children(thing):
    """A child of fork() neither closes nor frees the thing, whose threads and connections are its parent's."""
    _with_threads.add(thing)


def _after_fork():
    for thing in list(_with_threads):
        engine.keep(thing)
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close():
    # First iterators of samples, whose threads call Python.
    for thing in sorted(_open, key=lambda thing: getattr(thing, "closing_order", -1)):
        try:
            thing.close()
        except Exception as error:  # the others are closed anyway
            warnings.warn(f"{type(thing).__name__}: {error}")

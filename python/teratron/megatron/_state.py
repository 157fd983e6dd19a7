"""What Megatron-LM keeps as globals: of the training of this thread, as ranks may be threads."""
import threading

_here = threading.local()


def value(name, otherwise=None):
    return getattr(_here, name, otherwise)


def required(name):
    """RuntimeError before initialize_megatron() or pretrain()."""
    found = value(name)
    if found is None:
        raise RuntimeError(f"there is no {name} on this thread: call it in pretrain(), or after initialize_megatron()")
    return found


def remember(**values):
    vars(_here).update(values)


def forget():
    vars(_here).clear()

"""Ctrl-C during a step."""
import contextlib
import signal
import threading

from ._ranks import check_interrupted


@contextlib.contextmanager
def deferred_interrupt():
    """Ctrl-C raises KeyboardInterrupt after the step, which is then whole, instead of within a hook of it; the second
    one raises it there."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        check_interrupted()
        yield lambda: False
        return
    received = []

    def receive(*_):
        received.append(True)
        if len(received) > 1:  # a hook may be one that does not end
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, receive)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt

"""Timers of a script, by name."""
import time


class Timer:
    """Adds up the seconds between start() and stop().

    Example:
        timers("batch-generator").start()
    """

    def __init__(self, name):
        self.name = name
        self._seconds, self._begin = 0.0, None

    def start(self, barrier=False):
        """RuntimeError if it runs."""
        if self._begin is not None:
            raise RuntimeError(f"timer {self.name} runs already")
        self._begin = time.perf_counter()

    def stop(self, barrier=False):
        """RuntimeError if it does not run."""
        if self._begin is None:
            raise RuntimeError(f"timer {self.name} does not run")
        self._seconds += time.perf_counter() - self._begin
        self._begin = None

    def reset(self):
        """Forgets the seconds so far."""
        self._seconds = 0.0

    def elapsed(self, reset=True, barrier=False):
        """Seconds so far, and from now on none unless reset=False."""
        running = self._begin is not None
        if running:
            self.stop()
        seconds = self._seconds
        if reset:
            self.reset()
        if running:
            self.start()
        return seconds


class Timers:
    """timers(name, log_level=2) -> Timer.

    Example:
        timers = get_timers()
    """

    def __init__(self):
        self._timers = {}

    def __call__(self, name, log_level=None):
        return self._timers.setdefault(name, Timer(name))

    def log(self, names=None, *_, normalizer=1.0, **__):
        """Prints milliseconds of the timers, on rank 0."""
        from ._training import print_rank_0
        shown = [f"{name}: {1000 * self._timers[name].elapsed() / normalizer:.2f}"
                 for name in (names or self._timers) if name in self._timers]
        print_rank_0("time (ms) | " + " | ".join(shown))

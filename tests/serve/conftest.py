from server import run, server  # noqa: F401

"""A terminal in which the program runs, as its user sees it."""

import os
import pty
import re
import select
import signal
import struct
import termios
import time
from fcntl import ioctl

from program import BINARY, environment

CONTROL = re.compile(r"\r|\n|\x1b\[K")


class Screen:
    """Lines of text under carriage return, newline and erasing to the end of the line: all that the program uses."""

    def __init__(self):
        self.lines = [""]
        self.column = 0

    def write(self, text):
        for part in re.split(f"({CONTROL.pattern})", text):
            line = self.lines[-1]
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.lines.append("")
            elif part == "\x1b[K":
                self.lines[-1] = line[:self.column]
            else:
                self.lines[-1] = line[:self.column] + part + line[self.column + len(part):]
                self.column += len(part)
        assert "\x1b" not in "".join(self.lines), self.lines


class TerminalSession:
    """Runs `command` in a terminal of 100 columns; keeps what the screen showed, and for how long."""

    def __init__(self, *command, **variables):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, *map(str, command)], {**environment(), "TERM": "xterm", **variables})
        ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.screen = Screen()
        self.output = ""
        self.last_lines = []  # (seconds, the last line of the screen)

    def read(self, until=None, seconds=60):
        """Reads up to the end of the program, or until the output contains a text."""
        end = time.monotonic() + seconds
        while until is None or until not in self.output:
            begin = time.monotonic()
            assert begin < end, f"no {until!r} in {self.output[-2000:]}"
            ready = select.select([self.terminal], [], [], 1)[0]
            self.last_lines.append((time.monotonic() - begin, self.screen.lines[-1]))
            if not ready:
                continue
            try:
                text = os.read(self.terminal, 65536).decode()
            except OSError:  # the program has ended
                return self
            if not text:
                return self
            self.output += text
            self.screen.write(text)
        return self

    def type(self, keys):
        os.write(self.terminal, keys)

    def exit_code(self):
        self.read()
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(status)

    def seconds_showing(self, start):
        return sum(seconds for seconds, line in self.last_lines if line.startswith(start))

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

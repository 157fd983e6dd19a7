"""The program `teratron`: replaces this process by it, so that signals and exit codes are its own."""
import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def torch_folder():
    """The folder that holds the package torch, which is not imported: that takes seconds. None: there is none."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).resolve().parent.parent if spec and spec.origin else None


def main():
    """Starts the program with the arguments of this one; exits with 2 where torch 2.11 is not installed."""
    site = torch_folder()
    if site is None:
        sys.exit("error: torch 2.11 is needed, and Python finds no torch. Install it: pip install torch==2.11.0")
    folders = [site / "torch/lib", *sorted(site.glob("nvidia/*/lib")), PACKAGE.parent / "teratron.libs"]
    given = os.environ.get("LD_LIBRARY_PATH")
    environment = {
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads are slower where cores are shared
        **os.environ,
        "LD_LIBRARY_PATH": ":".join([*map(str, folders), *([given] if given else [])]),
    }
    program = PACKAGE / "bin/teratron"
    os.execve(program, ["teratron", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()

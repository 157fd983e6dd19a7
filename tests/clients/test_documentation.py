"""The Python lines of docs/serve.md."""

import contextlib
import io

import pytest
from server import documented, needs_binary, serving

pytest.importorskip("openai", reason="needs tests/clients/requirements.txt (./run test --long)")
pytestmark = needs_binary


def test_python_lines(run):
    blocks = documented("python")
    assert len(blocks) >= 4
    names = {}
    with serving(run, "--served-model-name", "RUN") as server:
        for block in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(block.replace("127.0.0.1:5000", f"{server.host}:{server.port}"), names)
            assert printed.getvalue().strip(), f"nothing was printed by: {block}"

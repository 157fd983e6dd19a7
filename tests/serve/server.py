"""A server with a tiny model that knows bytes, and a client without packages."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from program import BINARY, environment, needs_binary, teratron, train, wait_for  # noqa: E402, F401

TEXT = "".join(f"The {a} {b} {c}.\n" for a in ("cat", "dog", "owl") for b in ("sees", "eats", "likes") for c in ("fish", "mice"))
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
# Shows tools and calls as Qwen's does.
HERMES = ("{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
          "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
          "{% for call in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": "
          "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
POSITIONS = 2048
DEVICE = os.environ.get("TERATRON_SERVE_DEVICE", "cpu")  # cuda: the same tests with the engine of GPUs


def make_model(folder, *flags):
    """A checkpoint whose tokenizer is byte-level BPE with ChatML's marks, trained for two steps."""
    (folder / "text.txt").write_text(TEXT)
    tokenizer = folder / "tokenizer"
    teratron("tokenizer", "train", "--input", folder / "text.txt", "--vocab-size", "300", "--output", tokenizer, "--special-tokens",
             "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    train("--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32", "--max-position-embeddings",
          POSITIONS, "--position-embedding-type", "rope", "--micro-batch-size", "2", "--global-batch-size", "2", "--lr", "1e-2", "--init-method-std",
          "0.4", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1", "--mock-data", "--train-iters", "2", "--tokenizer-type", "HuggingFaceTokenizer",
          "--tokenizer-model", tokenizer, "--save", folder / "run", *flags)
    return folder / "run"


class Reply:
    def __init__(self, response):
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def message(self):
        return self.json["error"]["message"]


class Server:
    """`run`: a checkpoint, or the flags that name a model. `command`: another program than `teratron LAUNCH serve`.
    `reads`: its output is read after its start too."""

    def __init__(self, run, *flags, launch=(), log=None, command=None, reads=True, **variables):
        self.ended = False
        self.output = open(log, "w+") if log else None
        source = ["--load", run] if isinstance(run, Path) else run
        command = [*(command or [BINARY, *launch, "serve", *source, "--port", 0]), "--device", DEVICE, "--num-threads", 1, *flags]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=self.output or subprocess.STDOUT,
                                        text=True, env={**environment(), **variables})
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"serving (\S+) at http://([\w.]+):(\d+)", line)
            if found:
                self.name, self.host, self.port = found[1], found[2], int(found[3])
                self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout))
                if reads:
                    self.reader.start()
                return
        raise AssertionError(f"the server did not start: {''.join(self.lines)}")

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=600 if os.environ.get("TERATRON_LONG_TESTS") else 60)

    def send(self, method, path, body=None, headers=None):
        """A connection with a request under way; text and bytes go as they are."""
        connection = self.connect()
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection

    def ask(self, method, path, body=None, headers=None):
        connection = self.send(method, path, body, headers)
        try:
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def api(self, **fields):
        return self.ask("PUT", "/api", fields)

    def completion(self, **fields):
        return self.ask("POST", "/v1/completions", fields)

    def chat(self, content="Hello", **fields):
        return self.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def stream(self, path="/v1/completions", **fields):
        """The events of a stream."""
        with contextlib.closing(self.send("POST", path, {**fields, "stream": True})) as connection:
            response = connection.getresponse()
            text = response.read().decode()
        assert response.status == 200 and response.headers["Content-Type"] == "text/event-stream", text
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event and not event.startswith(":")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask("GET", "/metrics").text, re.M)
        assert found, name
        return float(found[1])

    def is_idle(self):
        return self.metric("teratron_requests_running") == 0 and self.metric("teratron_cache_usage_ratio") == 0

    def memory(self, which="VmRSS"):
        """Resident MiB of the server's process; VmHWM: the most so far."""
        return int(re.search(rf"{which}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def cpu_seconds(self):
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self, code=0, sign=signal.SIGTERM):
        self.process.send_signal(sign)
        return self.finish(code)

    def finish(self, code=0):
        self.process.wait(timeout=60)
        self.reader.join(timeout=60)
        self.ended = True
        text = "".join(self.lines)
        assert self.process.returncode == code, f"exit code {self.process.returncode}: {text[-1500:]}"
        return text


@contextlib.contextmanager
def serving(run, *flags, **more):
    server = Server(run, *flags, **more)
    try:
        yield server
        if not server.ended:
            assert server.process.poll() is None, "the server ended by itself"
            server.stop()
    finally:
        if server.process.poll() is None:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()


def documented(language):
    """The code of docs/serve.md in a language, for a server at its default address whose model is called RUN."""
    text = (ROOT / "docs" / "serve.md").read_text()
    return [block for name, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if name == language]


# Of conftest.py here and in tests/clients.
@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(run):
    """For tests that leave no trace in it."""
    with serving(run) as started:
        yield started

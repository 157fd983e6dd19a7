"""The server: start and end, limits, keys, clients that misbehave or leave, several ranks."""

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from server import BINARY, POSITIONS, ROOT, documented, make_model, needs_binary, serving, teratron, train, wait_for

pytestmark = needs_binary

SLOW = {"TERATRON_FAULT": "generate.step:delay=3"}  # an answer lasts while a test looks at other ones
VERY_SLOW = {"TERATRON_FAULT": "generate.step:delay=30"}
LONG = {"prompt": "The", "max_tokens": POSITIONS - 8, "ignore_eos": True}


def begin_stream(server, **fields):
    """A long answer of which the first event has been read."""
    connection = server.send("POST", "/v1/completions", {**LONG, "stream": True, **fields})
    response = connection.getresponse()
    assert response.status == 200
    assert response.readline().startswith(b"data: ")
    return connection, response


def test_information(server):
    assert server.host == "127.0.0.1", "nothing listens beyond loopback unless asked"
    health = server.ask("GET", "/health")
    assert health.status == 200 and health.json == {"status": "ok", "ready": True}
    (model,) = server.ask("GET", "/v1/models").json["data"]
    assert model["id"] == server.name == "run" and model["object"] == "model" and model["max_model_len"] == POSITIONS
    assert server.ask("GET", "/v1/models/run").json == model
    assert server.ask("GET", "/v1/models/other").status == 404
    page = server.ask("GET", "/")
    assert page.status == 200 and page.text.startswith("<!doctype html>") and "{{" not in page.text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text), "nothing from elsewhere"


def test_metrics(run):
    with serving(run) as server:
        server.completion(prompt="The", max_tokens=5, ignore_eos=True)
        server.completion(prompt=5)
        wait_for(server.is_idle, "an idle server")
        assert server.metric("teratron_generated_tokens_total") == 5
        assert server.metric("teratron_prompt_tokens_total") > 0
        assert server.metric("teratron_time_to_first_token_seconds_count") == server.metric("teratron_request_seconds_count") == 1
        assert server.metric('teratron_responses_total{path="/v1/completions",status="200"}') == 1
        assert server.metric('teratron_responses_total{path="/v1/completions",status="400"}') == 1
        assert server.metric("teratron_tokens_per_second") > 0


@pytest.mark.parametrize("method, path, status", [("GET", "/nothing", 404), ("GET", "/api", 404), ("POST", "/api", 404), ("DELETE", "/v1/models", 404)])
def test_unknown_endpoints(server, method, path, status):
    reply = server.ask(method, path, {} if method == "POST" else None)
    assert reply.status == status and "/v1/completions" in reply.message


@pytest.mark.parametrize("body, says", [
    ("", "the text is empty"), ("{", "not valid JSON"), ("[1]", "not a JSON object"), ("NaN", "not valid JSON"), ('{"prompt": "a", "temperature": NaN}', "not valid JSON"),
    ('{"prompt": "a", "temperature": Infinity}', "not valid JSON"), ('{"prompt": "a", "temperature": 1e999}', "beyond the range"),
    ('{"prompt": "a", "prompt": "b"}', "appears twice"), ("[" * 100000, "nested more than"), (b'{"prompt": "\xff\xfe"}', "not valid JSON"), (b"\x00" * 50, "not valid JSON")])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/api"])
def test_broken_bodies(server, path, body, says):
    reply = server.ask("PUT" if path == "/api" else "POST", path, body)
    assert reply.status == 400 and says in reply.message, reply.text


@pytest.mark.parametrize("headers, status", [
    ({"Content-Encoding": "gzip"}, 415), ({"Content-Type": "multipart/form-data; boundary=x"}, 415), ({"Content-Type": ""}, 415),
    ({"Content-Length": "9999999999"}, 413), ({"Range": "bytes=" + "0-1," * 1500}, None), ({"X": "y" * 9000}, 400)])
def test_headers(server, headers, status):
    with socket.create_connection((server.host, server.port), timeout=20) as raw:
        text = "".join(f"{name}: {value}\r\n" for name, value in {"Content-Length": "2", "Content-Type": "application/json", **headers}.items())
        raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{text}\r\n{{}}".encode())
        answer = raw.recv(4096).decode()
    found = int(answer.split()[1])
    assert found == status if status else 400 <= found < 500, answer
    assert server.ask("GET", "/health").status == 200


@pytest.mark.parametrize("begin", [b"NONSENSE\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 9000 + b"\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n"], ids=["nonsense", "header", "version", "tls"])
def test_a_connection_ends_after_what_is_not_http(server, begin):
    with socket.create_connection((server.host, server.port), timeout=20) as raw:
        raw.sendall(begin + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        start, answer = time.monotonic(), b""
        while piece := raw.recv(65536):
            answer += piece
    assert time.monotonic() - start < 5
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400 ") and b"Connection: close\r\n" in answer, answer
    assert b"not a valid HTTP request" in answer


def test_connections_beyond_the_limit_wait(run):
    with serving(run, "--max-connections", "2") as server:
        kept = [server.send("GET", "/health") for _ in range(2)]
        assert [connection.getresponse().read() and connection for connection in kept] == kept
        third = server.send("GET", "/v1/models")
        third.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            third.getresponse()
        silent = server.connect()
        silent.connect()
        for path in ("/health", "/v1/health"):  # however many wait
            assert server.ask("GET", path).json["ready"] and server.ask("HEAD", path).status == 200
        third.close()
        fourth = server.send("GET", "/v1/models")
        kept[0].close()
        kept[1].close()
        assert fourth.getresponse().status == 200
        for connection in (*kept, fourth, silent):
            connection.close()


def test_nobody_reads_standard_output(run):
    with serving(run, reads=False) as server:
        fcntl.fcntl(server.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(20):  # each is logged
            assert server.api(prompts=["x" * 1000], tokens_to_generate=1).status == 200
        assert server.ask("GET", "/health").status == 200
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0 and time.monotonic() - start < 15
        server.ended = True


def shown_by_ps(server):
    return b"".join(Path(f"/proc/{process}/cmdline").read_bytes() for process in [server.process.pid, *ranks_of(server)])


@pytest.mark.parametrize("given", ["flag", "flag=", "file", "variable", "launch"])
def test_api_key(run, tmp_path, given):
    (tmp_path / "key").write_text("s%65cr3t\n")
    flags = {"flag": ["--api-key", "s%65cr3t"], "flag=": ["--api-key=s%65cr3t"], "file": ["--api-key-file", tmp_path / "key"],
             "launch": ["--api-key", "s%65cr3t"], "variable": []}[given]
    launch = ["launch", "--nproc-per-node", "1", "--log-dir", tmp_path / "logs", "--"] if given == "launch" else []
    with serving(run, *flags, launch=launch, log=tmp_path / "err", **({"TERATRON_API_KEY": "s%65cr3t"} if given == "variable" else {})) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s%65cr3t"}, {"Authorization": "Bearer s%65cr3t2"}, {"Authorization": "Bearer secr3t"}):
            for method, path in [("POST", "/v1/completions"), ("PUT", "/api"), ("GET", "/metrics"), ("GET", "/v1/models")]:
                reply = server.ask(method, path, {"prompt": "a"} if method != "GET" else None, headers)
                assert reply.status == 401 and reply.json["error"]["code"] == "invalid_api_key", reply.text
        assert server.ask("GET", "/health").status == server.ask("GET", "/").status == 200
        for scheme in ("Bearer", "bearer"):
            key = {"Authorization": f"{scheme} s%65cr3t"}
            assert server.ask("POST", "/v1/completions", {"prompt": "a"}, key).status == 200
        metrics = server.ask("GET", "/metrics", headers=key).text
        assert b"serve" in shown_by_ps(server) and b"cr3t" not in shown_by_ps(server)
        written = server.stop() + metrics + (tmp_path / "err").read_text() + "".join(log.read_text() for log in tmp_path.glob("logs/**/*") if log.is_file())
        assert "cr3t" not in written, "keys are not logged"


@pytest.mark.parametrize("flags, variable, says", [
    ([], "", "the API key is empty"), (["--api-key-file", "empty"], None, "the API key is empty"), (["--api-key", "a b"], None, "a header cannot hold"),
    (["--api-key-file", "none"], None, "none"), (["--api-key", "a", "--api-key-file", "empty"], None, "two API keys"),
    (["--cors-origin", "app.example"], None, "--cors-origin"), (["--allow-host", "a:80"], None, "--allow-host")])
def test_access_that_cannot_be_meant(run, tmp_path, monkeypatch, flags, variable, says):
    (tmp_path / "empty").write_text("\nkey\n")
    monkeypatch.chdir(tmp_path)
    if variable is not None:
        monkeypatch.setenv("TERATRON_API_KEY", variable)
    assert says in teratron("serve", "--load", run, "--port", 0, *flags, code=2).stderr


def test_full_queue_and_large_bodies(run):
    with serving(run, "--max-queued-requests", "2", "--inference-max-requests", "1", "--max-body-bytes", "4096", **VERY_SLOW) as server:
        open_streams = [begin_stream(server)]
        wait_for(lambda: server.metric("teratron_requests_running") == 1, "a place in the queue")  # counted after a step
        waiting = [server.send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}) for _ in range(2)]
        wait_for(lambda: server.metric("teratron_requests_waiting") == 2, "two requests in the queue")
        refused = server.completion(prompt="a", max_tokens=1)
        assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1 and "queue" in refused.message
        large = server.completion(prompt="x" * 5000)
        assert large.status == 413 and "4096 bytes" in large.message
        open_streams[0][0].close()
        assert [connection.getresponse().status for connection in waiting] == [200, 200], "who waited is answered"


def test_a_client_that_leaves_frees_its_place(run):
    with serving(run, "--inference-max-requests", "1", **SLOW) as server:
        connection, response = begin_stream(server)
        quiet = server.send("POST", "/v1/completions", LONG)  # waits for its whole answer
        wait_for(lambda: server.metric("teratron_requests_waiting") == 1, "the second request")
        response.close()
        connection.close()
        wait_for(lambda: server.metric("teratron_requests_waiting") == 0, "the first place")
        quiet.close()
        wait_for(server.is_idle, "an idle server")
        assert server.metric("teratron_generated_tokens_total") < 2 * LONG["max_tokens"]


def test_answers_have_a_time_limit(run):
    with serving(run, "--answer-timeout", "1", "--inference-max-requests", "1") as server:
        streams = [begin_stream(server) for _ in range(1)]
        late = [server.send("POST", "/v1/completions", {**LONG, "seed": seed}) for seed in range(4)]
        statuses = [connection.getresponse().status for connection in late]
        assert statuses[-1] == 504, "a request that waited too long"
        streams[0][1].read()
        wait_for(server.is_idle, "an idle server")


def test_sigterm_lets_answers_end(run):
    with serving(run, **SLOW) as server:
        _, response = begin_stream(server, max_tokens=1500)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.ask("GET", "/health").status == 503, "a server that drains")
        refused = server.completion(prompt="a")
        assert refused.status == 503 and "stopping" in refused.message and refused.headers["Retry-After"]
        text = response.read().decode()
        assert text.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in text.replace(" ", "")
        server.finish(0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_sigterm_ends_at_once(run, tmp_path, ranks):
    launch = ["launch", "--nproc-per-node", ranks, "--log-dir", tmp_path / "logs", "--"] if ranks > 1 else []
    with serving(run, "--tp", ranks, launch=launch, **SLOW) as server:
        kept = begin_stream(server)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.ask("GET", "/health").status == 503, "a server that drains")
        server.stop(128 + signal.SIGTERM)
        del kept


def test_a_port_in_use(server, run):
    result = teratron("serve", "--load", run, "--port", server.port, code=2)
    assert f"cannot listen on 127.0.0.1:{server.port}: Address already in use" in result.stderr and "--host" in result.stderr


def test_without_a_model(tmp_path):
    assert "no model is given" in teratron("serve", code=2).stderr
    assert "no checkpoint found" in teratron("serve", "--load", tmp_path, "--port", 0, code=4).stderr


def test_slow_and_dead_clients(run):
    with serving(run, "--max-connections", "8") as server:
        # Half of a request, nothing at all, and a stream that nobody reads.
        half = [socket.create_connection((server.host, server.port)) for _ in range(3)]
        for each in half:
            each.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        silent = socket.create_connection((server.host, server.port))
        unread = server.send("POST", "/v1/completions", {**LONG, "stream": True, "logprobs": 20})
        assert server.completion(prompt="The", max_tokens=4).status == 200
        wait_for(lambda: server.metric("teratron_requests_running") == 0, "the answer that nobody reads")
        for each in [*half, silent]:
            each.close()
        unread.close()
        wait_for(lambda: server.metric("teratron_connections") == 1, "closed connections")


@pytest.mark.parametrize("layout", [["--tp", "2"], ["--pp", "2"]])
def test_ranks_give_the_same_texts(server, run, tmp_path, layout):
    launch = ["launch", "--nproc-per-node", "2", "--log-dir", tmp_path / "logs", "--"]
    request = {"prompt": ["The cat", "dog"], "seed": 3, "max_tokens": 12}
    with serving(run, *layout, launch=launch) as several:
        assert several.completion(**request).json["choices"] == server.completion(**request).json["choices"]
        time.sleep(2.5)  # the other rank waits longer than the interval at which it hears from rank 0
        assert "".join(event["choices"][0]["text"] for event in several.stream(prompt="The", seed=1, max_tokens=9)) == \
            server.completion(prompt="The", seed=1, max_tokens=9).json["choices"][0]["text"]


def test_ranks_that_share_experts_give_the_same_texts(tmp_path):
    run = make_model(tmp_path, "--num-experts", "4", "--moe-ffn-hidden-size", "32")
    request = {"prompt": ["The cat", "dog"], "seed": 3, "max_tokens": 12}
    with serving(run) as one:
        expected = one.completion(**request).json["choices"]
    launch = ["launch", "--nproc-per-node", "4", "--log-dir", tmp_path / "logs", "--"]
    with serving(run, "--tp", "2", "--ep", "4", launch=launch) as several:
        assert several.completion(**request).json["choices"] == expected
        assert several.completion(**request).json["choices"] == expected


def test_a_hugging_face_folder(server, run, tmp_path):
    teratron("ckpt", "convert", "--to-hf", tmp_path / "folder", "--load", run)
    with serving(["--hf", tmp_path / "folder"]) as other:
        assert other.name == "folder"
        for ask in (lambda s: s.completion(prompt=["The cat", "dog"], seed=3, max_tokens=12, logprobs=0),
                    lambda s: s.chat("Hello", seed=4, max_tokens=12)):
            assert ask(other).json["choices"] == ask(server).json["choices"]
    result = teratron("serve", "--hf", run, code=2)
    assert "Name it with --load" in result.stderr, result.stderr


def test_the_example(server, run, tmp_path):
    script = ROOT / "examples" / "run_text_generation_server_345M.sh"
    vocabulary = [run.parent / "tokenizer" / name for name in ("vocab.json", "merges.txt")]
    request = {"prompts": ["The cat", "dog"], "tokens_to_generate": 8, "top_k": 1}
    for more in ([], [*vocabulary, "--tp", "2"]):
        with serving(run, command=[script, run, *more], TERATRON=str(BINARY), PORT="0", GPUS="2" if more else "1") as example:
            assert example.api(**request).json == server.api(**request).json


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_lines_of_the_documentation(run):
    (*blocks,) = documented("")
    commands = [line for block in blocks for line in block.replace("\\\n", "").splitlines() if line.startswith("curl ")]
    assert len(commands) >= 6
    with serving(run, "--served-model-name", "RUN") as server:
        for command in commands:
            done = subprocess.run(["bash", "-c", command.replace("curl ", "curl --silent --show-error --fail-with-body ")
                                   .replace("127.0.0.1:5000", f"{server.host}:{server.port}")], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and not done.stderr, (command, done)
            if "/metrics" not in command:
                assert json.loads(done.stdout), command


def ranks_of(server):
    children = open(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read().split()
    return [int(child) for child in children]


@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_that_dies_ends_the_server_with_its_name(run, tmp_path, busy):
    launch = ["launch", "--nproc-per-node", "2", "--log-dir", tmp_path / "logs", "--"]
    with serving(run, "--tp", "2", launch=launch, **SLOW) as server:
        kept = begin_stream(server) if busy else None
        victims = ranks_of(server)
        assert len(victims) == 2
        os.kill(victims[1], signal.SIGKILL)
        start = time.monotonic()
        log = server.finish(5)
        assert time.monotonic() - start < 15 and "rank 1" in log, log
        del kept

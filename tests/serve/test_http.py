"""HTTP itself: where requests end, what browsers may send, chunked bodies, long JSON."""

import json
import re
import socket

import pytest
from server import needs_binary, serving

pytestmark = needs_binary

HOST = "Host: localhost\r\n"
COMPLETION = json.dumps({"prompt": "The cat", "max_tokens": 4, "temperature": 0}).encode()
JSON = "Content-Type: application/json\r\n"


def exchange(server, data):
    """What comes back until the server closes, or says nothing for two seconds; whether it closed."""
    with socket.create_connection((server.host, server.port), timeout=2) as raw:
        raw.sendall(data if isinstance(data, bytes) else data.encode())
        answer = b""
        try:
            while piece := raw.recv(65536):
                answer += piece
        except TimeoutError:
            return answer.decode(), False
        except ConnectionResetError:
            pass
        return answer.decode(), True


def statuses(answer):
    return [int(status) for status in re.findall(r"HTTP/1\.1 (\d{3}) ", answer)]


NEXT = f"GET /v1/models HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n"
SMUGGLED = f"GET /nothing HTTP/1.1\r\n{HOST}\r\n"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_never_the_next_request(server, method, chunked):
    framing = "Transfer-Encoding: chunked\r\n" if chunked else f"Content-Length: {len(SMUGGLED)}\r\n"
    body = f"{len(SMUGGLED):x}\r\n{SMUGGLED}\r\n0\r\n\r\n" if chunked else SMUGGLED
    answer, closed = exchange(server, f"{method} /health HTTP/1.1\r\n{HOST}{framing}\r\n{body}{NEXT}")
    assert statuses(answer) == [200 if method in ("GET", "HEAD") else 404, 200] and closed, answer
    assert "/nothing" not in answer and '"max_model_len"' in answer
    if method == "DELETE":
        return  # its body is read
    large = f"{method} /health HTTP/1.1\r\n{HOST}Content-Length: 1000000\r\n\r\n"
    answer, closed = exchange(server, large + SMUGGLED * 9)
    assert len(statuses(answer)) == 1 and "/nothing" not in answer


@pytest.mark.parametrize("fields", [
    "Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 45\r\n", "Content-Length: 5, 5\r\n", "Content-Length: +5\r\n",
    "Content-Length: 5x\r\n", "Content-Length: \r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\ncontent-length: 5\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding : chunked\r\n", "X: 1\r\n Content-Length: 5\r\n",
    "X: 1\nContent-Length: 5\r\n", "Host: example\r\n"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_request_without_one_clear_end_ends_the_connection(server, method, fields):
    answer, closed = exchange(server, f"{method} /v1/completions HTTP/1.1\r\n{HOST}{JSON}{fields}\r\n{SMUGGLED * 3}")
    assert closed and len(statuses(answer)) == 1 and statuses(answer)[0] in (400, 501), answer
    assert "Connection: close\r\n" in answer and json.loads(answer.split("\r\n\r\n")[1])["error"]["type"].endswith("error")


def test_http_1_1_needs_a_host(server):
    assert statuses(exchange(server, "GET /health HTTP/1.1\r\n\r\n")[0]) == [400]
    assert statuses(exchange(server, "GET /health HTTP/1.0\r\n\r\n")[0]) == [200]


def chunks(data, size):
    pieces = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x;x=y\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 10000])
def test_chunked_bodies(server, size):
    head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
    answer, _ = exchange(server, (head + chunks(COMPLETION, size)) * 2 + NEXT.encode())
    assert statuses(answer) == [200, 200, 200], answer
    expected = server.ask("POST", "/v1/completions", COMPLETION).json["choices"][0]["text"]
    assert answer.count(json.dumps(expected)[1:-1]) >= 2 or json.loads(answer.split("\r\n\r\n")[1].split("\n")[0])["choices"][0]["text"] == expected


@pytest.mark.parametrize("path, method", [("/v1/chat/completions", "POST"), ("/api", "PUT")])
def test_clients_that_do_not_know_the_length(server, path, method):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4} if method == "POST" else {"prompts": ["The"], "tokens_to_generate": 4}
    connection = server.connect()
    connection.request(method, path, iter([json.dumps(body)[:9].encode(), json.dumps(body)[9:].encode()]), {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_chunked_bodies_end(run):
    with serving(run, "--max-body-bytes", "2000") as server:
        head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
        answer, closed = exchange(server, head + chunks(b" " * 3000, 500) + NEXT.encode())
        assert statuses(answer) == [413] and closed and "2000 bytes" in answer, answer
        for bad in (b"xyz\r\n", b"-5\r\nabcde\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"5\nabcde\r\n0\r\n\r\n", b"0x5\r\nabcde\r\n0\r\n\r\n"):
            answer, closed = exchange(server, head + bad + NEXT.encode())
            assert statuses(answer) == [400] and closed and "Connection: close" in answer, (bad, answer)
        waits = f"POST /v1/completions HTTP/1.1\r\n{HOST}{JSON}Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n".encode()
        answer, _ = exchange(server, waits + chunks(COMPLETION, 30) + NEXT.encode())
        assert statuses(answer) == [100, 200, 200], answer


# Web pages.

@pytest.mark.parametrize("host", ["evil.example", "evil.example:5000", "localhost.evil.example", "127.0.0.1.nip.io", "192.168.0.7", "[::2]:80"])
@pytest.mark.parametrize("method, path", [("GET", "/v1/models"), ("GET", "/"), ("POST", "/v1/completions"), ("PUT", "/api")])
def test_hosts_that_are_not_this_server(server, host, method, path):
    reply = server.ask(method, path, {"prompt": "a"} if method != "GET" else None, {"Host": host})
    assert reply.status == 403 and "--allow-host" in reply.message


def test_hosts_of_this_server(server):
    for host in ("localhost", "LOCALHOST:5000", f"127.0.0.1:{server.port}", "[::1]:1"):
        assert server.ask("GET", "/v1/models", headers={"Host": host}).status == 200


def test_the_host_of_a_target(server):
    """As clients ask proxies: it counts, whatever the field Host says."""
    for target, host, status in [("http://localhost/v1/models", "localhost", 200), (f"http://127.0.0.1:{server.port}/v1/models", "evil.example", 200),
                                 ("http://evil.example/v1/models", "localhost", 403), ("http://localhost@evil.example/v1/models", "localhost", 403)]:
        answer, _ = exchange(server, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert statuses(answer) == [status], (target, answer)


@pytest.mark.parametrize("fields", ["Host:", "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: https://evil.example"])
def test_fields_of_which_one_is_needed(server, fields):
    answer, closed = exchange(server, f"GET /v1/models HTTP/1.1\r\n{fields}\r\n\r\n")
    assert statuses(answer) == [400] and closed, answer


@pytest.mark.parametrize("address", ["LOCALHOST", "127.1"])
def test_other_spellings_of_loopback(run, address):
    """The address counts, not its spelling: only names of this machine are accepted there."""
    with serving(run, "--host", address) as server:
        assert server.ask("GET", "/v1/models", headers={"Host": "evil.example"}).status == 403
        assert server.ask("GET", "/v1/models", headers={"Host": f"localhost:{server.port}"}).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://evil.example:80"])
def test_foreign_pages_are_refused(server, origin):
    for method, path, body in [("POST", "/v1/completions", {"prompt": "a"}), ("PUT", "/api", {"prompts": ["a"]}), ("GET", "/v1/models", None)]:
        reply = server.ask(method, path, body, {"Origin": origin})
        assert reply.status == 403 and "--cors-origin" in reply.message and "Access-Control-Allow-Origin" not in reply.headers
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    reply = server.ask("OPTIONS", "/v1/completions", headers=asks)
    assert reply.status == 403 and "Access-Control-Allow-Origin" not in reply.headers


def test_the_page_of_the_server_itself(server):
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        for scheme in ("http", "https"):  # https behind a proxy
            assert server.ask("POST", "/v1/completions", COMPLETION, {"Host": host, "Origin": f"{scheme}://{host}"}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/plain; application/json", "application/jsonp"])
@pytest.mark.parametrize("method, path", [("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("PUT", "/api")])
def test_bodies_that_browsers_send_unasked(server, method, path, kind):
    reply = server.ask(method, path, COMPLETION, {"Content-Type": kind})
    assert reply.status == 415 and "application/json" in reply.message


def test_json_with_a_charset(server):
    assert server.ask("POST", "/v1/completions", COMPLETION, {"Content-Type": "Application/JSON;charset=utf-8"}).status == 200


def test_pages_of_allowed_origins(run):
    pages = ["https://app.example", "http://localhost:3000"]
    with serving(run, "--cors-origin", pages[0], "--cors-origin", pages[1], "--allow-host", "models.example", "--api-key", "k") as server:
        for origin in pages:
            asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
            reply = server.ask("OPTIONS", "/v1/chat/completions", headers=asks)
            assert reply.status in (200, 204) and reply.headers["Access-Control-Allow-Origin"] == origin
            assert {"POST", "GET", "PUT"} <= set(reply.headers["Access-Control-Allow-Methods"].split(", "))
            assert reply.headers["Access-Control-Allow-Headers"] == asks["Access-Control-Request-Headers"]
            key = {"Authorization": "Bearer k", "Origin": origin}
            for status, reply in [(200, server.ask("POST", "/v1/completions", COMPLETION, key)), (400, server.ask("POST", "/v1/completions", {}, key)),
                                  (401, server.ask("POST", "/v1/completions", {}, {"Origin": origin})), (415, server.ask("POST", "/v1/completions", "{}", {**key, "Content-Type": "a/b"})),
                                  (404, server.ask("GET", "/nothing", headers=key)), (200, server.ask("POST", "/v1/completions", {"prompt": "a", "stream": True}, key))]:
                assert reply.status == status and reply.headers.get_all("Access-Control-Allow-Origin") == [origin], (status, reply.text)
                assert reply.headers["Vary"] == "Origin"
        assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer k", "Host": "models.example:8443"}).status == 200
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer k", **headers}).status == 403


def test_all_answers_forbid_guessing_their_type(server):
    for reply in (server.ask("GET", "/"), server.ask("GET", "/nothing"), server.ask("POST", "/v1/completions", COMPLETION), server.ask("POST", "/v1/completions", "{"),
                  server.ask("POST", "/v1/completions", {"prompt": "a", "stream": True}), server.ask("GET", "/metrics"), server.ask("POST", "/api", "")):
        assert reply.headers.get_all("X-Content-Type-Options") == ["nosniff"]
    assert "X-Content-Type-Options: nosniff" in exchange(server, "NONSENSE\r\n")[0]


# Long JSON.

LONG = [lambda n: b'{"messages":[' + b",".join([b"1"] * (n // 2)) + b"]}", lambda n: b'{"messages":[' + b",".join([b"{}"] * (n // 3)) + b"]}",
        lambda n: b'{"prompt":[' + b",".join([b"[]"] * (n // 3)) + b"]}", lambda n: b"{" + b",".join(b'"k%d":{}' % i for i in range(n // 12)) + b"}",
        lambda n: b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * (n // 30)) + b"]}", lambda n: b'{"prompt":[' + b",".join([b"5"] * (n // 2)) + b"]}",
        lambda n: b'{"messages":[{"role":"user","content":"' + b"The cat " * (n // 8) + b'"}]}']


@pytest.mark.parametrize("number", range(len(LONG)))
def test_long_json_takes_linear_time(server, number):
    mib = 2
    for path in ("/v1/chat/completions", "/v1/completions"):
        before = server.cpu_seconds()
        reply = server.ask("POST", path, LONG[number](mib << 20))
        assert reply.status == 400 and server.cpu_seconds() - before < 0.2 * mib + 0.3, reply.text[:300]
        assert len(reply.text) < 5000 and reply.message.count(";") < 10, "ten problems at most"
    assert server.memory("VmHWM") < 800

"""`teratron chat`: what the server answers to the same conversation."""

import json
import shutil
import subprocess

import pytest
from program import BINARY, environment, teratron
from server import DEVICE, needs_binary, serving

pytestmark = needs_binary


def chat(source, said, *flags, code=0):
    done = subprocess.run([BINARY, "chat", *map(str, source), "--device", DEVICE, "--max-new-tokens", "24", *map(str, flags)], input="".join(line + "\n" for line in said),
                          env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def answers(server, said, system=None):
    """The server's to a conversation of these messages."""
    messages, texts = [{"role": "system", "content": system}] if system else [], []
    for line in said:
        messages.append({"role": "user", "content": line})
        reply = server.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0})
        texts.append(reply.json["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": texts[-1]})
    return texts


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The model as a Hugging Face folder."""
    hf = tmp_path_factory.mktemp("hf") / "run"
    teratron("ckpt", "convert", "--to-hf", hf, "--load", run)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(run.parent / "tokenizer" / name, hf)
    return hf


def test_a_conversation_is_the_servers(server, run, folder):
    said = ["Hello", "And the cat?"]
    expected = "\n".join(answers(server, said)) + "\n"
    assert chat(["--load", run], said, "--greedy").stdout == expected
    assert chat(["--hf", folder], said, "--greedy").stdout == expected
    with_system = answers(server, said, "Be brief")
    assert chat(["--load", run], said, "--greedy", "--system-message", "Be brief").stdout == "\n".join(with_system) + "\n"
    again = chat(["--load", run], ["Hello", "/new", "Hello"], "--greedy").stdout
    first = answers(server, ["Hello"])[0]
    assert again == f"{first}\n{first}\n"


def test_an_adapter(run, tmp_path):
    (tmp_path / "chats.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": f"word {i}"}, {"role": "assistant", "content": "the cat " * 3}]}) + "\n" for i in range(8)))
    teratron("finetune", "gpt", "--load", run, "--use-checkpoint-args", "--tokenizer-model", run.parent / "tokenizer", "--data-path", tmp_path / "chats.jsonl",
             "--split", "100,0,0", "--lora-rank", "4", "--lora-out", tmp_path / "adapter", "--train-iters", "4", "--lr", "5e-2", "--micro-batch-size", "2",
             "--global-batch-size", "2", "--seq-length", "128", "--chat-template", "chatml", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1")
    with serving(run, "--lora", tmp_path / "adapter") as server:
        expected = "\n".join(answers(server, ["Hello"])) + "\n"
    assert chat(["--load", run, "--lora", tmp_path / "adapter"], ["Hello"], "--greedy").stdout == expected
    assert chat(["--load", run], ["Hello"], "--greedy").stdout != expected


def test_templates(server, run, tmp_path):
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
    with serving(run, "--chat-template", tmp_path / "own.jinja") as other:
        expected = "\n".join(answers(other, ["Hello"])) + "\n"
    assert chat(["--load", run], ["Hello"], "--greedy", "--chat-template", tmp_path / "own.jinja").stdout == expected
    assert "no role" in chat(["--load", run], ["Hello"], "--system-message", "x", "--chat-template", "gemma").stdout
    assert "is not a known chat template" in chat(["--load", run], [], "--chat-template", "unknown", code=2).stderr


def test_sampling_is_that_of_the_folder(folder, tmp_path):
    recommended = tmp_path / "run"
    shutil.copytree(folder, recommended)
    (recommended / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 1, "top_p": 0.8}))
    greedy = chat(["--hf", folder], ["Hello"], "--greedy").stdout
    said = chat(["--hf", recommended], ["Hello"])
    assert greedy in said.stdout and "defaults of requests from generation_config.json: temperature = 0.7, top_p = 0.8, top_k = 1" in said.stdout + said.stderr
    assert len({chat(["--hf", recommended], ["Hello"], "--top-k", "0", "--top-p", "1", "--temperature", "1.5", "--seed", seed).stdout for seed in range(3)}) > 1

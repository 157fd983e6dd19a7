"""Models served with LoRA adapters: one merged into the model, or several beside it, by name."""
import json
import threading

import pytest
from program import teratron
from server import needs_binary, serving

pytestmark = needs_binary
GREEDY = {"prompt": "The cat", "max_tokens": 12, "temperature": 0}


def text(server, **fields):
    reply = server.completion(**{**GREEDY, **fields})
    assert reply.status == 200, reply.text
    return reply.json["choices"][0]["text"]


@pytest.fixture(scope="module")
def adapters(run, tmp_path_factory):
    """Two, of different rank and on different layers."""
    folder = tmp_path_factory.mktemp("adapters")
    for name, word, more in (("cats", "the cat ", ["--lora-rank", "4"]), ("owls", "owl! ", ["--lora-rank", "2", "--lora-targets", "linear_proj"])):
        (folder / f"{name}.jsonl").write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": f"word {i}"}, {"role": "assistant", "content": word * 3}]}) + "\n" for i in range(8)))
        teratron("finetune", "gpt", "--load", run, "--use-checkpoint-args", "--tokenizer-model", run.parent / "tokenizer",
                 "--data-path", folder / f"{name}.jsonl", "--split", "100,0,0", "--lora-out", folder / name, "--train-iters", "4", "--lr", "5e-2",
                 "--micro-batch-size", "2", "--global-batch-size", "2", "--seq-length", "128", "--chat-template", "chatml", "--eval-iters", "0",
                 "--device", "cpu", "--num-threads", "1", *more)
    return folder


def test_an_adapter_changes_the_answers_as_it_does_those_of_generate(server, run, adapters, tmp_path):
    with serving(run, "--lora", adapters / "cats") as adapted:
        answer = text(adapted)
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "The cat", "max_new_tokens": 12, "top_k": 1}) + "\n")
    teratron("generate", "--load", run, "--lora", adapters / "cats", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl",
             "--device", "cpu")
    assert json.loads((tmp_path / "out.jsonl").read_text())["text"] == answer
    assert answer != text(server)


@pytest.mark.parametrize("launch", [(), ("launch", "--nproc-per-node", "2", "--"), ])
def test_adapters_by_name_are_each_what_they_are_alone(server, run, adapters, launch):
    alone = {"run": text(server)}
    embedded = {"run": server.ask("POST", "/v1/embeddings", {"input": "The owl"}).json["data"][0]["embedding"]}
    for name in ("cats", "owls"):
        with serving(run, "--lora", adapters / name) as one:
            alone[name] = text(one)
            embedded[name] = one.ask("POST", "/v1/embeddings", {"input": "The owl"}).json["data"][0]["embedding"]
    assert len(set(alone.values())) == 3
    ranks = ["--tp", "2"] if launch else []
    with serving(run, "--lora", f"cats={adapters / 'cats'}", f"--lora=owls={adapters / 'owls'}", *ranks, launch=launch) as all_of_them:
        listed = all_of_them.ask("GET", "/v1/models").json["data"]
        assert [(model["id"], model.get("parent")) for model in listed] == [("run", None), ("cats", "run"), ("owls", "run")]
        assert all_of_them.ask("GET", "/v1/models/owls").json["id"] == "owls"
        assert text(all_of_them) == alone["run"], "without a name it is the model"
        answers = {}

        def ask(number, name):
            reply = all_of_them.completion(**{**GREEDY, "model": name, "n": 1 + number % 2}).json
            answers[number] = (reply["model"], {choice["text"] for choice in reply["choices"]})

        names = ["run", "cats", "owls"] * 4
        threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {number: (name, {alone[name]}) for number, name in enumerate(names)}
        for name, expected in embedded.items():
            found = all_of_them.ask("POST", "/v1/embeddings", {"input": "The owl", "model": name}).json
            assert found["model"] == name and found["data"][0]["embedding"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        pieces = all_of_them.stream(**{**GREEDY, "model": "owls"})
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == alone["owls"] and {piece["model"] for piece in pieces} == {"owls"}
        missing = all_of_them.completion(**{**GREEDY, "model": "dogs"})
        assert missing.status == 404 and missing.json["error"]["code"] == "model_not_found" and "'run', 'cats', 'owls'" in missing.message


@pytest.mark.parametrize("flags, code, says", [
    (["--lora", "a=DIR", "--lora", "a=DIR"], 2, "two adapters are called a"), (["--lora", "=DIR"], 2, "no name or no folder"),
    (["--lora", "run=DIR"], 2, "an adapter is called run"), (["--lora", "DIR", "--lora", "a=DIR"], 2, "with and without a name"),
    (["--lora", "a=DIR/none"], 2, "no adapter_config.json")])
def test_adapters_that_cannot_be(run, adapters, flags, code, says):
    given = [flag.replace("DIR", str(adapters / "cats")) for flag in flags]
    done = teratron("serve", "--load", run, "--port", 0, "--device", "cpu", *given, code=code)
    assert says in done.stdout + done.stderr

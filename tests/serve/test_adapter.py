"""A model served with a LoRA adapter."""
import json

from program import teratron
from server import needs_binary, serving

pytestmark = needs_binary


def test_an_adapter_changes_the_answers_as_it_does_those_of_generate(server, run, tmp_path):
    (tmp_path / "chats.jsonl").write_text("".join(
        json.dumps({"messages": [{"role": "user", "content": f"word {i}"}, {"role": "assistant", "content": "the cat " * 3}]}) + "\n"
        for i in range(8)))
    teratron("finetune", "gpt", "--load", run, "--use-checkpoint-args", "--tokenizer-model", run.parent / "tokenizer",
             "--data-path", tmp_path / "chats.jsonl", "--split", "100,0,0", "--lora-rank", "4", "--lora-out",
             tmp_path / "adapter", "--train-iters", "4", "--lr", "3e-2", "--micro-batch-size", "2", "--global-batch-size", "2",
             "--seq-length", "128", "--chat-template", "chatml", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1")
    with serving(run, "--lora", tmp_path / "adapter") as adapted:
        text = adapted.completion(prompt="The cat", max_tokens=12, temperature=0).json["choices"][0]["text"]
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "The cat", "max_new_tokens": 12, "top_k": 1}) + "\n")
    teratron("generate", "--load", run, "--lora", tmp_path / "adapter", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl",
             "--device", "cpu")
    assert json.loads((tmp_path / "out.jsonl").read_text())["text"] == text
    assert text != server.completion(prompt="The cat", max_tokens=12, temperature=0).json["choices"][0]["text"]

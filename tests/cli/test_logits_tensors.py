"""`teratron logits` on tensors of a safetensors file: the numbers of the text file, and what is refused."""

import struct

import pytest
import torch
from program import message, needs_binary, teratron
from safetensors.torch import load_file, save, save_file

pytestmark = needs_binary


def outputs(run, folder, tensors, start=(), name="in.safetensors", layout=()):
    save_file(tensors, folder / name)
    teratron(*start, "logits", "--load", run, "--input", folder / name, "--output", folder / "out.safetensors",
             "--device", "cpu", *layout)
    return load_file(folder / "out.safetensors")


def of_text(run, folder, rows):
    (folder / "ids.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    teratron("logits", "--load", run, "--input", folder / "ids.txt", "--output", folder / "text", "--device", "cpu")
    return torch.stack([tensor for _, tensor in sorted(load_file(folder / "text").items())])


def test_tokens_give_the_logits_of_the_text(tmp_path, unbroken):
    tokens = torch.arange(3 * 16).reshape(3, 16) * 7 % 61
    expected = of_text(unbroken, tmp_path, tokens.tolist())
    for name in ("in.safetensors", "named otherwise"):
        found = outputs(unbroken, tmp_path, {"tokens": tokens}, name=name)
        assert found.keys() == {"logits"} and found["logits"].dtype == torch.float32
        torch.testing.assert_close(found["logits"], expected, atol=1e-6, rtol=1e-6)


def test_many_rows_are_computed_in_parts(tmp_path, unbroken):
    tokens = torch.randint(0, 61, (300, 16), generator=torch.Generator().manual_seed(3))
    found = outputs(unbroken, tmp_path, {"tokens": tokens})["logits"]
    assert found.shape == (300, 16, 61)
    some = [0, 127, 128, 299]
    torch.testing.assert_close(found[some], outputs(unbroken, tmp_path, {"tokens": tokens[some]})["logits"],
                               atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", [[], ["--pp", "2"]])
def test_tensor_and_pipeline_parallel_ranks(tmp_path, unbroken, layout):
    tokens = {"tokens": torch.tensor([[1, 2, 3], [60, 5, 6]])}
    alone = outputs(unbroken, tmp_path, tokens)["logits"]
    ranks = ["launch", "--nproc-per-node", "2", "--log-dir", tmp_path / "logs", "--"]
    torch.testing.assert_close(outputs(unbroken, tmp_path, tokens, ranks, layout=layout)["logits"], alone, atol=1e-5, rtol=1e-5)


def test_only_a_bert_has_embeddings(tmp_path, unbroken):
    save_file({"tokens": torch.tensor([[1, 2]])}, tmp_path / "in.safetensors")
    (tmp_path / "ids.txt").write_text("1 2\n")
    for name, says in (("in.safetensors", "no embeddings of texts"), ("ids.txt", "padding_mask")):
        message(teratron("logits", "--load", unbroken, "--input", tmp_path / name, "--output", tmp_path / "out",
                         "--output-bert-embeddings", code=2), "--output-bert-embeddings", says)


LONG = torch.zeros(1, 17, dtype=torch.long)


@pytest.mark.parametrize("tensors,says", [
    ({"ids": LONG[:, :2]}, ["no tensor tokens", "no input ids", "The model takes tokens"]),
    ({"tokens": LONG[:, :2], "types": LONG[:, 2:4].clone()}, ["no input types"]),
    ({"tokens": torch.tensor([[1, 2], [3, 61]])}, ["in.safetensors:tokens", "61 at [1, 1]", "[0, 61)"]),
    ({"tokens": torch.tensor([[-1, 2]])}, ["-1 at [0, 0]"]),
    ({"tokens": LONG}, ["17 tokens", "16 positions"]),
    ({"tokens": LONG[0]}, ["the shape is [17]", "[B, S]"]),
    ({"tokens": LONG[:0]}, ["the shape is [0, 17]"]),
    ({"tokens": LONG[:, :2].int()}, ["the dtype is I32", "int64"]),
    ({"tokens": LONG[:, :2].float()}, ["the dtype is F32", "int64"])])
def test_wrong_tensors(tmp_path, unbroken, tensors, says):
    save_file(tensors, tmp_path / "in.safetensors")
    result = teratron("logits", "--load", unbroken, "--input", tmp_path / "in.safetensors", "--output",
                      tmp_path / "out", code=3)
    message(result, *says)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"12", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 20) + b"{]" + b" " * 18,
                                     save({"tokens": LONG})[:-8]])
def test_damaged_file(tmp_path, unbroken, content):
    (tmp_path / "in.safetensors").write_bytes(content)
    message(teratron("logits", "--load", unbroken, "--input", tmp_path / "in.safetensors", "--output", tmp_path / "out",
                     code=3), "in.safetensors")

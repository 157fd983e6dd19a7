"""Indices of blends and conversations in jobs of several ranks: built by one of them, and what went wrong there."""

import json
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
from jobs import launch
from program import TINY, losses, message, needs_binary, teratron

pytestmark = needs_binary

JOB = [*TINY, "--tokenizer-type", "NullTokenizer", "--vocab-size", "60", "--global-batch-size", "8", "--train-iters", "2",
       "--log-interval", "1", "--split", "1,0,0"]
CHATS = [*JOB, "--sft", "--chat-template", "identity"]


@pytest.fixture(name="chats")
def written_chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    lines = [{"prompt": f"{i} 7 ", "completion": f"{i + 1} 8 9"} for i in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def blend_of(tmp_path):
    for name in ("a", "b"):
        text = tmp_path / f"{name}.jsonl"
        text.write_text("".join(json.dumps({"text": f"{i} {ord(name) - 60} 5 6 7 8 9"}) + "\n" for i in range(50)))
        teratron("preprocess", "--input", text, "--output-prefix", tmp_path / name, "--tokenizer-type", "NullTokenizer",
                 "--vocab-size", "60", "--append-eod")
    return ["0.3", tmp_path / "a_text_document", "0.7", tmp_path / "b_text_document"]


def kinds_in(folder):
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_conversations_are_indexed_once_and_train_the_same(chats):
    first = launch(4, *CHATS, "--data-path", chats)
    cache = chats.parent / "chats.jsonl.cache"
    assert kinds_in(cache) == ["sft"] * 4
    written = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    second = launch(4, *CHATS, "--data-path", chats)
    assert written == {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert losses(first.stdout) == losses(second.stdout) and len(losses(first.stdout)) == 2


def test_a_blend_is_indexed_once_and_trains_the_same(tmp_path):
    data = blend_of(tmp_path)
    first = launch(4, *JOB, "--data-path", *data)
    cache = tmp_path / "a_text_document" / "cache"
    assert kinds_in(cache).count("blend") == 3
    second = launch(4, *JOB, "--data-path", *data)
    assert losses(first.stdout) == losses(second.stdout) and len(losses(first.stdout)) == 2


def test_what_is_wrong_with_the_data_is_told_once(chats):
    with open(chats, "a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "1", "completion": " "}) + "\n")
    message(launch(4, *CHATS, "--data-path", chats, code=3), "chats.jsonl:41", "empty answer")
    assert list((chats.parent / "chats.jsonl.cache").iterdir()) == [], "no lock is left"


@pytest.mark.parametrize("point", ["data.build_index", "file.write"])
def test_an_index_that_fails_ends_the_job_with_its_reason(chats, tmp_path, point):
    fault = "data.build_index:throw" if point == "data.build_index" else "file.write:errno=ENOSPC"
    result = launch(4, *CHATS, "--data-path", chats, "--data-cache-path", tmp_path / "cache", fault=fault,
                    code=5 if point == "data.build_index" else 4)
    assert "has died" not in result.stderr and "lost" not in result.stderr, result.stderr
    assert ("fault injected at data.build_index" if point == "data.build_index" else "No space left") in result.stderr

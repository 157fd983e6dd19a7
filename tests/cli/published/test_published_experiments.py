"""The tables of docs/published-pages.md that bench/published/tables.py writes, and the script of its largest experiment in small."""
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from program import BINARY, environment, needs_binary

ROOT = Path(__file__).resolve().parents[3]


def test_the_tables_are_generated():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "bench" / "published" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    document = tables.DOCUMENT.read_text()
    assert document == tables.with_tables(document), "run bench/published/tables.py"


@needs_binary
@pytest.mark.skipif(not os.environ.get("TERATRON_TEST_DATA"), reason="TERATRON_TEST_DATA is not set")
def test_wikitext_in_small(tmp_path):
    """The script on the splits that are at hand, with a model of one layer: epochs, perplexities, a checkpoint."""
    transformers = pytest.importorskip("transformers")
    data = Path(os.environ["TERATRON_TEST_DATA"])
    for file, name in (("gpt2-vocab.json", "vocab.json"), ("gpt2-merges.txt", "merges.txt")):
        shutil.copy(data / file, tmp_path / name)
    transformers.GPT2TokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "wiki.train.raw").write_text("".join((data / "wikitext2-test.txt").read_text().splitlines(keepends=True)[:300]))
    (tmp_path / "wiki.valid.raw").write_text("".join((data / "wikitext2-valid.txt").read_text().splitlines(keepends=True)[:100]))
    small = ["--num-layers", "1", "--hidden-size", "32", "--num-attention-heads", "2", "--block_size", "128", "--learning_rate", "5e-3",
             "--per_device_train_batch_size", "4", "--per_device_eval_batch_size", "4", "--num_train_epochs", "2", "--device", "cpu"]
    done = subprocess.run([ROOT / "examples" / "wikitext2.sh", "wiki.train.raw", "wiki.valid.raw", "tokenizer", "out", *small],
                          cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**environment(), "TERATRON": BINARY, "GPUS": "1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = re.findall(r"epoch (\d): perplexity: (\S+) eval_loss: (\S+)", done.stdout)
    assert [epoch for epoch, *_ in found] == ["0", "1"] and float(found[1][1]) < float(found[0][1])
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").exists()

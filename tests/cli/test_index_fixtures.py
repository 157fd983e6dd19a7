"""The index arrays that Megatron-LM left in its cache, built again from what it wrote beside them."""

import json
from pathlib import Path

import numpy as np
import pytest
from program import needs_binary, teratron

pytestmark = needs_binary

FIXTURES = Path(__file__).parents[1] / "fixtures"
DESCRIPTIONS = sorted((FIXTURES / "gpt/cache").glob("*-description.txt"))


def test_there_are_descriptions():
    assert len(DESCRIPTIONS) == 6


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda path: path.name[:8])
def test_arrays_of_the_cache(tmp_path, description):
    made = json.loads(description.read_text())
    samples = [] if made["num_samples"] is None else ["--num-samples", str(made["num_samples"])]
    teratron("data", "indices", FIXTURES / made["dataset_path"], "--split", made["split"], "--split-part",
             made["index_split"], "--seq-length", made["sequence_length"], "--seed", made["random_seed"], *samples,
             "--output-dir", tmp_path)
    for name in ("document_index", "sample_index", "shuffle_index"):
        ours = np.load(tmp_path / f"{name}.npy")
        theirs = np.load(str(description).replace("description.txt", f"{name}.npy"))
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
        assert (ours == theirs).all(), name

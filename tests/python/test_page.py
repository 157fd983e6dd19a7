"""The blocks of docs/python.md, one after another, as a reader would type them."""
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    shown = capsys.readouterr().out
    assert len(blocks) == 7 and (tmp_path / "exported/config.json").exists()
    assert "transformer.h.1.mlp.c_fc.weight (64, 256)" in shown and "torch.Size([1, 3, 201])" in shown
    assert "{'lm loss': " in shown and "{'hard': " in shown and "[torch.Size([32, 16]), torch.Size([32, 16])]" in shown

"""The progress bar of a training, as a terminal shows it."""

import base64
import re

import pytest
from program import MOCK, needs_binary
from terminal import TerminalSession

pytestmark = needs_binary

DRAWN = "\r\x1b[K["  # erased, then the bar
LINE = re.compile(r" \[[^\n]*iteration +\d+/[^\n]*\|")


def session(launched, folder, *flags):
    train = ["pretrain", "gpt", *MOCK, *map(str, flags)]
    return TerminalSession(*(["launch", "--nproc-per-node", 2, "--log-dir", folder / "logs", "--"] if launched else []), *train)


@pytest.mark.parametrize("launched", [False, True], ids=["alone", "under launch"])
def test_the_bar_stands_between_log_lines(tmp_path, launched):
    terminal = session(launched, tmp_path, "--global-batch-size", 2 + 2 * launched, "--train-iters", 600,
                       "--log-interval", 200, "--save", tmp_path / "run", "--save-interval", 500)
    assert terminal.exit_code() == 0
    training = terminal.output[terminal.output.index("[before the start of training step]"):]
    logged = training.split("\r\n")
    lines = [line for line in logged if "iteration" in line and "consumed samples" in line]
    assert len(lines) == 3
    for line in lines:  # erased before the line, drawn again after it
        assert LINE.fullmatch(line.rpartition("\r\x1b[K")[2]), line
    after = [next_line for line, next_line in zip(logged, logged[1:]) if line == lines[0]]
    assert after[0].startswith(DRAWN), after
    bars = re.findall(re.escape(DRAWN) + r"([#-]{24}\] +\d+% \d+/600 \| \d+ ms/it \| left \w+ \| next save \w+)", training)
    assert bars, training
    shown = terminal.seconds_showing("[#") + terminal.seconds_showing("[-")
    assert shown > 0.5 * sum(seconds for seconds, line in terminal.last_lines if "%" in line or LINE.match(line))
    assert len(bars) < 5 * shown + 10, "drawn too often"
    assert terminal.screen.lines[-1] == "" and not [line for line in terminal.screen.lines if "] " in line and "%" in line]
    for log in (tmp_path / "logs").glob("*"):
        assert "ms/it" not in log.read_text()


@pytest.mark.parametrize("launched", [False, True], ids=["alone", "under launch"])
def test_ctrl_c_with_a_bar(tmp_path, launched):
    terminal = session(launched, tmp_path, "--global-batch-size", 2 + 2 * launched, "--train-iters", 1000000,
                       "--log-interval", 1000000, "--save", tmp_path / "run")
    terminal.read(until="ms/it")
    terminal.type(b"\x03")
    assert terminal.exit_code() == 75
    lines = terminal.screen.lines
    says = "notice: signal 2 (SIGINT) forwarded" if launched else "stopping after this step"
    assert [line for line in lines if line.startswith(says)], lines
    assert not [line for line in lines if "ms/it" in line or "^C" in line], lines
    assert [line for line in lines if line.startswith("  successfully saved checkpoint")], lines


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"LOCAL_WORLD_SIZE": "2"}], ids=["dumb", "shared with ranks"])
def test_no_bar_where_it_would_be_garbled(variables):
    terminal = TerminalSession("pretrain", "gpt", *MOCK, "--train-iters", 20, **variables)
    assert terminal.exit_code() == 0
    assert "%" not in terminal.output and "\x1b" not in terminal.output


def test_texts_do_not_command_the_terminal(tmp_path):
    """ESC [ 2 J would erase the screen."""
    ranks = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (tmp_path / "ranks.tiktoken").write_text(ranks)
    terminal = TerminalSession("tokenizer", "decode", "--tokenizer-type", "TikTokenizer", "--tokenizer-model",
                               tmp_path / "ranks.tiktoken")
    terminal.type(b"65 27 91 50 74 13 66\n\x04")
    assert terminal.exit_code() == 0
    assert "A\\x1b[2J\\x0dB" in terminal.output

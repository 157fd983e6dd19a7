"""The speeds that the page shows, computed by its script."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "teratron" / "serve" / "page" / "pace.js"
pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")


def pace(deliveries, total=None):
    """speed() and curve() after deliveries of (milliseconds, tokens)."""
    program = f"""{SCRIPT.read_text()}
        const pace = new Pace();
        for (const [now, tokens] of {json.dumps(deliveries)}) pace.add(tokens, now);
        console.log(JSON.stringify([pace.speed({'' if total is None else total}), pace.curve(), pace.first ?? null]));"""
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_time_is_that_between_deliveries():
    assert pace([[1000 + 20 * i, 1] for i in range(51)])[0] == pytest.approx(50)
    # The first delivery has what came while nobody looked: its tokens took unknown time.
    assert pace([[500, 30], [1000, 10], [1500, 20]])[0] == pytest.approx(30)
    # Half of the tokens brought no text.
    assert pace([[0, 2], [1000, 18]], total=40)[0] == pytest.approx(36)


@pytest.mark.parametrize("deliveries", [[], [[5, 12]], [[5, 1], [5, 11]], [[5, 1], [5.3, 11]], [[5, 0], [900, 12]]])
def test_what_comes_at_once_has_no_speed(deliveries):
    """12 tokens in 0.3 ms are no 36,666 tokens/s."""
    speed, curve, _ = pace(deliveries)
    assert speed is None and curve == []


def test_the_curve_is_the_speed_at_each_time():
    steady = pace([[10 * i, 1] for i in range(1001)])
    assert steady[0] == pytest.approx(100) and len(steady[1]) > 300
    assert all(value == pytest.approx(100, rel=0.05) for _, value in steady[1])
    # The same tokens in bursts, then twice as many.
    bursts = pace([[100 * i, 10] for i in range(101)] + [[10000 + 100 * i, 20] for i in range(1, 101)])[1]
    for at, value in bursts:
        expected = 100 if at <= 10 else 200 if at > 10.6 else None
        assert expected is None or abs(value - expected) <= 60
    assert max(value for _, value in bursts) < 300
    assert pace([[100 * i, 10] for i in range(8)])[1] == [], "too short for a curve"

"""The rule of tools/lint for the order of a folder's rooms."""
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from lint_include_cycles import check_rooms  # noqa: E402


def files(*includes):
    """Files of teratron/comm with one include each: "host/a.h mesh/b.h" for host/a.h, which includes mesh/b.h."""
    texts = {}
    for pair in includes:
        path, included = pair.split()
        texts[f"teratron/comm/{path}"] = f'#pragma once\n\n#include "teratron/comm/{included}"\n'
    return texts


@pytest.mark.parametrize("includes", [
    ["host/a.h mesh/b.h", "mesh/c.cpp host/a.h"],
    ["host/a.h mesh/b.h", "mesh/b.h nccl/c.h", "nccl/c.cpp host/d.h"],
    ["host/a.h world.h", "world.cpp host/b.h"],
], ids=["two", "three", "a file beside them"])
def test_finds_a_circle(includes):
    (path, line, rule, message), = check_rooms(files(*includes))
    assert (path, line, rule) == ("teratron/comm/host/a.h", 3, "room-order")
    assert message.startswith("the rooms of comm include each other in a circle, host -> ")
    for pair in includes:
        assert pair.replace(" ", " includes ") in message


@pytest.mark.parametrize("includes", [
    ["host/a.h mesh/b.h", "mesh/c.cpp nccl/d.h"],
    ["host/a.h host/b.h", "host/b.cpp host/a.h"],
    ["host/a.h mesh/b.h", "mesh/c_test.cpp host/a.h"],
    ["group.h work.h", "work.cpp group.h"],
    ["host/a.h work.h", "world.cpp host/a.h"],
], ids=["one way", "one room", "tests", "files of one level", "two files beside them"])
def test_leaves_an_order_alone(includes):
    assert list(check_rooms(files(*includes))) == []


def test_reports_a_shortest_circle_of_each_folder():
    texts = files("host/a.h mesh/b.h", "mesh/b.h nccl/c.h", "nccl/c.h host/a.h", "nccl/d.h ranks/e.h", "ranks/e.h nccl/d.h")
    (_, _, _, message), = check_rooms(texts)
    assert "nccl -> ranks -> nccl" in message

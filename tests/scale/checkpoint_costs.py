"""Bounds of what saving, finding and loading a checkpoint costs each rank of a job of many (docs/scaling.md)."""

import math

PHASES = ("save", "find", "load")


def most(reports, phase, cost):
    return max(report[phase][cost] for report in reports.values())


def in_all(reports, phase, cost):
    return sum(report[phase][cost] for report in reports.values())


def check(reports):
    """Messages and rounds of a rank grow with the logarithm, the files that it opens do not grow.

    Finding a checkpoint looks at each shard from every rank that keeps a part of the manifest with chunks in it: here the
    4 tensors that are cut over all ranks have some in all shards.
    """
    ranks = len(reports)
    rounds = math.ceil(math.log2(ranks))
    for phase in PHASES:
        assert most(reports, phase, "messages") <= 12 * rounds, phase
        assert most(reports, phase, "waits") <= 6 * rounds, phase
    assert most(reports, "save", "opened") <= 12 and in_all(reports, "save", "opened") <= 4 * ranks
    assert most(reports, "save", "looked_at") <= 12 and in_all(reports, "save", "looked_at") <= 4 * ranks
    assert most(reports, "find", "opened") <= 8 and most(reports, "find", "looked_at") <= 2 * ranks + 8
    assert most(reports, "load", "opened") <= 56, "a shard for each of 52 tensors that it holds, and the manifest"
    assert most(reports, "load", "looked_at") <= 8 and in_all(reports, "load", "looked_at") <= 2 * ranks
    assert max(report["descriptors"] for report in reports.values()) <= rounds + 20
    assert max(report["peak_kib"] for report in reports.values()) <= 64 << 10


def summary(reports):
    costs = ("messages", "bytes", "waits", "seconds", "opened", "looked_at")
    phases = {phase: {cost: (most(reports, phase, cost), in_all(reports, phase, cost)) for cost in costs} for phase in PHASES}
    return phases | {cost: max(report[cost] for report in reports.values()) for cost in ("descriptors", "resident_kib", "peak_kib")}

"""Bounds of what saving, finding and loading a checkpoint costs each rank of a job of many (docs/scaling.md)."""

import math

PHASES = ("save", "find", "load_found", "read_found", "load", "replace")
# Of the rank with most and of all, with 16 ranks.
BYTES_OF_16 = {"save": (55e3, 0.72e6), "find": (32e3, 0.14e6), "load_found": (0.28e6, 2.6e6), "read_found": (0.28e6, 2.6e6),
               "load": (0.29e6, 2.7e6), "replace": (55e3, 0.72e6)}


def most(reports, phase, cost):
    return max(report[phase][cost] for report in reports.values())


def in_all(reports, phase, cost):
    return sum(report[phase][cost] for report in reports.values())


def check_removal(reports):
    """Of the first checkpoint's shards, manifest and folder, by rank 0 after the save that replaced it."""
    removed = {rank: report["replace"]["removed"] + report["removal"]["removed"] for rank, report in reports.items()}
    assert removed.pop(0) > len(reports), removed
    assert not any(removed.values()), removed


def check(reports):
    """Messages and rounds of a rank grow with the logarithm, the files that it opens do not grow.

    Each shard is looked at by one rank when a checkpoint is found, and what was found is read without another look at the
    manifest. One rank removes what is old, after the save.
    """
    ranks = len(reports)
    rounds = math.ceil(math.log2(ranks))
    for phase in PHASES:
        assert most(reports, phase, "messages") <= 12 * rounds, phase
        assert most(reports, phase, "waits") <= 6 * rounds, phase
        # Exponents of n; 1.25: what varies.
        assert most(reports, phase, "bytes") <= 1.25 * BYTES_OF_16[phase][0] * (ranks / 16) ** 0.6, phase
        assert in_all(reports, phase, "bytes") <= 1.25 * BYTES_OF_16[phase][1] * (ranks / 16) ** 1.4, phase
    assert most(reports, "save", "opened") <= 12 and in_all(reports, "save", "opened") <= 4 * ranks
    assert most(reports, "save", "looked_at") <= 12 and in_all(reports, "save", "looked_at") <= 4 * ranks
    assert most(reports, "find", "opened") <= 8 and in_all(reports, "find", "opened") <= 2 * ranks
    assert most(reports, "find", "looked_at") <= 16 and in_all(reports, "find", "looked_at") <= 4 * ranks
    for phase in ("load_found", "read_found"):
        assert most(reports, phase, "opened") <= 52, "a shard for each tensor that it holds"
        assert most(reports, phase, "looked_at") == 0
    assert most(reports, "load", "opened") <= 56, "the same and the manifest"
    assert most(reports, "load", "looked_at") <= 8 and in_all(reports, "load", "looked_at") <= 2 * ranks
    check_removal(reports)
    assert max(report["descriptors"] for report in reports.values()) <= rounds + 20
    assert max(report["peak_kib"] for report in reports.values()) <= 64 << 10


def summary(reports):
    costs = ("messages", "bytes", "waits", "seconds", "cpu", "opened", "looked_at", "removed")
    phases = {phase: {cost: (most(reports, phase, cost), in_all(reports, phase, cost)) for cost in costs} for phase in PHASES}
    return phases | {cost: max(report[cost] for report in reports.values()) for cost in ("descriptors", "resident_kib", "peak_kib")}

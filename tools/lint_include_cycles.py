"""Rule of tools/lint for the folders of teratron/: their rooms have an order.

The rooms of teratron/comm are its sub-folders, and every header directly in it together with the source of the same
name (mesh.h, mesh.cpp). They must not include each other in a circle. Lists (.def) may name what they bring together.
Circles among files of one level alone, such as a class and the base class that its factory makes, are left to people.
"""
import re
from collections import defaultdict, deque

INCLUDE = re.compile(r'^#include "teratron/([^"]+)"', re.M)


def room_of(path):
    """("comm", "host") for comm/host/tree.h, ("comm", "world.") for comm/world.cpp; a room of files ends with a dot."""
    folder, _, rest = path.partition("/")
    return folder, rest.split("/")[0] if "/" in rest else rest.split(".")[0] + "."


def includes_between_rooms(sources):
    """{folder: {room: {other room of the folder: (path, line, included path)}}} of {path below teratron/: text}."""
    edges = defaultdict(lambda: defaultdict(dict))
    for path, text in sorted(sources.items()):
        folder, room = room_of(path)
        for match in INCLUDE.finditer(text):
            other_folder, other = room_of(match.group(1))
            if other_folder == folder and other != room:
                edges[folder][room].setdefault(other, (path, text.count("\n", 0, match.start()) + 1, match.group(1)))
    return edges


def shortest_circle(edges, start):
    """The rooms of a shortest way from `start` back to it; None if there is none."""
    ways = deque([[start]])
    seen = set()
    while ways:
        way = ways.popleft()
        for room in sorted(edges.get(way[-1], ())):
            if room == start:
                return [*way, start]
            if room not in seen:
                seen.add(room)
                ways.append([*way, room])
    return None


def check_rooms(files):
    """Yields (path, line, rule, message): one circle of each folder that has any. `files`: {path: text}."""
    sources = {path.removeprefix("teratron/"): text for path, text in files.items()
               if re.fullmatch(r"teratron/\w+/.*\.(h|cpp|cu|cuh|inc)", path) and not path.endswith("_test.cpp")}
    for folder, edges in sorted(includes_between_rooms(sources).items()):
        circles = [shortest_circle(edges, room) for room in sorted(edges) if not room.endswith(".")]
        if not any(circles):
            continue
        circle = min(filter(None, circles), key=len)
        steps = [edges[a][b] for a, b in zip(circle, circle[1:])]
        names = " -> ".join(room.rstrip(".") for room in circle)
        reasons = "; ".join(f"{path.removeprefix(folder + '/')} includes {included.removeprefix(folder + '/')}"
                            for path, _, included in steps)
        yield (f"teratron/{steps[0][0]}", steps[0][1], "room-order",
               f"the rooms of {folder} include each other in a circle, {names}: {reasons}")

#!/usr/bin/env python3
"""include_graph.py [ROOT]: what the structure of the sources is, by their includes: arrows between the rooms of each
layer that has rooms (check_layers.py), knots (files that include each other, directly or not, and rooms that do), the
largest files, and the headers that most files see. Tests and benchmarks are left out. Fails on a knot."""
import collections
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers  # noqa: E402


def read(root):
    """path -> the files of ours that it includes; path -> its number of lines."""
    includes, lines = {}, {}
    for path in sorted(p for top in ("troupe", "apps", "python") for p in (root / top).rglob("*")):
        if path.suffix not in check_layers.SUFFIXES or path.stem.endswith(("_test", "_bench")):
            continue
        name, text = path.relative_to(root).as_posix(), path.read_text()
        includes[name] = {file for mark, file in check_layers.INCLUDE.findall(text) if mark == '"'}
        lines[name] = text.count("\n")
    return includes, lines


def knots(arrows):
    """Sets of nodes that reach each other (Tarjan), those of one node left out. arrows: node -> nodes."""
    index, low, stack, out = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in arrows.get(node, ()):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            knot = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(knot) > 1:
                out.append(sorted(knot))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return out


def seen_by(includes):
    """header -> the files that include it, directly or through others."""
    direct = collections.defaultdict(set)
    for path, files in includes.items():
        for file in files:
            direct[file].add(path)
    out = {}
    for header in direct:
        reached, todo = set(), [header]
        while todo:
            for user in direct.get(todo.pop(), ()):
                if user not in reached:
                    reached.add(user)
                    todo.append(user)
        out[header] = reached
    return direct, out


def room(path, layer):
    return check_layers.room_of(path, layer) or "(beside)"


def main(root):
    sys.setrecursionlimit(10_000)
    includes, lines = read(root)
    found = 0
    for layer, rooms in check_layers.ROOMS.items():
        inside = [path for path in includes if check_layers.layer_of(path) == layer]
        arrows = collections.Counter((room(path, layer), room(file, layer)) for path in inside
                                     for file in includes[path] if check_layers.layer_of(file) == layer)
        arrows = {pair: count for pair, count in arrows.items() if pair[0] != pair[1]}
        print(f"{layer}: {len(inside)} files, {len(rooms)} rooms")
        for name in [name or "(beside)" for name in rooms]:
            to = ", ".join(f"{b} {count}" for (a, b), count in sorted(arrows.items()) if a == name)
            print(f"  {name:10s} {f'-> {to}' if to else 'sees no other'}")
        graph = collections.defaultdict(set)
        for a, b in arrows:
            graph[a].add(b)
        for knot in knots(graph):
            print(f"  KNOT of rooms: {' '.join(knot)}")
            found += 1
    for knot in knots(includes):
        print(f"KNOT of files: {' '.join(knot)}")
        found += 1
    print(f"knots: {found}")
    print("largest files: " + ", ".join(f"{path} {lines[path]}" for path in sorted(lines, key=lines.get)[:-6:-1]))
    direct, seen = seen_by({path: files for path, files in includes.items()})
    sources = {path for path in includes if path.endswith((".cpp", ".cu"))}
    print(f"sources: {len(sources)}; headers that most of them see (of these by an include of their own):")
    for header in sorted(seen, key=lambda h: -len(seen[h] & sources))[:10]:
        print(f"  {header:45s} {len(seen[header] & sources):4d} ({len(direct[header] & sources)})")
    return found


if __name__ == "__main__":
    sys.exit(bool(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))))

"""Metrics of a source tree as a Markdown table: ``python tools/tree_metrics.py [BEFORE] TREE``.

With two trees the table has a column for each. Only the standard library is used, and the trees
are parsed, not imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WINDOW = 6
"""Lines in a row that count as a duplicate when they occur twice."""
_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    lines: list[str]
    tree: ast.Module


def read_modules(root: Path) -> list[Module]:
    """Reads every module of src/unisono."""
    source = root / "src"
    modules = []
    for path in sorted((source / "unisono").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(name, text.splitlines(), ast.parse(text)))
    return modules


def measure(root: Path) -> dict[str, str]:
    """Returns the metrics of a tree, by their label."""
    modules = read_modules(root)
    files = [m for m in modules if len(m.lines) > 3]
    sizes = [len(m.lines) for m in files]
    longest = max(files, key=lambda m: len(m.lines))
    functions = [length for m in modules for length in _function_lengths(m.tree)]
    definitions = Counter(name for m in modules for name in _definitions(m.tree))
    twice = [name for name, count in definitions.items() if count > 1]
    messages = sum(len(_frozen(m.tree)) for m in modules if _has_typed_port(m))
    reads = sum(
        len(re.findall(r"\b(?:body|op|message|answer)\[[\"']", line))
        for m in modules
        for line in m.lines
    )
    return {
        "files in src": str(len(files)),
        "lines in src": f"{sum(sizes):,}",
        "median file, lines": f"{statistics.median(sizes):.0f}",
        "longest file, lines": f"{len(longest.lines)} ({longest.name.removeprefix('unisono.')})",
        "function length, median": f"{statistics.median(functions):.0f}",
        "function length, 95th percentile": f"{statistics.quantiles(functions, n=20)[-1]:.0f}",
        "modules with one importer": str(len(_single_importers(modules))),
        "message dataclasses (in modules with a typed port)": str(messages),
        'untyped reads of a message (`body["..."]`)': str(reads),
        f"duplicated lines (windows of {_WINDOW})": str(_duplicated(modules)),
        "public names (classes, functions)": str(len(definitions)),
        "names defined twice or more": str(len(twice)),
        **_by_package(modules),
    }


def _function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Public classes and functions at the top level of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name


def _frozen(tree: ast.Module) -> list[str]:
    """Frozen dataclasses."""
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    return [c.name for c in classes if any("frozen" in ast.dump(d) for d in c.decorator_list)]


def _has_typed_port(module: Module) -> bool:
    return any("TypedPort(" in line and "class" not in line for line in module.lines)


def _single_importers(modules: list[Module]) -> list[str]:
    """Modules that exactly one other module imports; packages and entry points do not count."""
    names = {m.name for m in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{a.name}" for a in node.names]
                for target in (node.module, *whole):
                    if target in names and target != module.name:
                        importers[target].add(module.name)
    leaves = [m.name for m in modules if not any(n.startswith(m.name + ".") for n in names)]
    return [name for name in leaves if len(importers[name]) == 1]


def _duplicated(modules: list[Module]) -> int:
    """Lines of code in windows that occur more than once, imports and docstrings apart."""
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    lines: set[tuple[str, int]] = set()
    for module in modules:
        code = list(_code(module))
        for start in range(len(code) - _WINDOW + 1):
            window = tuple(text for _, text in code[start : start + _WINDOW])
            if window in seen:
                lines.update((module.name, number) for number, _ in code[start : start + _WINDOW])
            else:
                seen[window] = (module.name, start)
    return len(lines)


def _code(module: Module) -> Iterator[tuple[int, str]]:
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, _IMPORTS)):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(module.lines, start=1):
        text = line.strip()
        if number not in skipped and len(text) > 3 and not text.startswith("#"):
            yield number, text


def _by_package(modules: list[Module]) -> dict[str, str]:
    counts: dict[str, list[int]] = defaultdict(list)
    for module in modules:
        parts = module.name.split(".")
        if len(module.lines) > 3:
            counts[parts[1] if len(parts) > 1 else "(top)"].append(len(module.lines))
    return {
        f"`{name}`": f"{sum(sizes):,} lines, {len(sizes)} files"
        for name, sizes in sorted(counts.items())
    }


def table(columns: dict[str, dict[str, str]]) -> str:
    """Returns a Markdown table with a column for each tree."""
    labels = list(dict.fromkeys(label for metrics in columns.values() for label in metrics))
    labels.sort(key=lambda label: label.startswith("`") and not label.startswith("`body"))
    lines = [
        "| | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for label in labels:
        cells = (metrics.get(label, "-") for metrics in columns.values())
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+", type=Path, help="one tree, or before and after")
    trees: list[Path] = parser.parse_args().trees
    titles = ["now"] if len(trees) == 1 else ["before", "after"]
    print(table({title: measure(tree) for title, tree in zip(titles, trees, strict=True)}))


if __name__ == "__main__":
    main()

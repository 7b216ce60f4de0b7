"""The page around the charts: one HTML file that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# Okabe and Ito's colours, told apart by colour-blind readers too; the yellow is darkened, since
# theirs cannot be seen on white.
COLOUR_STYLE = """
:root { color-scheme: light dark;
  --back: #f6f7f9; --card: #ffffff; --ink: #1c2128; --soft: #5b6572; --rule: #dfe3e8;
  --grey: #8a94a0; --good: #00785a; --bad: #c44e00;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7;
  --c4: #e69f00; --c5: #56b4e9; --c6: #7a5195; --c7: #8a7d00; }
@media (prefers-color-scheme: dark) { :root {
  --back: #12161b; --card: #1a2027; --ink: #e4e8ed; --soft: #9aa5b1; --rule: #313a44;
  --grey: #7d8894; --good: #3fc79a; --bad: #ff8a4c;
  --c0: #4ba3dd; --c1: #f0803c; --c2: #2bbd92; --c3: #dd95bd;
  --c4: #f0b429; --c5: #8accf2; --c6: #b08bd0; --c7: #cdbf2f; } }
"""

CHART_STYLE = """
svg { display: block; width: 100%; height: auto; font-size: 11.5px; }
svg text { fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .title { font-size: 12px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--grey); }
.line path { fill: none; stroke: var(--c); stroke-linejoin: round; stroke-linecap: round; }
.line circle { fill: var(--c); } .strong path { stroke-width: 2.2; }
.thin path { stroke-width: 1.4; } .faint path { stroke-width: 1; opacity: .38; }
.dashed path { stroke-width: 1.8; stroke-dasharray: 5 4; }
.mark path { stroke: var(--ink); stroke-dasharray: 2 3; opacity: .65; }
.mark text { font-weight: 600; }
svg .lost text { fill: var(--bad); } svg .joined text { fill: var(--good); }
.lost path { stroke: var(--bad); } .joined path { stroke: var(--good); }
"""

_STYLE = (
    f"{COLOUR_STYLE}{CHART_STYLE}"
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 25px; margin: 0 0 2px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 34px 0 10px; overflow-wrap: anywhere; }
p { margin: 4px 0 10px; } .soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 18px 0; }
.tile, figure, .table, details { background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; }
.tile { padding: 10px 14px 12px; } .tile b { display: block; font-size: 21px; font-weight: 600;
  font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr));
  gap: 14px; align-items: start; }
figure { margin: 0; padding: 10px 12px 6px; } figcaption { font-weight: 600; font-size: 14px; }
rect.computing, i.computing { fill: var(--c0); background: var(--c0); }
rect.data, i.data { fill: var(--c4); background: var(--c4); }
rect.rounds, i.rounds { fill: var(--c3); background: var(--c3); }
svg .marked text { fill: var(--ink); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; padding: 0;
  list-style: none; font-size: 13.5px; }
.legend i { display: inline-block; width: 20px; height: 0; margin-right: 7px;
  vertical-align: middle; border-top: 3px solid var(--c); }
.legend i.faint { border-top-width: 1px; } .legend i.dashed { border-top-style: dashed; }
.legend i.block { width: 12px; height: 12px; border: 0; border-radius: 2px; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 7px 9px; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th small { display: block; font-weight: 400; } td small { color: var(--soft); }
tr:last-child td { border-bottom: 0; } th.text, td.text { text-align: left; }
td.why { white-space: normal; min-width: 76px; max-width: 260px; overflow-wrap: anywhere; }
td.best { font-weight: 700; color: var(--good); } td.bad { color: var(--bad); }
details { margin-top: 14px; padding: 8px 14px; font-size: 13.5px; }
summary { cursor: pointer; font-weight: 600; } ul.plain { margin: 6px 0; padding-left: 18px; }
pre { overflow-x: auto; margin: 8px 0; font: 12.5px/1.45 ui-monospace, Menlo, monospace; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 7px; background: var(--c); }
@media print { body { background: none; } figure { break-inside: avoid; } }
"""
)


def page(title: str, body: Sequence[str]) -> str:
    """Returns the whole HTML file; the parts of the body are HTML already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns the few numbers that matter most, as (name, value)."""
    cells = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in pairs
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def charts(figures: Sequence[str]) -> str:
    """Lays figures side by side where there is room."""
    return f'<div class="charts">\n{"".join(figures)}\n</div>'


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Returns a legend; an entry is (class, style, text)."""
    items = (
        f'<li><i class="{escape(kind)}" style="{escape(style)}"></i>{escape(text)}</li>'
        for kind, style, text in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def bullets(lines: Sequence[str]) -> str:
    """Returns a plain list."""
    return f'<ul class="plain">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def folded(title: str, text: str) -> str:
    """Returns a text that unfolds under its title."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"

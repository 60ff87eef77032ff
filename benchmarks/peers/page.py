"""One page of HTML with everything in it: verdicts, plots, every row, machine, versions, settings, command."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.peers.tables import COLUMNS, number, verdict_text
from benchmarks.peers.verdicts import Verdict

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0 }
th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #eee; vertical-align: top }
td.figure { text-align: right; font-variant-numeric: tabular-nums }
tr.ours { background: #fdf1f3; font-weight: 600 } .met { color: #186a3b } .missed { color: #a61e2d }
.none { color: #777 }
img { max-width: 100% } code { background: #f5f5f5; padding: .1rem .3rem } .note { color: #555 }
"""


def page(
    *,
    facts: Mapping[str, Mapping[str, str]],
    settings: Sequence[tuple[str, str, str]],
    tables: Sequence[tuple[str, list[list[str]]]],
    verdicts: Sequence[Verdict],
    plots: Mapping[str, bytes],
    ours: str,
) -> str:
    """Return the page; `facts` are lists of names and values, by title, `plots` PNG files by name."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{ours} beside its peers</title>',
        f"<style>{STYLE}</style></head><body><h1>{ours} beside its peers</h1>",
        '<p class="note">One machine, one run, turns taken; medians, with the lowest and the highest turn beside them.'
        " Figures of two runs cannot be compared, ratios in one can.</p>",
        "<h2>Aims</h2>", _verdicts(verdicts),
    ]  # fmt: skip
    shown: set[str] = set()
    for title, lines in tables:
        parts.append(f"<h2>{escape(title)}</h2>")
        for name in _plots_of(title, plots):
            shown.add(name)
            parts.append(_image(name, plots[name]))
        parts.append(_rows(lines, ours))
    parts += [_image(name, image) for name, image in plots.items() if name not in shown]
    for title, named in facts.items():
        if named:
            parts += [f"<h2>{escape(title)}</h2>", _table(("", ""), [[*pair] for pair in named.items()])]
    parts += ["<h2>How each promise is kept</h2>", _table(("promise", "queue", "settings"), [[*s] for s in settings])]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _plots_of(title: str, plots: Mapping[str, bytes]) -> list[str]:
    return [name for name in plots if name == title or (title == "cost" and name in {"cpu", "memory", "disk"})]


def _image(name: str, image: bytes) -> str:
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{b64encode(image).decode()}"></p>'


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    classes = {True: "met", False: "missed", None: "none"}
    lines = "".join(
        f'<tr class="{classes[each.is_met]}">'
        + "".join(
            f"<td>{escape(text)}</td>"
            for text in (each.aim, each.where, number(each.ratio), each.target, verdict_text(each), each.beside)
        )
        + "</tr>\n"
        for each in verdicts
    )
    heads = "".join(f"<th>{head}</th>" for head in ("aim", "where", "found", "wanted", "verdict", "best peer"))
    return f"<table><tr>{heads}</tr>\n{lines}</table>"


def _rows(lines: Sequence[Sequence[str]], ours: str) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in COLUMNS)
    body = "".join(
        f"<tr{' class=ours' if line[2] == ours else ''}>"
        + "".join(f"<td{' class=figure' if place > 3 else ''}>{escape(text)}</td>" for place, text in enumerate(line))
        + "</tr>\n"
        for line in lines
    )
    return f"<table><tr>{heads}</tr>\n{body}</table>"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>\n" for line in lines)
    return f"<table><tr>{head}</tr>\n{body}</table>"

"""One HTML page that holds everything and loads nothing, for light and dark screens."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.cells import Result
from benchmarks.figures import Picture
from benchmarks.loading import provenance
from benchmarks.markup import Table, as_html
from benchmarks.whole_files import save_text

Figures = tuple[Sequence[Picture], Sequence[tuple[Picture, str]]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
        anchor: Its name in the page.
        title: Its heading.
        command: That makes its results.
        results: All that it shows.
        tables: Shown first.
        notes: Sentences below them.
        draw: Draws its pictures and details into a folder, see `drawn`; None: it has none.
        pictures: Shown below them.
        details: Further pictures, closed at first, with the text beside them.
    """

    anchor: str
    title: str
    command: str
    results: Sequence[Result]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    draw: Callable[[Path], Figures] | None = None
    pictures: Sequence[Picture] = ()
    details: Sequence[tuple[Picture, str]] = ()

    @property
    def headed_tables(self) -> list[tuple[str, Table]]:
        """Its tables, each with its title if there are several."""
        return [(table.title if len(self.tables) > 1 else "", table) for table in self.tables]

    def drawn(self, folder: Path) -> Section:
        """The same with its pictures and details, which are written into a folder."""
        if self.draw is None:
            return self
        pictures, details = self.draw(folder)
        return dataclasses.replace(self, pictures=pictures, details=details)


def write_page(
    title: str,
    sections: Sequence[Section],
    skipped: Mapping[str, str],
    path: Path,
) -> Path:
    """Write the page and return its path.

    Args:
        title: Of the page.
        sections: In their order.
        skipped: Why a file is left out, by its name.
        path: Of the page.
    """
    contents = "".join(
        f'<li><a href="#{_text(s.anchor)}">{_text(s.title)}</a></li>' for s in sections
    )
    origins = provenance([r for section in sections for r in section.results])
    plus = "<p class=note>A plus after a commit: the code differed from it.</p>"
    left_out = f"<h2>Files left out</h2>{_definitions(skipped)}" if skipped else ""
    body = f"""<h1>{_text(title)}</h1>
<nav><ul>{contents}<li><a href="#provenance">Provenance</a></li></ul></nav>
{"".join(map(_section, sections))}
<section id="provenance"><h2>Provenance of all results</h2>{_definitions(origins)}
{plus if "+" in origins.get("commit", "") else ""}{left_out}</section>"""
    save_text(_PAGE.format(title=_text(title), body=body), path)
    return path


def _section(section: Section) -> str:
    tables = "".join(
        (f"<h3>{_text(heading)}</h3>" if heading else "") + as_html(table) + "\n"
        for heading, table in section.headed_tables
    )
    notes = "".join(f"<p class=note>{_text(note)}</p>\n" for note in section.notes)
    pictures = "".join(
        f"<figure>{_image(picture, section)}<figcaption>{_text(picture.caption)}</figcaption>"
        "</figure>\n"
        for picture in section.pictures
    )
    details = "".join(
        f"<details><summary>{_text(picture.caption)}</summary>{_image(picture, section)}"
        f"<pre>{_text(text)}</pre></details>\n"
        for picture, text in section.details
    )
    return f"""<section id="{_text(section.anchor)}"><h2>{_text(section.title)}</h2>
{tables}{notes}<pre>{_text(section.command)}</pre>
{pictures}{details}<details><summary>Provenance</summary>
{_definitions(provenance(section.results))}</details></section>
"""


def _image(picture: Picture, section: Section) -> str:
    """A picture, with the table, figure or setting that it belongs to for those who only hear."""
    data = base64.b64encode(picture.path.read_bytes()).decode()
    words = f"{section.title}: {picture.caption}"
    return f'<img alt="{_text(words)}" src="data:image/png;base64,{data}">'


def _definitions(pairs: Mapping[str, str]) -> str:
    rows: Iterable[str] = (
        f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in pairs.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _text(value: str) -> str:
    return html.escape(value)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #8886; --pale: #8882;
  --link: #0b57b0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --paper: #16181c; --link: #8ab8ff; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto;
  padding: 0 1rem; background: var(--paper); color: var(--ink); }}
a {{ color: var(--link); }}
nav ul {{ columns: 22rem; column-gap: 2.5rem; padding-left: 1.2rem; }}
section {{ margin-top: 3rem; border-top: 1px solid var(--line); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
th, td {{ padding: .25rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }}
.words {{ text-align: left; white-space: normal; min-width: 14rem; }}
thead th {{ vertical-align: bottom; }}
thead th[colspan] {{ text-align: center; }}
th:first-child[rowspan], tbody th {{ text-align: left; font-weight: normal;
  position: sticky; left: 0; background: var(--paper); }}
.part > * {{ border-top: 2px solid var(--ink); }}
.note, figcaption {{ font-size: .9rem; opacity: .85; margin: .3rem 0; }}
figure {{ margin: 1.2rem 0; }}
img {{ max-width: 100%; background: #fff; padding: .6rem; border-radius: 6px;
  box-sizing: border-box; }}
pre {{ overflow-x: auto; font-size: .85rem; background: var(--pale); padding: .5rem .8rem;
  border-radius: 6px; }}
summary {{ cursor: pointer; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
</style></head><body>
{body}
</body></html>
"""

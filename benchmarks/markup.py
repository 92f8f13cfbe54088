"""A table, and how it is written: for a terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable, Sequence

NOTHING = "–"
MOST_OF_A_NUMBER = 24  # characters; more are words, which HTML breaks into lines


@dataclasses.dataclass(frozen=True)
class Entry:
    """What stands in a cell: its text, and "best", "second" or nothing as its mark."""

    text: str = NOTHING
    mark: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row: its label, an entry a column, and whether a rule parts it from the row above."""

    label: str
    entries: tuple[Entry, ...]
    begins_part: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        heads: Names of each column from the outermost level to its own, equally many for all;
            what neighbours share on outer levels is written once.
        rows: From top to bottom.
        title: Of the whole.
        notes: Sentences below it.
        corner: Head of the labels.
    """

    heads: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    corner: str = "method"

    @property
    def num_levels(self) -> int:
        """Of the heads."""
        return len(self.heads[0])


def spans(table: Table, level: int) -> list[tuple[str, int]]:
    """Heads of a level with the number of columns that each spans.

    Example:
        >>> heads = (("MNIST", "ACC"), ("MNIST", "BWT"), ("digits", "ACC"))
        >>> spans(Table(heads, ()), 0)
        [('MNIST', 2), ('digits', 1)]
    """
    found: list[tuple[str, int]] = []
    for i, head in enumerate(table.heads):
        shared = i > 0 and level < table.num_levels - 1
        if shared and head[: level + 1] == table.heads[i - 1][: level + 1]:
            found[-1] = (head[level], found[-1][1] + 1)
        else:
            found.append((head[level], 1))
    return found


def as_text(table: Table) -> str:
    """The table for a terminal, without its title; ¹ is the best of a column, ² the second."""
    marks = {"": "", "best": "¹", "second": "²"}
    body = [(row.label, *(e.text + marks[e.mark] for e in row.entries)) for row in table.rows]
    last = (table.corner, *(head[-1] for head in table.heads))
    widths = [max(len(line[i]) for line in (last, *body)) for i in range(len(last))]
    for level in range(table.num_levels - 1):
        end = 0
        for name, count in spans(table, level):
            end += count
            room = sum(widths[end - count + 1 : end + 1]) + 2 * (count - 1)
            widths[end] += max(0, len(name) - room)
    lines = []
    for level in range(table.num_levels - 1):
        line, end = " " * widths[0], 0
        for name, count in spans(table, level):
            end += count
            room = sum(widths[end - count + 1 : end + 1]) + 2 * (count - 1)
            line += "  " + name.rjust(room)
        lines.append(line)
    for label, *cells in (last, *body):
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    return "\n".join([*lines, *_notes(table, ("¹ best", ", ² second best"))])


def as_markdown(table: Table) -> str:
    """The table for a README, without its title."""
    wraps: dict[str, Callable[[str], str]] = {
        "": str,
        "best": "**{}**".format,
        "second": "<u>{}</u>".format,
    }
    heads = ["<br>".join(map(escape_markdown, head)) for head in table.heads]
    lines = [[escape_markdown(table.corner), *heads], ["---", *["---:"] * len(heads)]]
    for row in table.rows:
        cells = [wraps[entry.mark](escape_markdown(entry.text)) for entry in row.entries]
        lines.append([escape_markdown(row.label), *cells])
    notes = "".join(f"\n\n{escape_markdown(note)}" for note in _notes(table, _LEGEND))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + notes


def as_latex(table: Table) -> str:
    """The table as a float; needs booktabs, and graphicx, which shrinks a wide one."""
    wraps = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    lines = [r"\begin{tabular}{l" + "r" * len(table.heads) + "}", r"\toprule"]
    for level in range(table.num_levels - 1):
        cells, rules, end = [""], [], 1
        for name, count in spans(table, level):
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(name)}}}")
            rules.append(rf"\cmidrule(lr){{{end + 1}-{end + count}}}")
            end += count
        lines += [_latex_row(cells), "".join(rules)]
    lines.append(_latex_row(map(escape_latex, [table.corner, *(h[-1] for h in table.heads)])))
    lines.append(r"\midrule")
    for row in table.rows:
        lines += [r"\midrule"] if row.begins_part else []
        cells = [wraps[entry.mark].format(escape_latex(entry.text)) for entry in row.entries]
        lines.append(_latex_row([escape_latex(row.label), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    no_wider = r"\ifdim\width>\textwidth\textwidth\else\width\fi"
    lines = [rf"\resizebox{{{no_wider}}}{{!}}{{%", *lines, "}"]
    title = [f"{table.title}."] if table.title else []
    caption = escape_latex(" ".join([*title, *_notes(table, _LEGEND)]))
    return "\n".join(
        [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", *lines, r"\end{table}"]
    )


def _latex_row(cells: Sequence[str] | map[str]) -> str:
    return " & ".join(cells) + r" \\"


_LEGEND = ("Bold: best of a column", "; underlined: second best")


def _notes(table: Table, legend: tuple[str, str]) -> list[str]:
    """The notes, after a legend of the marks that there are: of the best, and of the second."""
    marks = {entry.mark for row in table.rows for entry in row.entries}
    if "best" not in marks:
        return list(table.notes)
    best, second = legend
    return [f"{best}{second if 'second' in marks else ''}.", *table.notes]


def _columns_of_words(table: Table) -> list[bool]:
    columns = zip(*(row.entries for row in table.rows), strict=True)
    found = [any(len(entry.text) > MOST_OF_A_NUMBER for entry in column) for column in columns]
    return found or [False] * len(table.heads)


def as_html(table: Table) -> str:
    """The table for a page, without its title; the best in bold, the second best underlined."""
    wraps = {"": "{}", "best": "<b>{}</b>", "second": "<u>{}</u>"}
    corner = f'<th scope="col" rowspan="{table.num_levels}">{html.escape(table.corner)}</th>'
    kinds = [' class="words"' if is_words else "" for is_words in _columns_of_words(table)]
    head = ""
    for level in range(table.num_levels):
        cells, column = "", 0
        for name, count in spans(table, level):
            kind = kinds[column] if count == 1 else f' colspan="{count}"'
            scope = "col" if count == 1 else "colgroup"
            cells += f'<th scope="{scope}"{kind}>{html.escape(name)}</th>'
            column += count
        head += f"<tr>{corner if level == 0 else ''}{cells}</tr>"
    body = ""
    for row in table.rows:
        cells = "".join(
            f"<td{kind}>{wraps[entry.mark].format(html.escape(entry.text))}</td>"
            for kind, entry in zip(kinds, row.entries, strict=True)
        )
        part = ' class="part"' if row.begins_part else ""
        label = f'<th scope="row">{html.escape(row.label)}</th>'
        body += f"<tr{part}>{label}{cells}</tr>\n"
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in _notes(table, _LEGEND))
    return (
        f"<div class=wide><table><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>{notes}"
    )


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is.

    Example:
        >>> print(escape_markdown("STL*, ssl_weight 1 | <2>"))
        STL\*, ssl\_weight 1 \| &lt;2&gt;
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # after a row's end it would begin an argument
    "*": "{*}",  # likewise
    "±": r"$\pm$",
    "–": "--",
    "†": r"$^\dag$",
}


def escape_latex(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    Example:
        >>> print(escape_latex("50 % of a_b, 40.1 ± 0.8"))
        50 \% of a\_b, 40.1 $\pm$ 0.8
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)

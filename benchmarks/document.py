"""The parts of docs/results.md that scripts write: text or a table between two markers."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from job import ROOT

RESULTS = ROOT / "docs" / "results.md"


def write_part(name: str, text: str, file: Path = RESULTS) -> None:
    """Put `text` in the place of what stands between the markers of the part."""
    before, _, after = _split(name, file)
    file.write_text(f"{before}\n\n{text}\n\n{after}")


def write_table(
    name: str, head: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[str] | None]], file: Path = RESULTS
) -> None:
    """Write the rows of the table `name`: the first cells of each, by which it is known, and the others. A row that
    has no others (None: nothing was measured here) keeps those that stand in the file, and is left out if none do."""
    _, old, _ = _split(name, file)
    known = [line for line in old.splitlines() if line.startswith("| ")]
    lines = [_line(head), f"|{' --- |' * len(head)}"]
    for first, others in rows:
        if others is not None:
            lines.append(_line([*first, *others]))
        else:
            begins = _line(first) + " "
            lines += [line for line in known if line.startswith(begins)]
    write_part(name, "\n".join(lines), file)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _split(name: str, file: Path) -> tuple[str, str, str]:
    """The file up to the first marker of the part, what is between, and from the second on; both markers are lines of
    their own that name the part."""
    begin, end = f"<!-- {name}: written by", f"<!-- end of {name} -->"
    text = file.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{file} needs one line '{begin} COMMAND -->' and one line '{end}' for this part.")
    start = text.index("-->", text.index(begin)) + len("-->")
    stop = text.index(end)
    return text[:start], text[start:stop].strip(), text[stop:]

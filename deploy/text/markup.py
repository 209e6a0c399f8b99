"""Markup to plain paragraphs: each function takes a marked-up text and gives the list of its paragraphs.

A paragraph of prose is one line; code and verse keep their lines. Headings stay as paragraphs. Left out: navigation, tables
of contents, underlines, tables, long listings.
"""

from __future__ import annotations

import html
import re

LONGEST_LISTING = 12  # lines of code that a manual's text keeps


def join_lines(lines: list[str]) -> str:
    """The lines of one paragraph as one line; a word that was broken at its hyphen is one word again."""
    text = ""
    for line in lines:
        line = line.strip()
        if re.search(r"\w--?$", text) and re.match(r"\w", line):
            text += line
        else:
            text += (" " if text and line else "") + line
    return re.sub(r"[ \t]+", " ", text).strip()


def blocks(text: str) -> list[list[str]]:
    """Runs of lines between blank lines."""
    return [run.split("\n") for run in re.split(r"\n(?:[ \t\f]*\n)+", text.strip("\n")) if run.strip()]


def osis(text: str) -> list[str]:
    """OSIS, as SWORD modules have it: titles and x-p milestones begin paragraphs, other elements are taken out."""
    text = re.sub(r"<note\b[^>]*>.*?</note>", " ", text, flags=re.DOTALL)
    text = re.sub(r'<(?:div\b[^>]*type="(?:x-p|paragraph|introduction|section)"[^>]*|/?title\b[^>]*|/?p\b[^>]*|/?lg?\b[^>]*|lb\b[^>]*|chapter\b[^>]*)>',
                  "\n\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return [_closing_quotes(paragraph) for run in blocks(text) if (paragraph := join_lines(run))]


def _closing_quotes(text: str) -> str:
    """The modules have a space before many a closing quotation mark, and none behind it: 'go, "but' becomes 'go," but'."""
    parts = text.split('"')
    made = parts[0]
    for index, part in enumerate(parts[1:]):
        closes = index % 2 == 1
        if closes and re.search(r"[,.;:!?] $", made) and re.match(r"\w| |$", part):
            made = made[:-1] + '"' + (part if part[:1] == " " else " " + part)
        else:
            made += '"' + part
    return made.rstrip()


def markdown(text: str) -> list[str]:
    """Markdown as html2text writes it from web pages."""
    paragraphs = []
    for run in blocks(text):
        if any("Go to parent page" in line or "Go to previous page" in line or "Go to next page" in line for line in run):
            continue  # the links below a page
        for part in _markdown_parts(run):
            plain = _markdown_inline(join_lines(part))
            if re.search(r"\w", plain) and "|" not in plain and "](" not in plain:  # tables; contents of a page
                paragraphs.append(plain)
    return paragraphs


def _markdown_parts(run: list[str]) -> list[list[str]]:
    """A heading and each item of a list are paragraphs of their own."""
    parts: list[list[str]] = []
    for line in run:
        line = re.sub(r"^(?:\s*>)+ ?", "", line)
        if re.fullmatch(r"\s*(?:[-*_=] ?){3,}\s*|\s*", line):
            parts.append([])
        elif re.match(r"#{1,6}(\s|$)", line):
            parts += [[line.lstrip("#").strip()], []]
        elif re.match(r"\s*(?:[*+-]|\d+\\?\.)\s", line):
            parts.append([line])
        elif parts:
            parts[-1].append(line)
        else:
            parts.append([line])
    return [part for part in parts if part]


def _markdown_inline(text: str) -> str:
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r'\[\s*((?:[^\[\]]|\[[^\]]*\])*?)\s*\]\((?:[^()\s]|\([^()]*\))*(?:\s+"[^"]*")?\s*\)', r"\1", text)
    text = re.sub(r"<(https?://[^>]+)>", r"\1", text)
    text = re.sub(r"\\([\\`*_{}\[\]()#+.!>|-])", "\\1", text.replace("\\_", "\x01"))
    text = re.sub(r"\*\*\s*|`", lambda found: "\x02" if found.group().startswith("**") else "", text)
    text = re.sub(r"(?<=\w)\x02(?=\w)", " ", text).replace("\x02", "")
    text = re.sub(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])", "", text).replace("\x01", "_")
    text = re.sub(r"^\s*[*+-]\s+", "- ", text)
    text = re.sub(r"(?<=\w) +([,;:)\]])|(?<=\w) +([.?!])(?![\w.])(?! \.)", lambda found: found.group(1) or found.group(2), text)
    text = re.sub(r"([(\[])\s+", r"\1", text)
    return re.sub(r" {2,}", " ", text).strip()


# A formatting code is a capital letter before <, also inside a word: B<-0xI<HHH>>.
_POD_NAMES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/"}


def pod(text: str) -> list[str]:
    """Perl's POD."""
    paragraphs, skipped, listing = [], 0, []
    for run in blocks("\n" + text):
        lines = run
        if lines[0][:1] in " \t":
            if not skipped:
                listing += ([""] if listing else []) + lines
            continue
        paragraphs += _listing(listing)
        listing = []
        command = re.match(r"=(\w+)\s*", lines[0])
        if command:
            word = command.group(1)
            skipped += {"begin": 1, "end": -1}.get(word, 0)
            skipped = max(skipped, 0)
            if not re.fullmatch(r"head\d|item", word) or skipped:
                continue
            lines = [lines[0][command.end():], *lines[1:]]
            plain = pod_inline(join_lines(lines))
            bullet = re.match(r"\*\s*", plain) if word == "item" else None
            plain = "- " + plain[bullet.end():] if bullet and plain[bullet.end():] else "" if bullet else plain
            if re.search(r"\w", plain) and not re.fullmatch(r"\d+\.?", plain):
                paragraphs.append(plain)
        elif not skipped:
            plain = pod_inline(join_lines(lines))
            if plain:
                paragraphs.append(plain)
    return paragraphs + _listing(listing)


def _listing(lines: list[str]) -> list[str]:
    """A listing with its indentation reduced to what its lines do not share, if it is short."""
    if not lines or len(lines) > LONGEST_LISTING:
        return []
    lines = [line.expandtabs() for line in lines]
    shared = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    # A blank line inside a listing would make two paragraphs of it.
    return ["\n".join("    " + line[shared:].rstrip() for line in lines if line.strip())]


def pod_inline(text: str) -> str:
    """Text without formatting codes: C<< a >>, B<b>, L<text|target>, E<lt>; innermost first."""
    def single(text: str) -> str:
        before = None
        while before != text:
            before, text = text, re.sub(r"([BCEFILSXZ])<([^<>]*)>", lambda found: plain(found[1], found[2]), text)
        return text

    def plain(code: str, inner: str) -> str:
        inner = inner.replace("<", "\x01").replace(">", "\x02")
        if code in "XZ":
            return ""
        if code == "E":
            return _POD_NAMES.get(inner, html.unescape(f"&{inner};")).replace("<", "\x01").replace(">", "\x02")
        if code == "L":
            shown, bar, _ = inner.partition("|")
            return shown if bar else shown.replace("/", ", ").strip(", ") if "://" not in shown else shown
        return inner

    text = re.sub(r"E<(\w+)>", lambda found: plain("E", found[1]), text)
    before = None
    while before != text:
        before = text
        text = re.sub(r"([BCFILSXZ])<<<?\s+((?:(?![BCFILSXZ]<<).)*?)\s+>>>?", lambda found: plain(found[1], single(found[2])), text)
    return single(text).replace("\x01", "<").replace("\x02", ">").strip()


def asciidoc(text: str) -> list[str]:
    """AsciiDoc as git's manuals have it."""
    kept, fence, listing = [], "", []
    for line in text.split("\n"):
        bare = line.rstrip()
        delimiter = re.fullmatch(r"(-{4,}|\.{4,}|={4,}|_{4,}|\*{4,}|--|~{4,}|\^{4,}|\+{4,}|/{4,})", bare)
        if fence:
            if fence == " ":
                fence = fence if bare else ""
            elif bare == fence:
                kept += ["", *(_listing(["    " + line for line in listing]) or [""]), ""]
                fence, listing = "", []
            else:
                listing.append(line)
        elif delimiter and kept and kept[-1].strip() and not kept[-1].startswith(" ") and abs(len(bare) - len(kept[-1])) <= 3:
            kept.append("")  # the underline of a heading
        elif delimiter and bare[0] in "-./" and len(bare) >= 4:
            fence = bare
        elif bare == "[verse]":
            fence = " "  # a synopsis: to the next blank line
        elif delimiter or bare == "+" or re.match(r"(\[.*\]$|:[\w-]+!?:|include::|ifn?def::|endif::|//|\|)", bare):
            kept.append("")
        else:
            kept.append(bare)
    return [paragraph for run in blocks("\n".join(kept)) for part in _asciidoc_items(run) if (paragraph := _asciidoc_run(part)) and paragraph not in ("NAME", "SYNOPSIS")]


def _asciidoc_items(run: list[str]) -> list[list[str]]:
    """Each item of a list begins a paragraph."""
    parts: list[list[str]] = []
    for line in run:
        if not parts or re.match(r"\s*(?:\*{1,5}|-|\.{1,5}|\d+\.)\s+\S", line):
            parts.append([line])
        else:
            parts[-1].append(line)
    return parts


def _asciidoc_run(run: list[str]) -> str:
    item = re.match(r"\s*(?:\*{1,5}|-|\.{1,5}|\d+\.)\s+\S", run[0])
    prose = item or run[0].rstrip().endswith("::") or sum(map(len, run)) > 55 * len(run) or "linkgit:" in "".join(run)
    if all(line[:1] in " \t" for line in run) and not prose:
        return "".join(_listing(run)) if len(run) > 1 or len(run[0]) < 60 else join_lines(run)
    text = join_lines(run)
    text = re.sub(r"^[=#]+\s+|\s+=+$|\[\[[\w-]+\]\]", "", text)
    text = re.sub(r"\{(\w+)\}", lambda found: _ASCIIDOC_NAMES.get(found[1], found[0]), text)
    text = re.sub(r"link(?:git)?:([\w.-]+)\[(\d)\]", r"\1(\2)", text)
    text = re.sub(r"(?:link:|xref:)?(?:https?://)?[^\s\[\]]*\[\[?([^\[\]]*)\]\]?(?=\W|$)", _asciidoc_link, text)
    text = re.sub(r"<<[\w-]+,\s*([^>]*)>>", r"\1", text)
    text = re.sub(r"<<([\w-]+)>>", r"\1", text)
    text = re.sub(r"`+([^`]*?)`+", r"\1", text)
    text = re.sub(r"(?<!\w)([*'_])(\S(?:[^*'_]*?\S)?)\1(?!\w)", r"\2", text)
    text = re.sub(r"(\S)::$", r"\1", re.sub(r"(\S):: (?=\S)", r"\1: ", text))
    text = re.sub(r"^(?:\*+|-|\.+)\s+(?=\w)", "- ", text)
    return html.unescape(text)


_ASCIIDOC_NAMES = {"caret": "^", "asterisk": "*", "tilde": "~", "plus": "+", "apostrophe": "'", "startsb": "[", "endsb": "]", "litdd": "--",
                   "backslash": "\\", "empty": ""}


def _asciidoc_link(found: re.Match) -> str:
    return found[1] if re.match(r"link:|xref:|https?://", found[0]) else found[0]


_CONTENTS = re.compile(r"\s*(?:[*-]\s+)?(?:(?:\d+|[A-Z])\.(?:\d+\.)*|[ivx]+\.)\s+\S.*|.*\.{5,}\s*\d+\s*")


def plain(text: str) -> list[str]:
    """Text that was laid out for a terminal: underlines, tables, contents and page breaks go, paragraphs become lines."""
    lines = [line.rstrip() for line in text.replace("\f", "\n").replace("\xa0", " ").split("\n")]
    lines = ["" if re.fullmatch(r"\s*[-=*~_^\"+#.═]{3,}\s*", line) or re.match(r"\s*([|│├└┌╭╰]|\+[-=+])", line) else line for line in lines]
    paragraphs = []
    for run in blocks("\n".join(_without_contents(lines))):
        paragraphs += _plain_run(run)
    return paragraphs


def _without_contents(lines: list[str]) -> list[str]:
    """Without runs of four and more numbered headings with nothing between them."""
    kept, run = [], []
    for line in [*lines, None]:
        if line is not None and (not line.strip() or _CONTENTS.fullmatch(line)):
            run.append(line)
            continue
        headings = [index for index, held in enumerate(run) if held.strip()]
        kept += [""] if len(headings) >= 4 else run
        run = []
        if line is not None:
            kept.append(line)
    return kept


def _plain_run(run: list[str]) -> list[str]:
    """Prose in one line; what looks like a listing or verse as it is."""
    widths = [len(line.strip()) for line in run]
    if re.match(r"\s*(Table|Figure) [\dA-Z]+\.\d*", run[0]) and len(run) <= 3:
        return []
    if len(run) > 1 and (sum(width > 45 for width in widths[:-1]) < 0.7 * (len(run) - 1) or re.search(r"\S {3,}\S", run[0])):
        if all(re.match(r"\s*[*o-]\s", line) for line in run):
            return ["- " + line.strip()[1:].strip() for line in run]
        return _listing(run)
    text = join_lines(run)
    if len(run) == 1 and run[0].startswith("   ") and re.match(r"\s*[#$] ", run[0]):
        return _listing(run)
    return [re.sub(r"^[*o•]\s+", "- ", text)]

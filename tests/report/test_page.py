import re
from html.parser import HTMLParser

import pytest

from sentsmith.errors import InputError
from sentsmith.report.page import Callout, Headline, Page, Picture, Section, render, write_page
from sentsmith.report.pictures import curve, heat_map
from sentsmith.report.side_by_side import side_by_side
from sentsmith.report.tables import Delta, Marked, Score, Table
from sentsmith.search.compare import Hit

EVIL = "<script>alert(1)</script><img src=http://evil.example/x.png onerror=alert(2)> {{ 7*7 }} `<b>`"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Checker(HTMLParser):
    """Notes tags that do not close in order, and every attribute."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.wrong, self.attributes, self.tags, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append((tag, self.getpos()))

    def handle_data(self, data):
        self.text.append(data)


def check(html):
    checker = Checker()
    checker.feed(html)
    checker.close()
    return checker


def full_page(text="plain text"):
    return Page(
        title=text,
        lead=f"{text}\n\nsecond paragraph",
        headlines=[
            Headline(text, "79.86", Delta(0.99, low=0.5, high=1.4), note=text),
            Headline("plain", "1"),
        ],
        sections=[
            Section(
                text,
                text=f"{text} with `code`",
                callouts=[Callout("good", text), Callout("warning", text), Callout("note", text)],
                pictures=[
                    Picture(curve({text: [(0, 1), (1, 2)]}, x_label=text, y_label=text, title=text), caption=text),
                    Picture(heat_map([[1.0]], row_labels=[text], column_labels=[text], title=text)),
                ],
                tables=[
                    Table(
                        (text, "n", "score"),
                        [(text, 3, Score(80.0, Delta(-1.0))), (Marked(text, text), None, Delta(2.0))],
                        caption=text,
                    ),
                    Table((text,), [(text,)], caption=text, folded=True),
                ],
                notes=[text],
            ),
            Section(text),
            Section("Third"),
        ],
        footer=text,
    )


@pytest.fixture(scope="module")
def html():
    return render(full_page())


@pytest.fixture(scope="module")
def evil():
    return render(full_page(EVIL))


def test_the_page_is_well_formed(html, evil):
    for page in (html, evil):
        checker = check(page)
        assert checker.wrong == []
        assert checker.open == []
        ids = [value for _, name, value in checker.attributes if name == "id"]
        assert len(ids) == len(set(ids))
        assert checker.tags.count("h1") == 1


def test_nothing_is_loaded_from_anywhere(html, evil):
    for page in (html, evil):
        checker = check(page)
        loading = {
            "src",
            "srcset",
            "href",
            "xlink:href",
            "data",
            "poster",
            "action",
            "background",
            "formaction",
        }
        assert all(value.startswith("#") for _, name, value in checker.attributes if name in loading)
        assert not {"link", "iframe", "object", "embed", "base", "img", "form"} & set(checker.tags)
        assert not any(name.startswith("on") for _, name, _ in checker.attributes)
        assert "@import" not in page
        assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))


def test_text_from_outside_stays_text(evil):
    checker = check(evil)
    assert checker.tags.count("script") == 1  # the page's own
    assert "b" not in checker.tags
    assert "49" not in evil.split("<main>")[1].split("<svg")[0]
    assert any("<script>alert(1)</script>" in text for text in checker.text)


def test_contents_link_to_the_sections(html):
    checker = check(html)
    ids = {value for tag, name, value in checker.attributes if tag == "section" and name == "id"}
    links = [value[1:] for tag, name, value in checker.attributes if tag == "a" and name == "href"]
    assert links == ["plain-text", "plain-text-2", "third"]
    assert set(links) == ids


def test_every_part_is_on_the_page(html):
    text = " ".join(check(html).text)
    for part in ("79.86", "+0.99 [+0.50, +1.40]", "80.00", "−1.00", "+2.00", "Warning", "second paragraph"):
        assert part in text
    assert "<code>code</code>" in html
    assert 'class="delta loss"' in html
    assert html.count("<details>") == 1


def variables(block):
    return dict(re.findall(r"(--[\w-]+): ([^;]+);", block))


def test_both_themes_define_every_colour(html):
    style = html.split("<style>")[1].split("</style>")[0]
    light = variables(style.split("@media (prefers-color-scheme: dark)")[0])
    by_preference = variables(re.search(r"prefers-color-scheme: dark\) \{\s*:root:not\([^{]*\{([^}]*)\}", style)[1])
    by_choice = variables(re.search(r':root\[data-theme="dark"\] \{([^}]*)\}', style)[1])
    used = set(re.findall(r"var\((--[\w-]+)", html))
    assert by_preference == by_choice
    assert used <= set(light)
    colours = used - {"--font", "--mono"}
    assert colours <= set(by_choice)
    assert all(light[name] != by_choice[name] for name in colours)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(html, theme):
    style = html.split("<style>")[1].split("</style>")[0]
    pattern = r":root \{([^}]*)\}" if theme == "light" else r':root\[data-theme="dark"\] \{([^}]*)\}'
    colours = variables(re.search(pattern, style)[1])
    pairs = [
        *((ink, paper) for ink in ("ink", "muted", "accent") for paper in ("paper", "ground", "tint")),
        *((tone, f"{tone}-tint") for tone in ("gain", "loss", "warn")),
        *((series, "paper") for series in ("before", "after", "gain", "loss")),
    ]
    for ink, paper in pairs:
        low, high = sorted(luminance(colours[f"--{name}"]) for name in (ink, paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)  # WCAG AA


def test_rendering_is_deterministic(html):
    assert render(full_page()) == html


def test_write_page(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_page(Page("Überschrift"), path)
    assert "<title>Überschrift</title>" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="is a folder"):
        write_page(Page("x"), tmp_path)


def test_side_by_side_marks_what_one_model_alone_found():
    before = [[Hit("both", 0.9, 0), Hit("old only", 0.5, 1)]]
    after = [[Hit("new only", 0.8, 2), Hit("both", 0.75, 0), Hit("third", 0.7, 3)]]
    section = side_by_side(["a question?"], before, after, names=("old", "new"))
    (table,) = section.tables
    assert table.columns == ("#", "old", "cosine", "new", "cosine")
    assert table.rows == [
        [1, "both", "0.900", Marked("new only", "only new"), "0.800"],
        [2, Marked("old only", "only old"), "0.500", "both", "0.750"],
        [3, None, None, Marked("third", "only new"), "0.700"],
    ]
    assert table.caption == "“a question?”"
    assert section.notes == ("2 of the 3 sentences that “new” puts on top are not in the list of “old”.",)
    with pytest.raises(ValueError, match="zip"):
        side_by_side(["one", "two"], before, after)

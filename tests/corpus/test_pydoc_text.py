import re

import pytest

from sentsmith.corpus.pydoc_text import pydoc_sentences


@pytest.fixture(scope="module")
def sentences():
    return [sentence for paragraph in pydoc_sentences() for sentence in paragraph]


def prose(text, monkeypatch):
    """The paragraphs of one made-up topic."""
    import pydoc_data.topics

    monkeypatch.setattr(pydoc_data.topics, "topics", {"topic": text})
    return pydoc_sentences()


def test_there_are_a_few_thousand_and_none_twice(sentences):
    assert 1500 < len(sentences) < 10_000
    assert len(set(sentences)) == len(sentences)
    assert pydoc_sentences()[0]  # no empty paragraph


def test_no_markup_is_left(sentences):
    residue = re.compile(r"[\"`\\\n\t]|::=|>>>|\s\[\d+\]|  |(?<![\w*])\*\w+\*(?!\*)|(?<![\w*])\*\*\w+\*\*|\+--|===")
    assert [sentence for sentence in sentences if residue.search(sentence)] == []


def test_they_are_sentences(sentences):
    assert [s for s in sentences if not re.match(r"[“‘(]?[A-Z]", s) or not re.search(r"[.?!][)”’]?$", s)] == []
    assert all(5 <= len(sentence.split()) <= 80 for sentence in sentences)
    known = [s for s in sentences if s.startswith("Assert statements are a convenient way")]
    # Its paragraph goes on to code: it ends in a colon and is left out; the one after is whole.
    assert known == []
    assert "The assignment expression" not in sentences
    assert any(s.startswith("In the current implementation, the built-in variable __debug__ is") for s in sentences)


def test_no_word_is_broken_over_lines(sentences):
    # "post-" / "mortem" was one word before the text was wrapped.
    broken = [
        found for s in sentences for found in re.findall(r"\w+- \w+", s) if not re.search(r"- (?:and|or)\b", found)
    ]
    assert broken == []
    assert any("post-mortem" in sentence for sentence in sentences)


def test_lines_are_joined_and_markup_is_taken_off(monkeypatch):
    text = """\
A *name* is bound by the
"import" statement, as **PEP 8** and "*args" show [3]; see post-
mortem debugging.
"""
    assert prose(text, monkeypatch) == [
        ["A name is bound by the import statement, as PEP 8 and *args show; see post-mortem debugging."]
    ]


def test_what_is_no_prose_is_left_out(monkeypatch):
    text = """\
The "with" statement
********************

The body is what is run by it.

   with_stmt ::= "with" "(" with_item

   >>> with open("a") as file:
   ...     print(file.read() or "This is not a sentence of the text.")

   def hello(name="x"):
       return "This is a string that is in the code."

+--------------+--------------------------------+
| This is in   | a table that is not the text.  |
+--------------+--------------------------------+

str.format(value, spec=None)

   Return the value as it is asked for by the spec.

* This is the first item of a list.

* This is the second, and it goes on
  in a line of its own.

New in version 3.4: This was added to the language.
"""
    assert prose(text, monkeypatch) == [
        ["The body is what is run by it."],
        ["Return the value as it is asked for by the spec."],
        ["This is the first item of a list."],
        ["This is the second, and it goes on in a line of its own."],
        ["This was added to the language."],
    ]


def test_stops_within_code_do_not_end_a_sentence(monkeypatch):
    text = 'Users should inherit from "typing.Generic" if they can. It is "x.Y" that is called then.\n'
    assert prose(text, monkeypatch) == [
        ["Users should inherit from typing.Generic if they can.", "It is x.Y that is called then."]
    ]


def test_code_in_backticks_is_read_as_well(monkeypatch):
    # Later interpreters quote code with backticks.
    text = "The `import` statement and ``a.B`` are in the text.\n"
    assert prose(text, monkeypatch) == [["The import statement and a.B are in the text."]]

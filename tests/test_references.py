"""The sections of the papers that docstrings and comments cite exist."""

import re

from helpers.harness import ROOT, without_backend

FOLDERS = "zoo", "applications", "callbacks", "recipes"
SECTIONS = {  # the papers' own headings
    "Srivastava": "1 2 2.1 2.2 3 3.1 3.2 3.3 3.3.1 3.3.2 4 4.1 4.2 5",
    "Greff": "1 2 3 3.1 3.2 3.3 4 4.1 4.2 4.3 4.4 5 5.1 5.2 6",
    "Jastrzebski": "1 2 3 4 4.1 4.2 4.3 4.4 4.5 5",
    "Tomasi": "1 2 3 4 4.1 4.2 5 6",
}
CITATION = re.compile(r"sections? ((?:\d(?:\.\d)*(?:, | and | to |, and )?)+)")


@without_backend
def test_every_cited_section_exists():
    names = re.compile("|".join((*SECTIONS, "Arora", "Veit", "Kim", "He et", "Hardt")))
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        text = re.sub(r"(Srivastava|Greff), (Greff|Srivastava), Schmidhuber", r"\1", text)
        for citation in CITATION.finditer(text):
            paper = [None, *names.findall(text[: citation.start()])][-1]
            if paper in SECTIONS:
                for section in re.findall(r"\d(?:\.\d)*", citation[1]):
                    assert section in SECTIONS[paper].split(), f"{path}: {paper}, {citation[0]}"

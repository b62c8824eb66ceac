"""The sections of the papers that the documentation cites exist, and are the right ones."""

import inspect
import re

import pytest

import zoo
from helpers.harness import ROOT, without_backend
from zoo.graph import fold
from zoo.regularizers import TransferredL2

pytestmark = without_backend

FOLDERS = "zoo", "applications", "callbacks", "recipes"
SECTIONS = {  # the papers' own headings
    "Srivastava": "1 2 2.1 2.2 3 3.1 3.2 3.3 3.3.1 3.3.2 4 4.1 4.2 5",
    "Greff": "1 2 3 3.1 3.2 3.3 4 4.1 4.2 4.3 4.4 5 5.1 5.2 6",
    "Jastrzebski": "1 2 3 4 4.1 4.2 4.3 4.4 4.5 5",
    "Tomasi": "1 2 3 4 4.1 4.2 5 6",
}
CITATION = re.compile(r"sections? ((?:\d(?:\.\d)*(?:, | and | to |, and )?)+)")
TOPICS = [
    (zoo.lesion, r"Srivastava.* section 4\.2 .*Jastrzebski.* section 4\.2 "),
    (zoo.callbacks.early_exits, r"Jastrzebski.* section 4\.2, Fig. 5"),
    (zoo.loop, r"Jastrzebski.* section 4\.4, Figs 7 and 20"),
    (zoo.UnsharedBatchNormalization, r"Jastrzebski.* section 4\.5"),
    (zoo.shared_resnet, r"Jastrzebski.* section 4\.5"),
    (fold, r"Tomasi.* section 3, equation 1"),
    (TransferredL2, r"Tomasi.* section 4\.1"),
    (zoo.SimplifiedResidual, r"Tomasi.* section 2 and Fig. 5"),
    (zoo.simplified_residual_net, r"Tomasi.* section 2, appendix A"),
    (zoo.simplified_dominant_net, r"Tomasi.* appendix D\.3, Table 5"),
]


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


@pytest.mark.parametrize(("cited_by", "pattern"), TOPICS, ids=lambda x: getattr(x, "__name__", ""))
def test_what_the_papers_define_is_cited_from_its_section(cited_by, pattern):
    assert re.search(pattern, re.sub(r"\s+", " ", inspect.getdoc(cited_by)))

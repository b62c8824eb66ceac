"""Write the page of the README's picture: a diagnosis of the first tutorial, and claims.

    make docs && python docs/overview.py
    chromium --headless --hide-scrollbars --force-device-scale-factor=2 --window-size=800,690 \
        --screenshot=docs/images/overview.png build/overview.html

Any browser will do; the picture is made by hand when the page or the claims look different.
"""

import html
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
STYLE = """
body{margin:0;padding:6px 14px;max-width:none;font-size:13px}h1{margin:4px 0}p{margin:2px 0}
h2{margin:10px 0 2px}details,.diagnosis :is(td,th):nth-child(n+3):nth-child(-n+5),
.diagnosis :is(td,th):nth-child(7){display:none}.claims td:first-child{white-space:normal}
.shown{color:#2a7a3f}.contradicted{color:#c0392b}.undecided{color:var(--soft)}td,th{padding:1px 6px}
"""
CLAIMS = 12  # rows of the table that fit


def claims() -> str:
    """Return the first claims of the README's table as HTML."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    counts = re.search(r"^\d+ of \d+ claims .*$", text, re.M)[0]
    rows = re.findall(r"^\| ([A-Z]\d.*?) \| \*\*(\w+)\*\* \| (.*?) \| (.*?) \|$", text, re.M)
    cells = "".join(
        f'<tr><td class="t">{html.escape(claim)}<td class="t {verdict}">{verdict}'
        f'<td class="t">{measured}<td class="t">{criterion}'
        for claim, verdict, measured, criterion in rows[:CLAIMS]
    )
    columns = ("claim", "verdict", "measured", "criterion")
    head = "".join(f'<th class="t">{name}' for name in columns)
    table = f'<table class="claims"><tr>{head}{cells}</table>'
    return f'<h2>Claims of the papers, tested</h2><p class="soft">{counts}</p>{table}'


if __name__ == "__main__":
    page = (ROOT / "build" / "tutorials" / "diagnosis.html").read_text(encoding="utf-8")
    diagnosis = page[: page.index("<h2>Blocks by measures")]
    diagnosis = diagnosis.replace("</style>", f"{STYLE}</style>").replace(
        '<div class="wide">', '<div class="wide diagnosis">', 1
    )
    diagnosis = re.sub("<h1>.*?</h1>", "<h1>zoo.diagnose(model, x, y)</h1>", diagnosis)
    (ROOT / "build" / "overview.html").write_text(diagnosis + claims(), encoding="utf-8")

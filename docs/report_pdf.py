"""Write docs/report.md, with its figures, as a PDF: python docs/report_pdf.py OUT.pdf."""

import pathlib
import re
import sys

import markdown
import weasyprint

DOCS = pathlib.Path(__file__).parent
STYLE = """
@page { size: A4; margin: 18mm; @bottom-center { content: counter(page); font-size: 8pt; } }
body { font: 9pt sans-serif; }
table { border-collapse: collapse; margin: 2mm 0; }
th, td { border-top: 0.5pt solid #999; padding: 1pt 4pt; font-size: 7pt; text-align: left; }
h1, h2, h3 { break-after: avoid; }
img { display: block; max-width: 120mm; max-height: 110mm; }
pre { font-size: 7pt; white-space: pre-wrap; }
a { color: inherit; text-decoration: none; }
"""


def main(path: str) -> None:
    """Write the PDF to `path`."""
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    text = re.sub("<!--.*?-->", "", text)  # the marks of numbers, which end tables in Markdown
    html = markdown.markdown(text, extensions=["tables", "fenced_code"])
    page = weasyprint.HTML(string=html, base_url=str(DOCS / "report.md"))
    page.write_pdf(path, stylesheets=[weasyprint.CSS(string=STYLE)])


if __name__ == "__main__":
    main(sys.argv[1])

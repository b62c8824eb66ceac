"""Tables and figures of runs, results on record, and the pages of docs that show them."""

import collections
import functools
import html
import json
import math
import pathlib
import re
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from zoo import weights
from zoo.checks import check_choice, require
from zoo.io import replace
from zoo.recipes.experiment import catalog, definitions, plots, provenance, store
from zoo.recipes.experiment.definitions import Artifact, Claim, Experiment, Measured
from zoo.recipes.experiment.provenance import ROOT

RESULTS = ROOT / "recipes" / "results"
CLAIMS = RESULTS / "claims.json"
DOCS = ROOT / "docs"
MARK = "<!-- written by `make results` -->"  # begins, and may end, the generated part of a page
NUMBER = re.compile(r"(<!--(\w+)\.(\w+)-->).*?<!--/-->")  # in a page: claim, kind
THEN = ", then "  # between the facts of records that were joined
IN_TABLE = ("builder", "arguments", "data", "metric", "examples", "verified", "parameters", "size")


def check_checkout() -> None:
    """Raise ValueError if there is no checkout, whose files `report` and --keep write."""
    if not DOCS.exists():
        raise ValueError("`report` and --keep write into a checkout, not an installed package.")


def draw(
    experiment: Experiment, measured: Sequence[Measured], folder: pathlib.Path
) -> dict[Artifact, Any]:
    """Write all tables and figures of an experiment as NAME.csv and NAME.png, and return them.

    Those whose function returns None, or no rows, are left out: these runs lack their numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[Artifact, Any] = {}
    for artifact in experiment.artifacts:
        shown = artifact.make(measured)
        if isinstance(shown, Figure):
            plots.save(shown, folder / f"{artifact.name}.png")
        elif shown := [*(shown or ())]:
            _write_text(folder / f"{artifact.name}.csv", store.csv_text(shown))
        made[artifact] = shown
    return made


def keep(experiment: Experiment, scale: str, folders: Sequence[pathlib.Path]) -> None:
    """Copy what runs measured to recipes/results, and draw it there.

    Seeds on record with other settings are a ValueError.
    """
    kept = RESULTS / experiment.name / scale
    settings = _settings(folders[0])
    names = {folder.name for folder in folders}
    for other in (path for path in seeds_on_record(experiment, scale) if path.name not in names):
        known = _settings(other)
        for key, value in settings.items():
            kept_value = known.get(key, value)
            expected = f"{kept_value!r} as on record; run without --keep, or delete {kept} first"
            require(kept_value == value, expected, **{key: value})
    for folder in folders:
        target = kept / folder.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("measured.npz", store.MEASURED):  # the last one completes it
            replace(target / name, functools.partial(shutil.copyfile, folder / name))
    draw(experiment, [measured for measured, _ in on_record(experiment, scale)], kept)


def _settings(folder):
    facts = store.load(folder)[1]
    return {**facts["settings"], "backend": facts["backend"], "data": facts["data"]}


def seeds_on_record(experiment: Experiment, scale: str) -> list[pathlib.Path]:
    """Return the folders of an experiment's seeds on record."""
    found = (RESULTS / experiment.name / scale).glob(f"seed*/{store.MEASURED}")
    return sorted((path.parent for path in found), key=lambda path: int(path.name[4:]))


def on_record(experiment: Experiment, scale: str) -> list[tuple[Measured, Mapping[str, Any]]]:
    """Return what each seed on record measured, and the facts of its run."""
    return [store.load(folder) for folder in seeds_on_record(experiment, scale)]


def load_claims() -> list[dict[str, Any]]:
    """Return the records of claims.json."""
    return json.loads(CLAIMS.read_text(encoding="utf-8")) if CLAIMS.exists() else []


def keep_claims(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records of claims.json, each instead of an earlier one of its criterion and scale."""
    known = {_key(row): row for row in [*load_claims(), *rows]}
    places = {claim.name: place for place, (_, claim) in enumerate(catalog.claims())}
    last = len(places)  # of claims that are no longer measured
    records = sorted(known.values(), key=lambda row: places.get(row["claim"], last))
    _write_text(CLAIMS, json.dumps(records, indent=1, ensure_ascii=False) + "\n")


def _key(row):
    return row["claim"], row["criterion"], row.get("control", {}).get("text"), row["scale"]


def evaluate(
    experiment: Experiment,
    claim: Claim,
    measured: Sequence[Sequence[Measured]],
    facts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a claim's record for claims.json.

    `measured` has by seed the measurements of the needed experiments, `facts` are of all runs.
    """
    values = [float(claim.value(*one)) for one in measured]
    controls = [float(claim.control.value(*one)) for one in measured]
    scale = facts[0]["scale"]
    keys = ("commit", "backend", "hardware", "data")
    return {
        "claim": claim.name,
        "paper": f"{catalog.TITLES[experiment.paper]}, {claim.section}",
        "statement": claim.statement,
        "criterion": claim.criterion,
        **_decision(claim, values, controls),
        "seeds": [*dict.fromkeys(one["seed"] for one in facts)],
        "scale": scale,
        "command": provenance.command(),
        **{key: _distinct(one[key] for one in facts) for key in keys},
        "seconds": round(sum(one["seconds"] for one in facts), 1),
        "deviations": [*dict.fromkeys(text for one in facts for text in one["deviations"])],
        "figure": claim.figure and f"{experiment.name}/{scale}/{claim.figure}",
    }


def _distinct(texts, separator=", "):
    """Return the different parts of texts, which a separator divides, in their order."""
    return separator.join(dict.fromkeys(separator.join(texts).split(separator)))


def with_other_seeds(claim: Claim, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim's record with other seeds on record, of the same settings and backend."""
    known = next((one for one in load_claims() if _key(one) == _key(row)), row)
    is_same = all(known[name] == row[name] for name in ("backend", "data"))
    if not is_same or sorted(known["deviations"]) != sorted(row["deviations"]):
        print(f"{claim.name}: replaces seeds {known['seeds']}, of other data or settings")
        return {**row}
    pairs = dict(sorted({**_by_seed(known), **_by_seed(row)}.items()))
    kept = len(pairs) - len(row["seeds"])
    if kept == 0:
        return {**row}
    most = max(definitions.LOOKS)
    require(len(pairs) <= most, f"at most {most}, with those on record", seeds=[*pairs])
    values, controls = zip(*pairs.values(), strict=True)
    return {
        **row,
        **_decision(claim, values, controls),
        "seeds": [*pairs],
        **{k: _distinct((known[k], row[k]), THEN) for k in ("command", "commit", "hardware")},
        "seconds": round(known["seconds"] * kept / len(known["seeds"]) + row["seconds"], 1),
    }


def _by_seed(row):
    """Return the values of a claim's record and of its control, by seed."""
    pairs = zip(row["values"], row["control"]["values"], strict=True)
    return dict(zip(row["seeds"], pairs, strict=True))


def _decision(claim, values, controls):
    """Return what is decided by the values of the seeds and of the control."""
    return {
        **_numbers(claim, values),
        "control": {"text": claim.control.text, **_numbers(claim, controls)},
        "verdict": claim.verdict(values, controls),
    }


def _numbers(claim, values):
    """Return the mean, interval and values of the seeds, in four digits."""
    used = definitions.looked_at(values) or values
    is_ratio = claim.ratio and min(used) > 0  # one that is 0 has no logarithm
    mean = statistics.geometric_mean(used) if is_ratio else statistics.fmean(used)
    ends = definitions.interval(values, claim.ratio)
    return {
        "value": float(f"{mean:.4g}"),
        "interval": ends and [float(f"{end:.4g}") for end in ends],
        "values": [float(f"{value:.4g}") for value in values],
    }


class Decided(NamedTuple):
    """A claim, its records by its present criterion, the largest scale last, and its verdict."""

    experiment: Experiment
    claim: Claim
    rows: Sequence[Mapping[str, Any]]
    verdict: str


def decided(rows: Sequence[Mapping[str, Any]]) -> list[Decided]:
    """Return all claims, each with its records in claims.json by its present criterion."""
    found = []
    for experiment, claim in catalog.claims():
        present = claim.name, claim.criterion, claim.control.text
        own = {
            row["scale"]: row | _decision(claim, row["values"], row["control"]["values"])
            for row in rows
            if _key(row)[:3] == present
        }
        if own or not _is_ours(experiment):
            ordered = [own[scale] for scale in experiment.scales if scale in own]
            verdict = ordered[-1]["verdict"] if ordered else "not measured"
            found.append(Decided(experiment, claim, ordered, verdict))
    return found


def listing(patterns: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for each experiment, followed by lines for its tables, figures and claims."""
    names = catalog.find(patterns) if patterns else [*catalog.EXPERIMENTS]
    verdicts = {one.claim.name: f" ({one.verdict})" for one in decided(load_claims())}
    has_records = RESULTS.exists()  # a wheel has none
    for experiment in map(catalog.load, names):
        counts = {scale: len(seeds_on_record(experiment, scale)) for scale in experiment.scales}
        kept = ", ".join(f"{scale}: {count} seeds" for scale, count in counts.items() if count)
        yield experiment.name + f"  (on record: {kept or 'nothing'})" * has_records
        for artifact in experiment.artifacts:
            yield f"    {experiment.paper}/{artifact.name:12} {artifact.title}"
        if experiment.claims:
            own = [one.name for one in experiment.claims]
            claims = [one + verdicts.get(one, " (not measured)") * has_records for one in own]
            yield f"    claims {', '.join(claims)}"
    if not patterns:
        yield from (f"{name}  {text}" for name, text in catalog.OTHERS.items())


def report() -> None:
    """Write what is generated of README.md and docs, and draw the figures on record again."""
    check_checkout()
    rows = load_claims()
    claims = decided(rows)
    largest = [one._replace(rows=one.rows[-1:]) for one in claims]
    settled = claims_table(largest, lambda one: one.verdict not in ("undecided", "not measured"))
    write_generated(ROOT / "README.md", f"{summary(claims)}\n\n{settled}")
    write_generated(DOCS / "claims.md", claims_page(rows))
    write_generated(DOCS / "weights.md", weights_page())
    _write_text(RESULTS / "weights.csv", store.csv_text(weights_rows()))
    parts = collections.defaultdict(list)
    costs = []  # of the papers' runs
    for experiment in catalog.load_all():
        for scale in experiment.scales:
            if records := on_record(experiment, scale):
                measured, facts = map(list, zip(*records, strict=True))
                made = draw(experiment, measured, RESULTS / experiment.name / scale)
                page = experiment.paper if _is_ours(experiment) else "results"
                parts[page] += _experiment_section(experiment, scale, made, facts)
                costs += [] if _is_ours(experiment) else [_cost(experiment, scale, facts)]
    for page in {*parts} & {*catalog.OURS}:
        parts[page] += [claims_table(claims, lambda one, page=page: one.experiment.paper == page)]
    papers = claims_table(claims, lambda one: not _is_ours(one.experiment))
    parts["report"] = [papers, "", *markdown_table(costs)]
    for name, lines in parts.items():
        path = DOCS / f"{name}.md"
        write_generated(path, "\n".join(lines))
        _write_text(path, with_numbers(path.read_text(encoding="utf-8"), rows))


def write_generated(path: pathlib.Path, text: str) -> None:
    """Replace what is between the marks of a page, or follows its only one."""
    parts = path.read_text(encoding="utf-8").split(MARK)
    parts[1] = f"\n\n{text}\n"
    _write_text(path, MARK.join(parts))


def _write_text(path, text):
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def escaped(text: Any) -> str:
    """Return a value as a text that Markdown shows as it is, in a cell of a table."""
    text = "" if text is None else f"{text}"
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows with the same keys as the lines of a table."""
    lines = [f"| {' | '.join(rows[0])} |", "| --- " * len(rows[0]) + "|"]
    return lines + [f"| {' | '.join(map(escaped, row.values()))} |" for row in rows]


def summary(claims: Sequence[Decided]) -> str:
    """Return how many claims have each verdict, in one sentence."""
    counts = collections.Counter(one.verdict for one in claims)
    verdicts = "shown", "contradicted", "undecided", "not told apart", "not measured"
    known = [f"{counts[one]} {one}" for one in verdicts if counts[one]]
    return f"Of {len(claims)} claims, {', '.join(known)}."


def claims_table(
    claims: Sequence[Decided], is_wanted: Callable[[Decided], bool] = lambda one: True
) -> str:
    """Return a line for each wanted claim and scale: verdict, value, criterion, control.

    Decided claims whose p-value is above 0.05 with Holm's correction are marked.
    """
    tested = [one for one in claims if one.verdict in ("shown", "contradicted")]
    p_values = definitions.holm([one.claim.p_value(one.rows[-1]["values"]) for one in tested])
    marked = [one.rows[-1] for one, p in zip(tested, p_values, strict=True) if p > 0.05]
    lines = [
        {
            "claim": f"{one.claim.name} {one.claim.statement}",
            "scale": row.get("scale", ""),
            "verdict": f"**{row.get('verdict', 'not measured')}**" + "\\*" * (row in marked),
            "measured": measured_text(row) if row else "",
            "criterion": one.claim.limits,
            "control": measured_text(row["control"]) if row else "",
        }
        for one in filter(is_wanted, claims)
        for row in one.rows or [{}]
    ]
    return "\n".join(markdown_table(lines))


def measured_text(row: Mapping[str, Any]) -> str:
    """Return a measured value with its interval."""
    value, *ends = [_rounded(value) for value in (row["value"], *(row["interval"] or ()))]
    return f"{value} ({' to '.join(ends)})" if ends else value


def _rounded(value):
    """Return three digits, or all integral ones up to a million, or "none" for NaN."""
    if math.isnan(value):
        return "none"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def with_numbers(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with the present numbers where it has `<!--S5.range-->...<!--/-->`.

    "values" are those of the seeds, "range" the smallest and largest one, "control_range" those of
    the control, "verdict" the verdict. Raise ValueError for another word, or claim.
    """
    claims = {one.claim.name: one for one in decided(rows)}

    def number(match: re.Match) -> str:
        check_choice(claims, claim=match[2])
        return f"{match[1]}{_number(claims[match[2]], match[3])}<!--/-->"

    return NUMBER.sub(number, text)


def _number(one, kind):
    check_choice(("verdict", "values", "range", "control_range"), number=kind)
    if kind == "verdict":
        return one.verdict
    if not one.rows:
        return "-"
    row = one.rows[-1]["control"] if kind == "control_range" else one.rows[-1]
    if kind == "values":
        return ", ".join(map(_rounded, row["values"]))
    ends = [_rounded(limit(row["values"])) for limit in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _is_ours(experiment):
    return experiment.paper in catalog.OURS


def _cost(experiment, scale, facts):
    """Return a row of a table of runs on record: seeds, minutes, data and hardware."""
    minutes = [one["seconds"] / 60 for one in facts]
    ends = dict.fromkeys(f"{limit(minutes):.0f}" for limit in (min, max))
    return {
        "experiment": f"{experiment.name}, {scale}",
        "seeds": len(facts),
        "minutes a seed": " to ".join(ends),
        **{key: _distinct(one[key] for one in facts) for key in ("data", "backend", "hardware")},
    }


def claims_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all claims, each claim, which unfolds, and earlier measurements."""
    claims = decided(rows)
    parts = [summary(claims), "", claims_table(claims), ""]
    for one in claims:
        claim = one.claim
        title = f"{claim.name}: {one.verdict}. {escaped(claim.statement)}"
        parts += [f"<details><summary>{title}</summary>", ""]
        texts = [f"Criterion: {claim.criterion}. Control: {claim.control.text}."]
        if claim.changed:
            texts.append(f"Changed after a run: {claim.changed.rstrip('.')}.")
        if one.verdict in ("contradicted", "not told apart") and claim.reason:
            texts.append(f"Most likely reason: {claim.reason.rstrip('.')}.")
        parts += [f"- {escaped(text)}" for text in texts]
        for row in one.rows:
            parts += [f"- {escaped(text)}" for text in _facts(one, row)]
            parts += [f"- `{row['command']}`"]
            if row["figure"]:
                alt = f"{claim.name}: {row['figure'].split('/')[-1]}"
                parts += ["", f"![{alt}](../recipes/results/{row['figure']}.png)"]
        parts += ["", "</details>", ""]
    present = {_key(row) for one in claims for row in one.rows}
    earlier = [
        {
            "claim": row["claim"],
            "criterion": row["criterion"],
            "verdict then": row["verdict"] + ", without a control" * ("control" not in row),
            "measured": measured_text(row),
            "seeds": ",".join(map(str, row["seeds"])),
            "changed": row.get("changed", ""),
            "commit": row["commit"],
        }
        for row in rows
        if _key(row) not in present
    ]
    if earlier:
        parts += ["## Earlier measurements", "", *markdown_table(earlier)]
    return "\n".join(parts)


def _facts(one, row):
    """Return sentences about a record of claims.json: numbers, origin, deviations."""
    count = len(row["seeds"])
    texts = [
        f"{name}: {measured_text(part)}; by seed: {', '.join(f'{v:g}' for v in part['values'])}"
        for name, part in {"Measured": row, "control": row["control"]}.items()
    ]
    limits = [f"{factor:g}: {one.claim.decide(row['values'], factor)}" for factor in (0.75, 1.25)]
    if row["verdict"] == "undecided":
        most = len(one.experiment.looks(row["scale"])[-1])
        texts.append(f"undecided after {count} of at most {most} seeds")
    return [
        f"{row['paper']}; {row['scale']}. {'; '.join(texts)}.",
        f"With the criterion times {', times '.join(limits)}.",
        f"{row['data']}; {row['backend']}, {row['hardware']}; {row['seconds'] / 60:.1f} min for "
        f"{count} seed{'s' if count > 1 else ''}; commit {row['commit']}.",
        _deviations(one.experiment, row["deviations"]),
    ]


def _deviations(experiment, deviations):
    text = f"Deviations from the paper: {'; '.join(deviations) or 'none'}."
    return text.replace("the paper", "the scale full") if _is_ours(experiment) else text


def weights_page() -> str:
    """Return the table of published weights, and below it the facts of each card."""
    rows, sections = [], []
    for name, facts in weights.read_cards().items():
        page = RESULTS / "weights" / f"{name}.html"  # of `zoo.callbacks.diagnose`
        backends = {"TensorFlow": "tensorflow", "JAX": "jax", "PyTorch": "torch"}
        rows.append(
            {
                "name": f"[{name}](../{page.relative_to(ROOT)})" if page.exists() else name,
                "parameters": f"{facts['parameters']:,}",
                "file, KB": f"{facts['size'] / 1000:,.0f}",
                "metric": facts["metric"].replace("_", " "),
                **{title: facts["verified"].get(key, "") for title, key in backends.items()},
                "examples": f"{facts['examples']:,}",
            }
        )
        call = ", ".join(f"{key}={value!r}" for key, value in facts["arguments"].items())
        sections += ["", f"## {name}", "", f"- `zoo.{facts['builder']}({call})`"]
        for key, value in facts.items():
            if key not in IN_TABLE and value not in ("", None, []):
                text = "; ".join(value) if isinstance(value, list) else value
                sections.append(f"- {key.replace('_', ' ')}: {escaped(text)}")
    return "\n".join([*markdown_table(rows), *sections])


def weights_rows() -> list[dict[str, Any]]:
    """Return a row for each set of published weights."""
    shown = ("builder", "parameters", "metric", "value", "examples", "trained", "paper", "size")
    return [
        {
            "name": name,
            "data": facts["data"].get("images", facts["data"]["name"]),
            **{key: facts[key] for key in shown},
        }
        for name, facts in weights.read_cards().items()
    ]


def _experiment_section(experiment, scale, made, facts):
    folder = RESULTS.relative_to(ROOT) / experiment.name / scale
    lines = [f"## {experiment.name}, {scale}", ""]
    for artifact, shown in made.items():
        title = f"{artifact.name}: {artifact.title}"
        if isinstance(shown, Figure):
            lines += [f"![{title}](../{folder}/{artifact.name}.png)", ""]
        elif shown:
            lines += [title, "", *markdown_table(shown), ""]
    deviations = dict.fromkeys(text for one in facts for text in one["deviations"])
    lines.append(f"- {_deviations(experiment, deviations)}")
    for one in facts:
        lines.append(
            f"- `{one['command']}`, seed {one['seed']}, {one['data']}, commit {one['commit']}, "
            f"{one['backend']}, {one['hardware']}, {one['seconds'] / 60:.0f} min"
        )
    return [*lines, ""]

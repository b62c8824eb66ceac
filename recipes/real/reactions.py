"""Reaction SMILES: made from templates of common reaction types, tokens, masked tokens."""

import itertools
import re

import numpy as np

TOKEN = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d\d|\d"
)
MASKED = 0.15  # share of the tokens, as in BERT's training (Devlin et al., 2018, section 3.1)
RINGS = (  # aromatic rings; {} is the place of a functional group
    "Cc1ccc({})cc1",
    "COc1ccc({})cc1",
    "Fc1ccc({})cc1",
    "Clc1ccc({})cc1",
    "N#Cc1ccc({})cc1",
    "FC(F)(F)c1ccc({})cc1",
    "Cc1cccc({})c1",
    "COc1cccc({})c1",
    "Fc1cccc({})c1",
    "Cc1ccccc1{}",
    "Clc1ccccc1{}",
    "COc1ccccc1{}",
    "Cc1ccc({})cn1",
    "COc1ccc({})cc1F",
    "Cc1cc({})ccc1F",
    "c1ccc2c({})cccc2c1",
)
CHAINS = (  # groups with one open valence, at their end and at their start
    ("C", "C"),
    ("CC", "CC"),
    ("CCC", "CCC"),
    ("CCCC", "CCCC"),
    ("CC(C)", "C(C)C"),
    ("CC(C)C", "CC(C)C"),
    ("COCC", "CCOC"),
    ("C=CC", "CC=C"),
    ("FC(F)(F)C", "CC(F)(F)F"),
)
SOLVENTS = ("ClCCl", "C1CCOC1", "CN(C)C=O", "CO", "CC#N", "C1COCCO1", "CCO", "Cc1ccccc1")
BASE = ("O=C([O-])[O-]", "[K+]", "[K+]")
COUPLING = ("CCN(C(C)C)C(C)C", "CCN=C=NCCCN(C)C", "Cl")
TEMPLATES = (  # group on the ring, group on the chain or None, reagents, group on the product
    ("C(=O)O", "N", COUPLING, "C(=O)N{}"),  # amide
    ("C(=O)O", "O", ("O=S(=O)(O)O",), "C(=O)O{}"),  # ester
    ("O", "Br", BASE, "O{}"),  # ether (Williamson)
    ("S", "Br", BASE, "S{}"),  # thioether
    ("C=O", "N", ("[BH4-]", "[Na+]"), "CN{}"),  # reductive amination
    ("S(=O)(=O)Cl", "N", ("CCN(CC)CC",), "S(=O)(=O)N{}"),  # sulfonamide
    ("N", "N=C=O", ("CCN(CC)CC",), "NC(=O)N{}"),  # urea
    ("CBr", "O", ("[H-]", "[Na+]"), "CO{}"),  # benzyl ether
    ("C(=O)OC", None, ("[Na+]", "[OH-]"), "C(=O)O"),  # hydrolysis
    ("C=O", None, ("[BH4-]", "[Na+]"), "CO"),  # reduction of an aldehyde
    ("[N+](=O)[O-]", None, ("[Pd]",), "N"),  # reduction of a nitro group
    ("N", None, ("CC(=O)Cl", "CCN(CC)CC"), "NC(C)=O"),  # acylation
    ("N", None, ("CC(C)(C)OC(=O)OC(=O)OC(C)(C)C",), "NC(=O)OC(C)(C)C"),  # Boc protection
)


def make(seed: int) -> list[str]:
    """Return all combinations of templates and groups as reaction SMILES, in random order.

    The components before ">>" are sorted, as in the texts of patents that such models are trained
    on; each has a random solvent. They are plausible reactions of 13 common types, but nobody
    carried them out.

    Example:
    >>> len(make(seed=0)), make(seed=0)[0].count(">>")
    (1232, 1)
    """
    rows = [
        (ring, chain, template)
        for ring, template in itertools.product(RINGS, TEMPLATES)
        for chain in (CHAINS if template[1] else (None,))
    ]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    return [_reaction(*rows[i], str(rng.choice(SOLVENTS))) for i in order]


def _reaction(ring, chain, template, solvent):
    group, chain_group, reagents, product = template
    components = [ring.format(group), *reagents, solvent]
    if chain is not None:
        start, end = chain
        components.append(start + chain_group)
        product = product.format(end)
    return f"{'.'.join(sorted(components))}>>{ring.format(product)}"


def find(text: str) -> list[str]:
    """Return the distinct quoted reaction SMILES in a text, without those that number atoms."""
    quoted = re.findall(r"""["']([^"'\s|]+>>[^"'\s|]+)["']""", text)
    return [*dict.fromkeys(s for s in quoted if not re.search(r":\d+]", s))]


def to_ids(smiles: str, ids: dict[str, int]) -> list[int] | None:
    """Return token ids between those of [CLS] and [SEP]; None if a token is not in `ids`."""
    tokens = TOKEN.findall(smiles)
    if "".join(tokens) != smiles or not {*tokens} <= {*ids}:
        return None
    return [ids["[CLS]"], *(ids[token] for token in tokens), ids["[SEP]"]]


def mask(
    sequences: list[list[int]], ids: dict[str, int], length: int, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs of a masked-token model, and the masked tokens.

    Args:
        sequences: Token ids, as `to_ids` returns them.
        ids: The vocabulary.
        length: Length to which sequences are padded.
        seed: Random seed of the masks.

    Returns:
        A dictionary of `token_ids`, `segment_ids` and `padding_mask`, and labels; all integers of
        shape `(sequences, length)`. Labels are -1 where no token is masked.
    """
    rng = np.random.default_rng(seed)
    tokens = np.full((len(sequences), length), ids["[PAD]"], "int32")
    labels = np.full_like(tokens, -1)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        count = max(1, round(MASKED * (len(sequence) - 2)))
        places = 1 + rng.choice(len(sequence) - 2, count, replace=False)
        labels[row, places] = tokens[row, places]
        tokens[row, places] = ids["[MASK]"]
    padding = (tokens != ids["[PAD]"]).astype("int32")
    inputs = {"token_ids": tokens, "segment_ids": np.zeros_like(tokens), "padding_mask": padding}
    return inputs, labels

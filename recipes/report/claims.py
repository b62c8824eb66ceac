"""Claims of the papers, in the papers' order; `report.verdicts` runs and judges them."""

from collections.abc import Sequence

from experiment.claim import Claim
from greff2017 import claims as greff2017
from jastrzebski2018 import claims as jastrzebski2018
from srivastava2015 import claims as srivastava2015
from yutomasi2019 import claims as yutomasi2019

CLAIMS = [*srivastava2015.CLAIMS, *greff2017.CLAIMS, *jastrzebski2018.CLAIMS, *yutomasi2019.CLAIMS]


def select(names: Sequence[str]) -> list[Claim]:
    """Return the claims of these names; of none, all.

    Raises:
        ValueError: if there is no such claim.
    """
    known = {claim.name: claim for claim in CLAIMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Expected claims of {', '.join(known)}. Received: {', '.join(unknown)}")
    return [known[name] for name in names or known]

"""FedLPPA's affinity of sites by their prompts, and whose decoders make whose auxiliary one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Strategy: TypeAlias = Literal["aggregated", "highest", "fixed", "random"]


def prompt_affinity(prompts: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    r"""Return :math:`a_{ij} = \max(0, \cos(v_i, v_j))` of the sites' prompts (Eqs. 7-8), in double.

    A prompt of length zero is like nothing, not even itself.
    """
    v = prompts.double()
    length = v.norm(dim=1, keepdim=True)
    unit = torch.where(length > 0, v / length.clamp(min=torch.finfo(v.dtype).tiny), 0.0)
    return (unit @ unit.T).clamp(0, 1)


def auxiliary_shares(
    strategy: Strategy,
    site: str,
    sites: tuple[str, ...],
    sent: tuple[str, ...],
    alike: Mapping[str, float | int],
    randoms: torch.Generator,
) -> dict[str, float]:
    r"""Return each site's part in the auxiliary decoder of one site; empty where nobody is fit.

    "aggregated" takes all by :math:`a_{ij} / \sum_j a_{ij}` (Eq. 9), "highest" the most alike other site,
    "fixed" the one before it in the cycle, "random" any other.

    Args:
        strategy: The rule.
        site: For whom.
        sites: All sites, in order.
        sent: Those whose decoder is known.
        alike: The affinity of the site with each of them.
        randoms: What "random" draws from.
    """
    others = [other for other in sent if other != site]
    if strategy == "aggregated":
        fit = {other: alike[other] for other in sent if alike[other] > 0}
        total = sum(fit.values())
        return {other: share / total for other, share in fit.items()}
    if not others:
        return {}
    if strategy == "highest":
        best = max(others, key=lambda other: alike[other])
        return {best: 1.0} if alike[best] > 0 else {}
    if strategy == "fixed":
        at = sites.index(site)
        return {next(s for s in (*sites[:at][::-1], *sites[:at:-1]) if s in others): 1.0}
    return {others[int(torch.randint(len(others), (1,), generator=randoms))]: 1.0}

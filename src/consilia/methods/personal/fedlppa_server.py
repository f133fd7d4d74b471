"""The server half of FedLPPA: what it keeps, and whose decoders make whose auxiliary one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from consilia.methods.contract import Findings
from consilia.ops.affinity import Strategy, auxiliary_shares, prompt_affinity
from consilia.ops.reduce import mixtures
from consilia.payload import Weights
from consilia.training.seeds import generator

UKP, DDP = "fusion.prompts.universal", "fusion.prompts.distribution"


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global network, and of each site the last decoder and prompt it sent.

    Attributes:
        weights: The global network; its auxiliary decoder is the start's, for the first round.
        sites: The rows of the distribution prompt, in order.
        decoders: Each site's main decoder and head, named as an auxiliary decoder.
        prompts: The row of the distribution prompt that each site itself sent.
    """

    weights: Weights
    groups: Mapping[str, tuple[str, ...]]
    sites: tuple[str, ...]
    images: Mapping[str, int]
    decoders: Mapping[str, Weights]
    prompts: Mapping[str, Tensor]
    last: Mapping[str, float]
    round: int
    seed: int


def affinity_of(server: Server, sites: tuple[str, ...]) -> Tensor:
    """Return the affinities of sites, by the common prompt and the row that each sent (Eqs. 7-8).

    Of a newcomer, which has not sent any, it takes the row of the global prompt.
    """
    common = [server.weights[UKP].flatten()] if UKP in server.weights else []
    rows = [server.prompts.get(s, server.weights[DDP][server.sites.index(s)]) for s in sites]
    return prompt_affinity(torch.stack([torch.cat((*common, row.flatten())) for row in rows]))


def findings_of(server: Server) -> Findings:
    """Return the affinities of the sites that have sent prompts, and the learned prompts as maps."""
    sites = tuple(sorted(server.prompts))
    if not sites:
        return Findings()
    rows = affinity_of(server, sites).tolist()
    matrix = {a: dict(zip(sites, row, strict=True)) for a, row in zip(sites, rows, strict=True)}
    maps = {site: server.prompts[site].reshape(server.weights[DDP].shape[1:]) for site in sites}
    if UKP in server.weights:
        maps = {"universal": server.weights[UKP][0], **maps}
    return Findings(matrix, maps)


def auxiliary_decoder(server: Server, site: str, strategy: Strategy) -> Weights:
    """Return a site's auxiliary decoder, from the main decoders that all sites sent last (Eq. 9).

    Where no other site is alike, it is the site's own main decoder; a newcomer's is the global one.
    In the first round it is the common start.
    """
    names = server.groups["aux"]
    if not names or not server.decoders or site not in server.sites:
        return {name: server.weights[name] for name in names}
    common = {name: server.weights[name.removeprefix("aux.")] for name in names}
    sent = tuple(other for other in server.sites if other in server.decoders)
    if strategy in {"aggregated", "highest"}:
        asked = (site, *(other for other in sent if other != site))
        alike = dict(zip(asked, affinity_of(server, asked)[0].tolist(), strict=True))
    else:
        alike = {}
    randoms = generator(server.seed, "auxiliary", server.round, site)
    shares = auxiliary_shares(strategy, site, server.sites, sent, alike, randoms)
    fallback = {site: server.decoders.get(site, common)}
    return mixtures(server.decoders, {site: shares}, fallback, names)[site]

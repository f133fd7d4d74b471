"""The server half of FedLPPA: what it gets and keeps, and whose decoders make whose auxiliary one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from consilia.methods.contract import Findings
from consilia.ops.affinity import Strategy, auxiliary_shares, prompt_affinity
from consilia.ops.reduce import mixtures, reduce
from consilia.payload import Group, PackedWeights, Weights, anew, near, picked, renamed, united
from consilia.training.seeds import generator

Kind: TypeAlias = Literal["main", "own"]

UKP, DDP = "fusion.prompts.universal", "fusion.prompts.distribution"


Shared = Annotated[Weights, Group(("shared",))]
Main = Annotated[Weights, Group(("main",))]
Auxiliary = Annotated[Weights, Group(("aux",))]


@dataclass(frozen=True)
class Up:
    """Leaves a site: its encoder, fusion and prompts, and its main decoder; nothing else."""

    shared: Shared
    main: Main


@dataclass(frozen=True)
class Whole:
    """Leaves a site if auxiliary decoders are mixed with each other: encoder, prompts, both decoders."""

    shared: Shared
    main: Main
    aux: Auxiliary


@dataclass(frozen=True)
class Server:
    """Stays at the server: the global network, and of each site the last decoder and prompt it sent.

    Attributes:
        weights: The global network; its auxiliary decoder is the start's, for the first round, or
            the average where sites send theirs.
        sites: The rows of the distribution prompt, in order.
        decoders: Each site's main decoder and head, named as an auxiliary decoder; or its own one.
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
    weights = near(server.weights)  # prompts are few: the same numbers wherever the network lies
    common = [weights[UKP].flatten().cpu()] if UKP in weights else []
    drawn = weights[DDP].cpu()
    rows = [server.prompts.get(s, drawn[server.sites.index(s)]).cpu() for s in sites]
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


def sources_of(server: Server, auxiliary: Kind) -> dict[str, str]:
    """Return for each tensor of the auxiliary decoder which of a site's tensors it is made of."""
    names = server.groups["aux"]
    return {n: n.removeprefix("aux.") if auxiliary == "main" else n for n in names}


def auxiliary_decoder(
    server: Server, site: str, strategy: Strategy, auxiliary: Kind = "main"
) -> Weights:
    """Return a site's auxiliary decoder, from the decoders that all sites sent last (Eq. 9).

    Where no other site is alike, it is the site's own decoder; a newcomer's is the global one. In the
    first round it is the common start.

    Args:
        server: What the server knows.
        site: For whom.
        strategy: Whose decoders make it.
        auxiliary: Which of their decoders: main or auxiliary ones.
    """
    names = server.groups["aux"]
    if not names or not server.decoders or site not in server.sites:
        return picked(server.weights, names)
    sent = tuple(other for other in server.sites if other in server.decoders)
    if strategy in {"aggregated", "highest"}:
        asked = (site, *(other for other in sent if other != site))
        alike = dict(zip(asked, affinity_of(server, asked)[0].tolist(), strict=True))
    else:
        alike = {}
    randoms = generator(server.seed, "auxiliary", server.round, site)
    shares = auxiliary_shares(strategy, site, server.sites, sent, alike, randoms)
    own = server.decoders.get(site)
    fallback = {
        site: renamed(server.weights, sources_of(server, auxiliary)) if own is None else own
    }
    return mixtures(server.decoders, {site: shares}, fallback, names)[site]


def averaged(
    server: Server, ups: Mapping[str, Up | Whole], auxiliary: Kind, row_owner: bool
) -> Server:
    """Return the server after a round: the common average, and each site's decoder and prompt.

    Args:
        server: What it knew.
        ups: What the sites sent.
        auxiliary: Which of a site's decoders it keeps for auxiliary ones.
        row_owner: Whether a site's row of the distribution prompt is the one it sent last.
    """
    counts = {site: float(server.images[site]) for site in ups}
    updates = {
        site: united(up.shared, up.main, *((up.aux,) if isinstance(up, Whole) else ()))
        for site, up in ups.items()
    }
    sent = ("shared", "main", *(("aux",) if auxiliary == "own" else ()))
    weights = reduce(server.weights, updates, dict.fromkeys(sent, counts), server.groups)
    sources = sources_of(server, auxiliary)
    decoders = {site: _apart(renamed(update, sources)) for site, update in updates.items()}
    prompts = {
        site: near(update)[DDP][server.sites.index(site)].clone()
        for site, update in updates.items()
        if DDP in update
    }
    prompts = {**server.prompts, **prompts}
    if row_owner and DDP in weights:
        rows, before = near(weights)[DDP], near(server.weights)[DDP]
        for at, site in enumerate(server.sites):  # the row of who is away, or yet to come, stays
            rows[at] = prompts.get(site, before[at])
        weights = anew(weights)
    total = sum(counts.values())
    return replace(
        server,
        weights=weights,
        decoders={**server.decoders, **decoders},
        prompts=prompts,
        last={site: count / total for site, count in counts.items()},
        round=server.round + 1,
    )


def _apart(weights: Weights) -> PackedWeights:
    """Return weights in memory of their own: what stays on a device was copied when it was picked."""
    return weights if isinstance(weights, PackedWeights) else PackedWeights.of(weights)

"""Channel selection at the bottleneck, by site (FedLC), and score maps at every scale (FedICRA)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from consilia.networks.layers import Chain, Convolution


class ChannelSelection(nn.Module):
    r"""Weighs the channels of a feature map by what is in it and by whose image it is.

    .. math:: h = \sigma(g(\bar x \oplus f(e)) + g(\max x \oplus f(e))), \quad x \leftarrow x h + x

    :math:`e` is one-hot over the sites, f has two layers, g a bottleneck of a sixteenth (at
    least four channels); none has a bias.

    Args:
        width: Channels of the feature map.
        sites: How many sites there are.
    """

    here: Tensor

    def __init__(self, width: int, sites: int) -> None:
        super().__init__()
        narrow = max(4, width // 16)
        self.embed = nn.Sequential(
            nn.Linear(sites, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False)
        )
        self.weigh = nn.Sequential(
            nn.Linear(2 * width, narrow, bias=False),
            nn.ReLU(),
            nn.Linear(narrow, width, bias=False),
        )
        # Whose images come: not a weight, so it is neither sent nor saved.
        self.register_buffer("here", torch.full((sites,), 1 / sites), persistent=False)

    def place(self, rows: Float[Tensor, " n"]) -> None:
        """Say whose images come: one-hot, or a mean over sites for images of none."""
        self.here.copy_(rows)

    def heat(self, x: Tensor, sites: Float[Tensor, "m n"]) -> Float[Tensor, "m b c"]:
        """Return the weights of the channels, as each of some sites would have them."""
        at = self.embed(sites.to(x.dtype))[:, None].expand(-1, len(x), -1)  # (m, b, c)
        mean, most = (
            pooled.expand(len(sites), -1, -1) for pooled in (x.mean((2, 3)), x.amax((2, 3)))
        )
        both = self.weigh(torch.cat((mean, at), 2)) + self.weigh(torch.cat((most, at), 2))
        return torch.sigmoid(both)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Return the weighed features of this site's images."""
        return x * self.heat(x, self.here[None])[0, :, :, None, None] + x

    def separation(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, ""]:
        r"""Return how far this site's channel weights are from the others': the mean :math:`(h_i - h_j)^2`.

        The others' are fixed: only this site's have a gradient.
        """
        own = self.heat(x, self.here[None])  # (1, b, c)
        with torch.no_grad():
            every = self.heat(x, torch.eye(len(self.here), device=x.device))  # (n, b, c)
        gaps = (own - every).square().mean((1, 2))  # (n,), and 0 of a site with itself
        return (gaps * (1 - self.here)).sum() / max(1, len(gaps) - 1)


class SelectingEncoder(nn.Module):
    """An encoder whose last features pass channel selection."""

    def __init__(self, encoder: nn.Module, width: int, sites: int) -> None:
        super().__init__()
        self.plain = encoder
        self.selection = ChannelSelection(width, sites)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the features of each level, the last one weighed."""
        *upper, last = self.plain(x)
        return [*upper, self.selection(last)]


class SideHead(Chain):
    """Scores of a decoder level at its own resolution: 3x3 to a hidden width, then 1x1."""

    def __init__(self, width: int, outputs: int, hidden: int = 512) -> None:
        super().__init__(
            Convolution(width, hidden, 3, padding=1),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
            nn.Conv2d(hidden, outputs, 1, bias=False),
        )

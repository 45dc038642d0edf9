"""Ten models written here: kinds of training that language and vision libraries do not cover."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU(inplace=True),
                nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU(inplace=True))

        self.down = nn.ModuleList([block(3, 16), block(16, 32), block(32, 64)])
        self.up = nn.ModuleList([block(96, 32), block(48, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(x)
            if i < 2:
                kept.append(x)
                x = F.max_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), kept.pop()], 1))
        return self.head(x)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x).add_(x), inplace=True)


class LstmLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 64)
        self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(64, 200)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.message = nn.ModuleList([nn.Linear(128, 64) for _ in range(3)])

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for inner, message in zip(self.inner, self.message):
            sent = F.silu(message(torch.cat([nodes[edges[0]], nodes[edges[1]]], 1)))
            nodes = nodes + inner(torch.zeros_like(nodes).index_add(0, edges[1], sent))
        return nodes


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
        self.decode = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return F.binary_cross_entropy_with_logits(self.decode(z), x, reduction="sum") + divergence


class Transducer(nn.Module):
    """Every frame meets every word, as in an RNN transducer's joint network."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.GRU(16, 64, batch_first=True)
        self.words = nn.Embedding(50, 64)
        self.predictor = nn.GRU(64, 64, batch_first=True)
        self.joint = nn.Linear(64, 50)

    def forward(self, sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        frames, words = self.frames(sound)[0], self.predictor(self.words(ids))[0]
        scores = self.joint(torch.tanh(frames[:, :, None] + words[:, None])).log_softmax(-1)
        emit = scores[:, :, :-1].gather(-1, ids[:, None, 1:, None].expand(-1, scores.size(1), -1, 1)).squeeze(-1)
        blank = scores[:, :, :, 0]
        total = blank[:, 0, 0]
        for t in range(1, min(frames.size(1), ids.size(1) - 1)):
            total = torch.logaddexp(total + blank[:, t, t], total + emit[:, t, t])
        return -total.mean()


Loss = Callable[[Any, Any], torch.Tensor]
Made = tuple[nn.Module, Any, Loss]  # the model, a batch, and the loss of one on the other


def unet(count: int = 4) -> Made:
    batch = torch.randn(count, 3, 32, 32), torch.randint(0, 2, (count, 32, 32))
    return UNet(), batch, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])


def resnet_with_batch_norm(count: int = 8) -> Made:
    batch = torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), *[ResidualBlock(32) for _ in range(4)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return model, batch, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])


def lstm_language_model(count: int = 8) -> Made:
    ids = torch.randint(0, 200, (count, 33))
    return LstmLanguageModel(), ids, lambda model, ids: F.cross_entropy(
        model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def diffusion_step(count: int = 4) -> Made:
    images = torch.randn(count, 3, 32, 32)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.time = UNet(), nn.Linear(1, 3)
            self.net.head = nn.Conv2d(16, 3, 1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return self.net(x + self.time(t)[:, :, None, None])

    def loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        t = torch.rand(len(images), 1)
        noise = torch.randn_like(images)
        mixed = images * (1 - t)[:, :, None, None] + noise * t[:, :, None, None]
        return F.mse_loss(model(mixed, t), noise)

    return Denoiser(), images, loss


def gan(count: int = 64) -> Made:
    real = torch.randn(count, 128)
    model = nn.ModuleDict({
        "generator": nn.Sequential(nn.Linear(32, 256), nn.LeakyReLU(0.2), nn.Linear(256, 128)),
        "critic": nn.Sequential(nn.Linear(128, 256), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(256, 1))})

    def loss(model: Any, real: torch.Tensor) -> torch.Tensor:
        fake = model["generator"](torch.randn(len(real), 32))
        wrong = F.softplus(model["critic"](fake.detach())).mean() + F.softplus(-model["critic"](real)).mean()
        wrong.backward()
        return F.softplus(-model["critic"](fake)).mean()

    return model, real, loss


def contrastive(count: int = 32) -> Made:
    x = torch.randn(count, 128)
    model = nn.Sequential(nn.Linear(128, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        a = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        b = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        scores = torch.cat([a, b]) @ torch.cat([a, b]).T / 0.1
        scores.fill_diagonal_(float("-inf"))
        return F.cross_entropy(scores, torch.arange(2 * len(x)).roll(len(x)))

    return model, x, loss


def graph_net(count: int | None = None) -> Made:
    """One graph of 200 nodes; or ``count`` of 50, which become one."""
    if count is None:
        batch = torch.randn(200, 64), torch.randint(0, 200, (2, 800)), torch.randn(200, 64)
    else:
        batch = torch.randn(count, 50, 64), torch.randint(0, 50, (count, 2, 200)), torch.randn(count, 50, 64)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nodes, edges, y = batch
        if nodes.dim() == 3:
            edges = (edges + 50 * torch.arange(len(edges))[:, None, None]).transpose(0, 1).flatten(1)
            nodes, y = nodes.flatten(0, 1), y.flatten(0, 1)
        return F.mse_loss(model(nodes, edges), y)

    return GraphNet(), batch, loss


def vae(count: int = 64) -> Made:
    return Vae(), torch.rand(count, 256), lambda model, x: model(x)


def transducer(count: int = 4) -> Made:
    batch = torch.randn(count, 40, 16), torch.randint(1, 50, (count, 21))
    return Transducer(), batch, lambda model, batch: model(*batch)


def physics_informed(count: int = 512) -> Made:
    points = torch.rand(count, 2)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
        where = points.clone().requires_grad_()
        u = model(where)
        first = torch.autograd.grad(u.sum(), where, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), where, create_graph=True)[0][:, 0]
        return (first[:, 1] - 0.1 * second + u.squeeze() * first[:, 0]).square().mean()

    return model, points, loss


CASES = {
    made.__name__: made for made in (
        unet, resnet_with_batch_norm, lstm_language_model, diffusion_step, gan, contrastive, graph_net, vae, transducer,
        physics_informed)}


def case(name: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """The model and its loss on a fixed batch."""
    model, batch, loss = CASES[name]()
    return model, lambda model: loss(model, batch)


# Batch sizes for predict.py.
SIZES = {"gan": (64, 160, 256), "contrastive": (32, 80, 128), "vae": (64, 160, 256), "physics_informed": (256, 640, 1024)}

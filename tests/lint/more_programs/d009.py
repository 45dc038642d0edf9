# Dynamic programming over a sequence fills a list and is one loss. Right.
import torch


def crf_nll(emissions, transitions, tags):
    alphas = [emissions[0]]
    for t in range(1, emissions.size(0)):
        scores = alphas[-1].unsqueeze(1) + transitions + emissions[t].unsqueeze(0)
        alphas.append(torch.logsumexp(scores, 0))
    gold = sum(emissions[t, tags[t]] for t in range(len(tags)))
    return torch.logsumexp(alphas[-1], 0) - gold


def train(encoder, transitions, data, opt):
    for x, tags in data:
        loss = crf_nll(encoder(x), transitions, tags)
        opt.zero_grad()
        loss.backward()
        opt.step()

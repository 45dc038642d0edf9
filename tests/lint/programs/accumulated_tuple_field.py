# https://github.com/zyh-uaiaaaa/Erasing-Attention-Consistency/issues/11
import torch


def step(model, batch, loss_fn):
    out = model(batch[0])
    loss = loss_fn(out, batch[1])
    hits = (out.argmax(1) == batch[1]).sum()
    return loss, hits


def fit(model, loss_fn, optimizer, loader):
    state = (0.0, 0)
    for batch in loader:
        loss, hits = step(model, batch, loss_fn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = (state[0] + loss, state[1] + hits)  # expect: history-accumulated creep
    return state

# Written after the rules were, in other styles than those they were made with.
import torch
from functools import partial
def record(store, name, module, inp, out):
    store.setdefault(name, []).append(out)  # expect: history-stored
def main(model, loader, opt, crit):
    acts = {}
    for name, m in model.named_modules():
        m.register_forward_hook(partial(record, acts, name))
    for x, y in loader:
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step()

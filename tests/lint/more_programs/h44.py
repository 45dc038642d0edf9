# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad()
        a, b = model(x)
        la = crit(a, y); lb = crit(b, y)
        la.backward(retain_graph=True)
        lb.backward(retain_graph=True)  # expect: retain-graph
        opt.step()

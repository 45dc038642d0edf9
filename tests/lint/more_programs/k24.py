# Written after the rules were, in other styles than those they were made with.
import torch
@torch.inference_mode()
def run(model, loader):
    model.eval()
    outs = []
    for x in loader:
        outs.append(model(x))
    return outs
class Ev:
    @torch.no_grad()
    def evaluate(self, model, loader):
        model.eval()
        return [model(x).argmax(-1) for x in loader]

# Written after the rules were, in other styles than those they were made with.
import torch, wandb
from torch import nn
class LitLike:
    def __init__(self, cfg):
        self.net = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 2))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        self.metrics = {"loss": 0.0, "acc": 0.0, "n": 0}
    def _update_metrics(self, loss, logits, y):
        self.metrics["loss"] += loss  # expect: history-accumulated
        self.metrics["acc"] += (logits.argmax(-1) == y).float().sum().item()
        self.metrics["n"] += len(y)
    def fit(self, dl):
        for batch in dl:
            x, y = batch
            logits = self.net(x)
            loss = nn.functional.cross_entropy(logits, y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self._update_metrics(loss, logits, y)

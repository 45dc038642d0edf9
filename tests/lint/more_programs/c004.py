# fairseq-like, right: logging output holds .data.
import torch


class LabelCriterion:
    def __call__(self, model, sample):
        out = model(**sample["net_input"])
        loss = torch.nn.functional.cross_entropy(out, sample["target"], reduction="sum")
        n = sample["target"].numel()
        return loss, n, {"loss": loss.data, "nsentences": n}


def train_epoch(model, criterion, itr, optimizer):
    totals = {"loss": 0, "nsentences": 0}
    criterion = LabelCriterion()
    for sample in itr:
        loss, size, log = criterion(model, sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for key in totals:
            totals[key] += log[key]
    return totals

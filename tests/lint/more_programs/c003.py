# fairseq-like: the criterion returns loss, sample size and a logging output that is aggregated by key.
import torch


class LabelCriterion:
    def __call__(self, model, sample):
        out = model(**sample["net_input"])
        loss = torch.nn.functional.cross_entropy(out, sample["target"], reduction="sum")
        n = sample["target"].numel()
        logging_output = {"loss": loss, "nsentences": n}
        return loss, n, logging_output


def train_epoch(model, criterion, itr, optimizer):
    totals = {"loss": 0, "nsentences": 0}
    criterion = LabelCriterion()
    for sample in itr:
        loss, size, log = criterion(model, sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for key in totals:
            totals[key] += log[key]  # expect: history-accumulated
    return totals

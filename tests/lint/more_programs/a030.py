# Evaluation without no_grad; model.eval() does not turn gradients off.
import torch


def evaluate(model, loader, device="cuda"):
    model.eval()
    preds, refs = [], []
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)  # expect: eval-with-grad
        preds.extend(outputs.logits.argmax(-1).tolist())
        refs.extend(batch["labels"].tolist())
    return sum(p == r for p, r in zip(preds, refs)) / len(refs)

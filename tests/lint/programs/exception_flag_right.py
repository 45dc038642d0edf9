# https://pytorch.org/docs/stable/notes/faq.html
import torch


def run(model, batch, criterion, optimizer, log):
    oom = False
    try:
        loss = criterion(model(batch), batch)
        loss.backward()
    except RuntimeError as error:
        log.append(str(error))
        oom = True
    if oom:
        torch.cuda.empty_cache()
        for part in batch.chunk(2):
            criterion(model(part), part).backward()
    optimizer.step()
    optimizer.zero_grad()

# accelerate: accumulate() and gather; total kept with history.
import torch
from accelerate import Accelerator


def main(model, optimizer, train_dataloader, eval_dataloader, scheduler):
    accelerator = Accelerator(gradient_accumulation_steps=8)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for epoch in range(3):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss  # expect: history-accumulated
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(total_loss / len(train_dataloader))

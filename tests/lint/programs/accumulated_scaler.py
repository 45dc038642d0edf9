# https://github.com/pai4451/ML2021/issues/2
import torch
from accelerate import Accelerator
from tqdm.auto import tqdm
from transformers import AutoModelForQuestionAnswering

accelerator = Accelerator(mixed_precision="fp16")
model = AutoModelForQuestionAnswering.from_pretrained("bert-base-chinese")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)


def run(train_loader):
    global model, optimizer
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
    train_loss = train_acc = 0
    for data in tqdm(train_loader):
        output = model(input_ids=data[0], start_positions=data[3], end_positions=data[4])
        start = torch.argmax(output.start_logits, dim=1)
        train_acc += (start == data[3]).float().mean()
        train_loss += output.loss  # expect: history-accumulated creep
        accelerator.backward(output.loss)
        optimizer.step()
        optimizer.zero_grad()
    print(train_loss / len(train_loader), train_acc / len(train_loader))

# Old style: Variables, and an epoch average over tensors.
import torch
from torch.autograd import Variable


def train(epoch, model, train_loader, optimizer, log_interval=10):
    model.train()
    avg_loss = 0.
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = Variable(data.cuda()), Variable(target.cuda())
        optimizer.zero_grad()
        output = model(data)
        loss = torch.nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        avg_loss = avg_loss + loss  # expect: history-accumulated
        if batch_idx % log_interval == 0:
            print("Train Epoch: {} Loss: {:.6f}".format(epoch, loss.data))
    print(avg_loss / len(train_loader))

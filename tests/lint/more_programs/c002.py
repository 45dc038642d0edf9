# Old style, right: .data everywhere.
import torch
from torch.autograd import Variable


def train(epoch, model, train_loader, optimizer, log_interval=10):
    model.train()
    avg_loss, all_losses = 0., []
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = Variable(data.cuda()), Variable(target.cuda())
        optimizer.zero_grad()
        output = model(data)
        loss = torch.nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        avg_loss += loss.data
        all_losses.append(loss.data.cpu())
    print(avg_loss / len(train_loader))

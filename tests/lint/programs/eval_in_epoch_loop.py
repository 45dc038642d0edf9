# https://github.com/leftthomas/SRGAN/issues/43
import torch


def fit(net, loss_fn, optimizer, train_loader, val_loader, epochs):
    for epoch in range(epochs):
        net.train()
        for lr_image, hr_image in train_loader:
            loss = loss_fn(net(lr_image), hr_image)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        val_mse = 0
        for lr_image, hr_image in val_loader:
            sr = net(lr_image)  # expect: eval-with-grad leak
            val_mse += ((sr - hr_image) ** 2).mean()
        print(epoch, val_mse / len(val_loader))

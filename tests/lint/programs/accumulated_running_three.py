# https://github.com/samuelyu2002/ImVisible/issues/2
import torch.nn as nn
import torch.optim as optim
from model import CrosswalkNet
from data import train_loader

net = CrosswalkNet().cuda()
opt = optim.Adam(net.parameters(), lr=1e-3)
mse = nn.MSELoss()
ce = nn.CrossEntropyLoss()

for epoch in range(800):
    running, running_mse = 0, 0.0
    for step, batch in enumerate(train_loader):
        image = batch["image"].cuda()
        mode, points = net(image)
        a = mse(points, batch["points"].cuda())
        b = ce(mode, batch["mode"].cuda())
        loss = a + 0.5 * b
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss  # expect: history-accumulated creep
        running_mse += a.item()
    print(epoch, running / (step + 1), running_mse / (step + 1))

# https://pytorch.org/tutorials/beginner/fgsm_tutorial.html
import torch
import torch.nn.functional as F


def test(model, device, test_loader, epsilon):
    correct = 0
    model.eval()
    for data, target in test_loader:
        data, target = data.to(device), target.to(device)
        data.requires_grad = True
        output = model(data)
        loss = F.nll_loss(output, target)
        model.zero_grad()
        loss.backward()
        perturbed = data + epsilon * data.grad.data.sign()
        with torch.no_grad():
            output = model(perturbed)
        correct += (output.argmax(1) == target).sum().item()
    return correct / len(test_loader)

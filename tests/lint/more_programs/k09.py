# Written after the rules were, in other styles than those they were made with.
import torch
class Q(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.net(x)
def main(env, buffer):
    q, target = Q(), Q()
    opt = torch.optim.Adam(q.parameters())
    for step in range(10000):
        s, a, r, s2 = buffer.sample(32)
        with torch.no_grad():
            y = r + 0.99 * target(s2).max(1).values
        loss = (q(s).gather(1, a).squeeze() - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            target.load_state_dict(q.state_dict())

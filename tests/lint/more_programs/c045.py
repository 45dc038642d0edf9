# A dataset caches decoded samples on purpose: plain data, no module. Right.
import torch
from torch.utils.data import Dataset


class Cached(Dataset):
    def __init__(self, files, decode):
        self.files, self.decode = files, decode
        self.cache = {}

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = torch.as_tensor(self.decode(self.files[i]))
        return self.cache[i]

    def __len__(self):
        return len(self.files)

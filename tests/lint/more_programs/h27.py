# Written after the rules were, in other styles than those they were made with.
import torch
class Runner:
    def __init__(self, model):
        self.model = model
        self.last_error = None
    def __call__(self, batch):
        try:
            return self.model(batch)
        except RuntimeError as e:
            self.last_error = e  # expect: exception-holds-frame
            return None

# Written after the rules were, in other styles than those they were made with.
import torch
async def serve(model, queue):
    model.eval()
    while True:
        request = await queue.get()
        logits = model(request.tensor)  # expect: eval-with-grad
        request.reply(logits.argmax(-1).tolist())

# Seq2seq decoder with teacher forcing: one sentence, one backward. Right.
import random

import torch


def train_sentence(encoder, decoder, enc_opt, dec_opt, criterion, src, tgt, max_len):
    enc_h = encoder.init_hidden()
    enc_opt.zero_grad()
    dec_opt.zero_grad()
    outs = torch.zeros(max_len, encoder.hidden_size)
    loss = 0
    for i in range(src.size(0)):
        o, enc_h = encoder(src[i], enc_h)
        outs[i] = o[0, 0]
    dec_in, dec_h = torch.tensor([[0]]), enc_h
    forcing = random.random() < 0.5
    for t in range(tgt.size(0)):
        dec_out, dec_h, attn = decoder(dec_in, dec_h, outs)
        loss += criterion(dec_out, tgt[t])
        dec_in = tgt[t] if forcing else dec_out.topk(1)[1].squeeze().detach()
    loss.backward()
    enc_opt.step()
    dec_opt.step()
    return loss.item() / tgt.size(0)

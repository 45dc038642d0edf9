# A stack of per-layer outputs is held after the loop although only the pooled value is used.
import torch


@torch.no_grad()
def describe(backbone, tiles, classifier):
    pooled = 0
    for tile in tiles:
        feature_map = backbone(tile)  # expect: tensor-held
        pooled += feature_map.flatten(2).mean(-1)
    return classifier(pooled / len(tiles))

# Right: it is deleted.
import torch


@torch.no_grad()
def describe(backbone, tiles, classifier):
    pooled = 0
    for tile in tiles:
        feature_map = backbone(tile)
        pooled += feature_map.flatten(2).mean(-1)
        del feature_map
    return classifier(pooled / len(tiles))

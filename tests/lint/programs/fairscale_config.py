# https://github.com/open-mmlab/mmdetection/blob/main/mmdet/models/layers/transformer/deformable_detr_layers.py
model = dict(
    type="DINO",
    backbone=dict(type="ResNet", depth=50, with_cp=True),
    encoder=dict(
        num_layers=6,
        num_cp=6,  # expect: fairscale-missing peak
        layer_cfg=dict(self_attn_cfg=dict(embed_dims=256, num_levels=4)),
    ),
    decoder=dict(num_layers=6, return_intermediate=True),
)

# https://github.com/open-mmlab/mmdetection/blob/main/configs/dino/dino-4scale_r50_8xb2-12e_coco.py
model = dict(
    type="DINO",
    backbone=dict(type="ResNet", depth=50, with_cp=True),
    encoder=dict(num_layers=6, num_cp=0, layer_cfg=dict(ffn_cfg=dict(embed_dims=256))),
    decoder=dict(num_layers=6),
)

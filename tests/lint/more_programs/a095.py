# Backbone with_cp=True uses torch's own checkpoint. Right.
model = dict(
    type="FasterRCNN",
    backbone=dict(type="SwinTransformer", embed_dims=96, with_cp=True, convert_weights=True),
    neck=dict(type="FPN", in_channels=[96, 192, 384, 768], out_channels=256),
)
optimizer = dict(type="AdamW", lr=1e-4)

# The segmentation's config asks for checkpointed encoder layers by a variable of the file.
num_cp = 6
model = dict(
    type="RTDETR",
    encoder=dict(num_layers=6, num_cp=num_cp, layer_cfg=dict(ffn_cfg=dict(embed_dims=256))),  # expect: fairscale-missing
    decoder=dict(num_layers=6),
)

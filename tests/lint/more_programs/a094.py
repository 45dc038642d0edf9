# Config with checkpointed encoder layers in the mmcv style.
num_levels = 4
model = dict(
    type="DeformableDETR",
    encoder=dict(
        type="DetrTransformerEncoder",
        num_layers=6,
        with_cp=4,  # expect: fairscale-missing
        transformerlayers=dict(type="BaseTransformerLayer", feedforward_channels=1024),
    ),
)

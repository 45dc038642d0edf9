# Dict style config with nested encoder.
model = {
    "type": "Mask2Former",
    "pixel_decoder": {
        "encoder": {"num_layers": 6, "num_cp": 3, "layer_cfg": {}},  # expect: fairscale-missing
    },
}

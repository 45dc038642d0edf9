#!/usr/bin/env python3
"""Makes parity files (docs/formats/parity.md) of the encoder, in float64 and in plain torch operations.

    make_vectors.py CASE...      # writes CASE.safetensors beside this script
    make_vectors.py --list

Written apart from the C++ code, for configurations that the p*.safetensors files leave out. Needs torch
and numpy. A full-size case takes some minutes and 8 GB.
"""

import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

SMALL = {"d": 32, "heads": 4, "levels": 3, "points": 4, "ffn": 64, "layers": 2, "bs": 2}
STANDARD = {"d": 256, "heads": 8, "levels": 4, "points": 4, "ffn": 1024, "layers": 6, "bs": 1}
CASES = {
    "v1_eight_levels": SMALL
    | {"levels": 8, "points": 1, "img": [300, 200], "img_shapes": [[300, 200], [211, 177]], "hash": True},
    "v2_nomask": SMALL
    | {"d": 48, "heads": 3, "img": [80, 120], "img_shapes": [[80, 97], [43, 120]], "mask": False, "hash": True},
    "v3_one_token": {"d": 12, "heads": 1, "levels": 1, "points": 1, "ffn": 7, "layers": 3, "bs": 1}
    | {"shapes": [[1, 1]], "mask": False},
    # Has samples within float32 rounding of pixel centres.
    "v4_borders": STANDARD | {"img": [224, 256], "img_shapes": [[224, 240]], "hash": True},
    "v5_full": STANDARD | {"img": [800, 1333], "img_shapes": [[750, 1201]], "hash": True},
}
MASK64 = (1 << 64) - 1
DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


def fill(key, shape, scale):
    with np.errstate(over="ignore"):
        x = np.uint64(fnv1a64(key)) + np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    values = (x >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return torch.from_numpy((values * np.float32(scale)).reshape(shape))


def sine_positions(mask, num_feats):
    valid = (~mask).float()
    y, x = valid.cumsum(1), valid.cumsum(2)
    y = (y - 0.5) / (y[:, -1:, :] + 1e-6) * 2 * math.pi
    x = (x - 0.5) / (x[:, :, -1:] + 1e-6) * 2 * math.pi
    wavelengths = 10000 ** (2 * (torch.arange(num_feats, dtype=torch.float32) // 2) / num_feats)

    def encode(positions):
        angles = positions[..., None] / wavelengths
        return torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), 4).flatten(3)

    return torch.cat((encode(y), encode(x)), 3).flatten(1, 2)


def level_shapes(image, levels):
    height, width = image
    shapes = []
    for step in range(1, levels + 3):
        height, width = (height + 1) // 2, (width + 1) // 2
        if step >= 3:
            shapes.append((height, width))
    return shapes


def make_parameters(case, key):
    channels, heads, levels, points = case["d"], case["heads"], case["levels"], case["points"]
    angles = torch.arange(heads, dtype=torch.float32) * (2 * math.pi / heads)
    grid = torch.stack((angles.cos(), angles.sin()), -1)
    grid = (grid / grid.abs().max(-1, keepdim=True)[0]).view(heads, 1, 1, 2).repeat(1, levels, points, 1)
    for point in range(points):
        grid[:, :, point] *= point + 1
    samples = heads * levels * points
    linears = {
        "self_attn.sampling_offsets": (2 * samples, channels),
        "self_attn.attention_weights": (samples, channels),
        "self_attn.value_proj": (channels, channels),
        "self_attn.output_proj": (channels, channels),
        "ffn.layers.0.0": (case["ffn"], channels),
        "ffn.layers.1": (channels, case["ffn"]),
    }
    scales = {"self_attn.sampling_offsets": 0.06, "self_attn.attention_weights": 0.1}
    parameters = {}
    for layer in range(case["layers"]):
        for part, shape in linears.items():
            name = f"layers.{layer}.{part}"
            scale = scales.get(part, np.float32(math.sqrt(3 / shape[1])))
            parameters[name + ".weight"] = fill(key(name + ".weight"), shape, scale)
            bias = fill(key(name + ".bias"), shape[:1], 0.4 if part.endswith("offsets") else 0.1)
            parameters[name + ".bias"] = grid.flatten() + bias if part.endswith("offsets") else bias
        for norm in (0, 1):
            name = f"layers.{layer}.norms.{norm}"
            parameters[name + ".weight"] = 1 + fill(key(name + ".weight"), (channels,), 0.1)
            parameters[name + ".bias"] = fill(key(name + ".bias"), (channels,), 0.1)
    return parameters


def reference_points(shapes, valid_ratios):
    points = []
    for level, (height, width) in enumerate(shapes):
        y, x = torch.meshgrid(
            torch.linspace(0.5, height - 0.5, height), torch.linspace(0.5, width - 0.5, width), indexing="ij"
        )
        y = y.reshape(-1)[None] / (valid_ratios[:, None, level, 1] * height)
        x = x.reshape(-1)[None] / (valid_ratios[:, None, level, 0] * width)
        points.append(torch.stack((x, y), -1))
    return torch.cat(points, 1)[:, :, None] * valid_ratios[:, None]


def run_layer(x, pos, layer, case, weights, shapes, reference, padding):
    heads, levels, points = case["heads"], case["levels"], case["points"]
    batch, count, channels = x.shape

    def linear(tensor, name):
        name = f"layers.{layer}.{name}"
        return F.linear(tensor, weights[name + ".weight"], weights[name + ".bias"])

    def norm(tensor, name):
        name = f"layers.{layer}.{name}"
        return F.layer_norm(tensor, (channels,), weights[name + ".weight"], weights[name + ".bias"])

    value = linear(x, "self_attn.value_proj")
    if padding is not None:
        value = value.masked_fill(padding[..., None], 0)
    value = value.view(batch, count, heads, channels // heads)
    query = x + pos
    sizes = torch.tensor([(width, height) for height, width in shapes]).double()
    offsets = linear(query, "self_attn.sampling_offsets").view(batch, count, heads, levels, points, 2)
    shares = linear(query, "self_attn.attention_weights").view(batch, count, heads, levels * points).softmax(-1)
    shares = shares.view(batch, count, heads, levels, points)
    locations = reference.double()[:, :, None, :, None] + offsets / sizes[:, None]
    total, start = 0, 0
    for level, (height, width) in enumerate(shapes):
        part = value[:, start : start + height * width].flatten(2).transpose(1, 2)
        part = part.reshape(batch * heads, channels // heads, height, width)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        share = shares[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, count, points)
        total = total + (F.grid_sample(part, grid, align_corners=False) * share).sum(-1)
        start += height * width
    attended = total.view(batch, channels, count).transpose(1, 2)
    x = norm(linear(attended, "self_attn.output_proj") + x, "norms.0")
    return norm(linear(linear(x, "ffn.layers.0.0").relu(), "ffn.layers.1") + x, "norms.1")


def make(name, case):
    case = case | {"name": name}
    salt = name + "#0"
    key = lambda part: f"{salt}:{part}"
    batch, channels, levels = case["bs"], case["d"], case["levels"]
    stored = {}
    if "img" in case:
        shapes = level_shapes(case["img"], levels)
        image = torch.ones(batch, *case["img"])
        for i, (height, width) in enumerate(case["img_shapes"]):
            image[i, :height, :width] = 0
        masks = [F.interpolate(image[None], size=shape)[0].bool() for shape in shapes]
        stored["pre.batch_input_shape"] = torch.tensor(case["img"])
        stored["pre.img_shapes"] = torch.tensor(case["img_shapes"])
    else:
        shapes = [tuple(shape) for shape in case["shapes"]]
        masks = [torch.zeros(batch, *shape, dtype=torch.bool) for shape in shapes]
    areas = [height * width for height, width in shapes]
    count = sum(areas)
    valid_ratios = torch.stack(
        [
            torch.stack(((~m)[:, 0, :].sum(1) / m.shape[2], (~m)[:, :, 0].sum(1) / m.shape[1]), -1)
            for m in masks
        ],
        1,
    ).float()
    padded = torch.cat([mask.flatten(1) for mask in masks], 1)
    masked = case.get("mask", True)
    feat = fill(key("feat"), (batch, count, channels), 1.7)
    level_embed = fill(key("level_embed"), (levels, channels), 1.0)
    gout = fill(key("gout"), (batch, count, channels), 1.0)
    if case.get("hash") and masked:
        gout = gout.masked_fill(padded[..., None], 0)
    sine = torch.cat([sine_positions(mask, channels // 2) for mask in masks], 1)
    pos = sine + torch.cat([level_embed[i].expand(areas[i], channels) for i in range(levels)], 0)
    parameters = make_parameters(case, key)
    reference = reference_points(shapes, valid_ratios)

    weights = {k: v.double().requires_grad_() for k, v in parameters.items()}
    feat_leaf = feat.double().requires_grad_()
    pos_leaf = pos.double().requires_grad_()
    x, outputs = feat_leaf, []
    for layer in range(case["layers"]):
        padding = padded if masked else None
        x = checkpoint(
            run_layer, x, pos_leaf, layer, case, weights, shapes, reference, padding, use_reentrant=False
        )
        outputs.append(x)
    loss = (x * gout.double()).sum()
    loss.backward()
    results = {"out.memory": x.detach(), "grad.feat": feat_leaf.grad, "grad.query_pos": pos_leaf.grad}
    results |= {"grad.param." + k: v.grad for k, v in weights.items()}

    metadata = {"case": json.dumps(case), "salt": salt, "made_with": f"make_vectors.py; torch {torch.__version__}"}
    stored |= {
        "in.spatial_shapes": torch.tensor(shapes),
        "in.level_start_index": torch.tensor([sum(areas[:i]) for i in range(levels)]),
        "in.valid_ratios": valid_ratios,
        "loss": loss.detach().view(1),
        "pre.level_embed": level_embed,
    }
    if case.get("hash"):
        choice = np.random.default_rng(0)
        numbers = {}
        for result, tensor in results.items():
            index = np.unique(choice.integers(0, tensor.numel(), 128))
            if masked and result in ("out.memory", "grad.feat", "grad.query_pos"):
                index = index[~padded.flatten().numpy()[index // channels]]
            index = torch.from_numpy(index)
            stored[result + ".idx"] = index
            stored[result + ".val"] = tensor.flatten()[index]
            numbers[result] = [tensor.norm().item(), tensor.sum().item(), tensor.abs().max().item()]
        metadata["norm_sum_absmax"] = json.dumps(numbers)
    else:
        stored |= {"in.feat": feat, "in.query_pos": pos, "gout": gout}
        stored |= {"pre.sine_pos": sine, "ref.reference_points": reference}
        stored |= {"param." + k: v for k, v in parameters.items()}
        stored |= {k: v.float() for k, v in results.items()}
        stored |= {f"out.layer{i}": output.float() for i, output in enumerate(outputs)}
        if masked:
            stored["in.key_padding_mask"] = padded.to(torch.uint8)
    save(pathlib.Path(__file__).parent / f"{name}.safetensors", stored, metadata)


def save(path, tensors, metadata):
    header, blobs, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        blob = tensor.detach().contiguous().numpy().tobytes()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    if sys.argv[1:] in ([], ["--list"]):
        print(__doc__.strip(), *CASES, sep="\n")
    for name in sys.argv[1:]:
        if name in CASES:
            make(name, CASES[name])
        elif name != "--list":
            sys.exit(f"make_vectors.py: no case {name}; --list shows them")


if __name__ == "__main__":
    main()

import copy
import json
import pathlib
import pickle

import pytest
import safetensors
import torch
from both_ways import equal

import lowtide
from lowtide.nn import DeformableDetrTransformerEncoder

SHAPES = torch.tensor([[8, 10], [4, 5]])
STARTS = torch.tensor([0, 80])
VECTORS = pathlib.Path(__file__).parents[1] / "data/detr"


def encoder(num_cp=-1, dropout=0.1):
    torch.manual_seed(0)
    return DeformableDetrTransformerEncoder(
        3, embed_dims=32, num_heads=4, num_levels=2, num_points=2, feedforward_channels=64, dropout=dropout,
        num_cp=num_cp)


def inputs():
    torch.manual_seed(1)
    mask = torch.zeros(2, 100, dtype=torch.bool)
    mask[1, 70:80] = True
    return {
        "query": torch.randn(2, 100, 32, requires_grad=True), "query_pos": torch.randn(2, 100, 32),
        "key_padding_mask": mask, "spatial_shapes": SHAPES, "level_start_index": STARTS,
        "valid_ratios": torch.tensor([[[1.0, 1.0]] * 2, [[1.0, 0.9]] * 2])}


def gradients(model):
    given = inputs()
    torch.manual_seed(2)
    model(**given).square().sum().backward()
    return [given["query"].grad, [p.grad for p in model.parameters()]]


def test_names_and_shapes():
    names = dict(encoder().named_parameters())
    assert names["layers.0.self_attn.sampling_offsets.weight"].shape == (4 * 2 * 2 * 2, 32)
    assert names["layers.2.ffn.layers.0.0.weight"].shape == (64, 32)
    assert names["layers.1.norms.1.bias"].shape == (32,)
    assert len(names) == 3 * 16
    assert all(isinstance(p, torch.nn.Parameter) for p in names.values())
    assert encoder()(**inputs()).shape == (2, 100, 32)


@pytest.mark.parametrize("num_cp", [1, 3])
def test_gradients_are_the_same_for_every_num_cp(num_cp):
    assert equal(gradients(encoder()), gradients(encoder(num_cp)))


def test_num_cp_saves_memory():
    peaks = []
    for num_cp in (0, 3):
        model = encoder(num_cp)
        given = inputs()
        meter = lowtide.meter()
        before = meter.live_bytes
        model(**given).sum().backward()
        peaks.append(meter.peak_bytes - before)
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(again):
    first = encoder(2)
    state = torch.get_rng_state()
    second = again(first)
    assert torch.get_rng_state().equal(state)
    assert equal(gradients(first), gradients(second))
    with torch.no_grad():
        for p in second.parameters():
            p.zero_()
    assert not first(**inputs()).equal(second(**inputs()))
    assert second.num_cp == 2


def test_training_and_dtype_follow_the_module():
    model = encoder().eval()
    assert model(**inputs()).equal(model(**inputs()))
    model.train()
    given = inputs()
    assert not model(**given).equal(model(**given))
    model.double().eval()
    given = inputs()
    given["query"], given["query_pos"] = given["query"].double(), given["query_pos"].double()
    assert model(**given).dtype == torch.float64


def test_trains_inside_a_budget():
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lowtide.budget("1GiB"):
        before = [p.detach().clone() for p in model.parameters()]
        model(**inputs()).square().sum().backward()
        optimizer.step()
    assert any(not a.equal(b) for a, b in zip(before, model.parameters()))


def test_wrong_use():
    with pytest.raises(lowtide.UsageError) as caught:
        encoder(num_cp=4)
    assert caught.value.id == "LT0420"
    given = inputs()
    with pytest.raises(lowtide.UsageError) as caught:
        encoder()(**{**given, "spatial_shapes": torch.tensor([[8, 10], [4, 6]])})
    assert caught.value.id == "LT0423"
    with pytest.raises(TypeError):
        encoder()(**given, reference_points=None)


@pytest.mark.parametrize("num_cp", [0, 2])
@pytest.mark.parametrize("path", sorted(VECTORS.glob("[pv]?_*.safetensors")), ids=lambda path: path.stem)
def test_expected_values(path, num_cp):
    with safetensors.safe_open(path, "pt") as file:
        case = json.loads(file.metadata()["case"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    weights = {name[len("param."):]: t for name, t in tensors.items() if name.startswith("param.layers.")}
    if case["layers"] < num_cp or not weights:
        pytest.skip("fewer layers, or weights by rule")
    model = DeformableDetrTransformerEncoder(
        case["layers"], embed_dims=case["d"], num_heads=case["heads"], num_levels=case["levels"],
        num_points=case["points"], feedforward_channels=case["ffn"], dropout=0.0, num_cp=num_cp).double()
    model.load_state_dict(weights)
    query = tensors["in.feat"].double().requires_grad_()
    mask = tensors["in.key_padding_mask"].bool() if "in.key_padding_mask" in tensors else None
    memory = model(
        query, tensors["in.query_pos"].double(), mask, tensors["in.spatial_shapes"],
        tensors["in.level_start_index"], tensors["in.valid_ratios"].double())
    torch.testing.assert_close(memory, tensors["out.memory"].double(), rtol=1e-6, atol=1e-6)
    memory.backward(tensors["gout"].double())
    torch.testing.assert_close(query.grad, tensors["grad.feat"].double(), rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, tensors[f"grad.param.{name}"].double(), rtol=1e-5, atol=1e-5, msg=name)


def test_ms_deform_attn_agrees_with_grid_sample():
    torch.manual_seed(0)
    value = torch.randn(2, 100, 4, 8, dtype=torch.float64, requires_grad=True)
    locations = torch.rand(2, 30, 4, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(2, 30, 4, 2, 3, dtype=torch.float64, requires_grad=True)

    def reference():
        out = 0
        for level, (h, w) in enumerate(SHAPES.tolist()):
            begin = STARTS[level].item()
            image = value[:, begin:begin + h * w].permute(0, 2, 3, 1).reshape(8, 8, h, w)
            grid = 2 * locations[:, :, :, level].permute(0, 2, 1, 3, 4).flatten(0, 1) - 1
            sampled = torch.nn.functional.grid_sample(image, grid, align_corners=False)
            out = out + (sampled * weights[:, :, :, level].transpose(1, 2).reshape(8, 1, 30, 3)).sum(-1)
        return out.view(2, 32, 30).transpose(1, 2)

    ours = lowtide.ops.ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    torch.testing.assert_close(ours, reference())
    again = torch.ops.lowtide.ms_deform_attn(value, SHAPES, STARTS, locations, weights)
    assert ours.equal(again)
    inputs = [value, locations, weights]
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), inputs), torch.autograd.grad(reference().square().sum(), inputs))
    with pytest.raises(lowtide.UsageError) as caught:
        lowtide.ops.ms_deform_attn(value, SHAPES, STARTS, locations[:1], weights)
    assert caught.value.id == "LT0401"
    with pytest.raises(lowtide.UsageError):
        torch.ops.lowtide.ms_deform_attn(value, SHAPES, STARTS, locations[:1], weights)

"""mmdetection's own encoders and detector, from PyPI's wheels, with num_cp > 0 and without fairscale.

The bodies run in processes of their own, which find mmdet in .cache/mmdet; what stands in for mmcv's compiled part
stays there. mmcv-lite carries the Python part of mmcv.ops, deformable attention on the CPU included, so nothing else
of mmdet, mmcv or mmengine is replaced.
"""

import copy
import importlib
import importlib.util
import logging
import os
import pathlib
import pickle
import re
import subprocess
import sys
import types

import pytest
import torch
from both_ways import equal, measured

import lowtide

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / ".cache/mmdet"
# mmdet 3.3.0 asks for mmcv below 2.2; the rest is what the three import.
PACKAGES = """
    mmdet==3.3.0 mmengine==0.10.7 mmcv-lite==2.1.0 addict==2.4.0 contourpy==1.3.3 cycler==0.12.1 fonttools==4.68.0
    kiwisolver==1.5.1 matplotlib==3.11.2 opencv-python-headless==5.0.0.93 platformdirs==4.14.9 pycocotools==2.0.11
    pyparsing==3.3.3 python-dateutil==4.0.0 shapely==2.2.0 six==1.17.0 termcolor==3.3.0 terminaltables==3.1.10
    yapf==0.43.0
""".split()


@pytest.fixture(scope="session")
def packages():
    if importlib.util.find_spec("fairscale") is not None:
        pytest.skip("fairscale itself is installed")
    ready = FOLDER / "ready"
    if not ready.exists() or ready.read_text().split() != PACKAGES:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--upgrade",
             "--only-binary", ":all:", "--target", FOLDER, *PACKAGES], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mmdet 3.3.0 and what it imports could not be installed: {done.stderr.strip()[-400:]}")
        ready.write_text("\n".join(PACKAGES))


@pytest.fixture
def apart(packages):
    """Calls a body of this file in a process of its own."""

    def call(body, *args):
        program = f"import mmdet_test as t; t.enter(); t.{body.__name__}(*{args!r}); print('done')"
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        assert done.stdout.endswith("done\n"), done.stdout[-2000:] + done.stderr[-4000:]

    return call


def enter():
    """Makes mmdet importable, with names in the place of mmcv's compiled functions; the CPU's training calls none."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # mmengine tells of each parameter's first values
    sys.path.insert(0, str(FOLDER))

    def missing(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            raise AssertionError(f"mmcv._ext.{name} is not here")

        return call

    extension = types.ModuleType("mmcv._ext")
    extension.__getattr__ = missing
    sys.modules["mmcv._ext"] = extension


WIDTH = 64
SHAPES = [[20, 24], [10, 12]]
TOKENS = sum(h * w for h, w in SHAPES)


def layer_config(deformable, width=WIDTH):
    from mmengine import ConfigDict

    own = {"num_levels": len(SHAPES)} if deformable else {}
    return ConfigDict(
        self_attn_cfg={"embed_dims": width, "num_heads": 4, "dropout": 0.1, "batch_first": True, **own},
        ffn_cfg={"embed_dims": width, "feedforward_channels": 4 * width, "ffn_drop": 0.1})


def make_encoder(name, num_cp):
    from mmdet.models.layers import transformer

    config = {"num_layers": 3, "layer_cfg": layer_config(name != "DetrTransformerEncoder"), "num_cp": num_cp}
    if name == "GroundingDinoTransformerEncoder":
        config["text_layer_cfg"] = layer_config(False, 256)  # the width of its text's positions is fixed
        config["fusion_layer_cfg"] = {
            "v_dim": WIDTH, "l_dim": 256, "embed_dim": WIDTH, "num_heads": 4, "dropout": 0.1, "init_values": 0.1}
    encoder = getattr(transformer, name)(**config)
    with torch.no_grad():
        for p in encoder.parameters():  # deformable attention begins with weights of 0
            p.add_(0.05 * torch.randn_like(p))
    return encoder


def make_inputs(name):
    mask = torch.zeros(2, TOKENS, dtype=torch.bool)
    mask[1, 400:480] = True
    given = {
        "query": torch.randn(2, TOKENS, WIDTH, requires_grad=True), "query_pos": torch.randn(2, TOKENS, WIDTH),
        "key_padding_mask": mask}
    if name != "DetrTransformerEncoder":
        given["spatial_shapes"] = torch.tensor(SHAPES)
        given["level_start_index"] = torch.tensor([0, 480])
        given["valid_ratios"] = torch.tensor([[[1.0, 1.0]] * 2, [[1.0, 0.8]] * 2])
    if name == "GroundingDinoTransformerEncoder":
        given["memory_text"] = torch.randn(2, 12, 256, requires_grad=True)
        given["text_attention_mask"] = torch.arange(12) >= torch.tensor([[12], [9]])
        given["text_self_attention_masks"] = torch.ones(2, 12, 12, dtype=torch.bool).tril()
        given["position_ids"] = torch.arange(12).repeat(2, 1)
    return given


def loss_of(encoder, given):
    out = encoder(**given)
    return sum(t.float().square().mean() for t in (out if isinstance(out, tuple) else (out,)))


def by_backward(encoder, given, wanted):
    loss = loss_of(encoder, given)
    loss.backward()
    return loss, [t.grad for t in wanted]


def by_autograd_grad(encoder, given, wanted):
    loss = loss_of(encoder, given)
    return loss, list(torch.autograd.grad(loss, wanted))


def under_autocast(encoder, given, wanted):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(encoder, given)
    loss.backward()
    return loss, [t.grad for t in wanted]


def training(name, num_cp, way=by_backward, again=lambda encoder: encoder):
    """A body for measured(): makes the encoder and takes a step of training."""

    def body():
        encoder = again(make_encoder(name, num_cp))
        assert encoder.training
        given = make_inputs(name)
        tensors = [t for t in given.values() if t.requires_grad]
        torch.manual_seed(3)
        loss, gradients = way(encoder, given, [*tensors, *encoder.parameters()])
        assert all(g.isfinite().all() for g in gradients)
        assert sum(g.abs().sum() > 0 for g in gradients) > 0.9 * len(gradients)
        return [loss.item(), gradients, torch.get_rng_state()]

    return body


def results(*args, **kwargs):
    return measured(training(*args, **kwargs))[0]


ENCODERS = ["DeformableDetrTransformerEncoder", "DetrTransformerEncoder", "GroundingDinoTransformerEncoder"]


def asks_for_fairscale():
    for name in ENCODERS:
        make_encoder(name, -1)
        with pytest.raises(NotImplementedError) as caught:
            make_encoder(name, 2)
        assert re.sub(" +", " ", str(caught.value)) == (
            "If you want to reduce GPU memory usage, please install fairscale by executing the following command: "
            "pip install fairscale.")


@pytest.mark.slow
def test_without_lowtide_mmdet_asks_for_fairscale(apart):
    apart(asks_for_fairscale)


def trains(name):
    assert lowtide.compat.fairscale.install()
    encoder = make_encoder(name, 2)
    assert [hasattr(layer, "_lowtide_wrapped") for layer in encoder.layers] == [True, True, False]
    assert list(encoder.state_dict()) == list(make_encoder(name, -1).state_dict())
    del encoder
    plain, peak, _ = measured(training(name, -1))
    for num_cp, most in ((2, 0.8), (3, 0.7)):
        kept, lower, _ = measured(training(name, num_cp))
        assert equal(plain, kept)
        assert lower < most * peak


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_num_cp_trains_the_same_in_less_memory(apart, name):
    apart(trains, name)


def trains_in_other_ways(name):
    assert lowtide.compat.fairscale.install()
    plain, peak, _ = measured(training(name, -1))
    assert equal(plain, results(name, 2, by_autograd_grad))
    for again in (copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))):
        kept, lower, _ = measured(training(name, 2, again=again))
        assert equal(plain, kept)
        assert lower < 0.8 * peak
    less_precise = results(name, -1, under_autocast)
    assert not equal(plain, less_precise)
    assert equal(less_precise, results(name, 2, under_autocast))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_autocast_copies_and_autograd_grad(apart, name):
    apart(trains_in_other_ways, name)


def check_inside(body, limit_bytes, plain):
    limit = lowtide.meter().live_bytes + limit_bytes
    with lowtide.budget(limit) as budget:
        inside, _, _ = measured(body)
    assert equal(plain, inside)
    report = budget.report()
    assert report["peak_bytes"] <= limit
    return report["drops"]


def trains_inside_a_budget(name):
    assert lowtide.compat.fairscale.install()
    plain, peak, _ = measured(training(name, -1))
    assert check_inside(training(name, -1), int(0.7 * peak), plain) > 0
    check_inside(training(name, 2), int(0.7 * peak), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_inside_a_budget(apart, name):
    apart(trains_inside_a_budget, name)


def attends_by_kernel(early):
    assert lowtide.compat.fairscale.install()
    if early:
        lowtide.compat.enable_cpu_ms_deform_attn()
    module = importlib.import_module("mmcv.ops.multi_scale_deform_attn")
    importlib.import_module("mmdet.models")
    lowtide.compat.enable_cpu_ms_deform_attn()
    ours = module.multi_scale_deformable_attn_pytorch
    assert ours.__lowtide__
    for name in ("DeformableDetrTransformerEncoder", "GroundingDinoTransformerEncoder"):
        torch.manual_seed(5)
        encoder, given = make_encoder(name, 2), make_inputs(name)
        wanted = [given["query"], *encoder.parameters()]

        def run(function):
            module.multi_scale_deformable_attn_pytorch = function
            torch.manual_seed(6)
            out = encoder(**given)
            out = out if isinstance(out, tuple) else (out,)
            return [*out, *torch.autograd.grad(sum(t.square().mean() for t in out), wanted)]

        slow, fast = run(ours.__wrapped__), run(ours)
        assert not equal(slow, fast)
        torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
        assert equal(results(name, -1), results(name, 2))


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True])
def test_the_kernel_agrees_with_mmcv(apart, early):
    apart(attends_by_kernel, early)


def make_detector(num_cp):
    """Deformable DETR as mmdet configures it, of a small size."""
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules

    register_all_modules()
    width = 32
    deformable = {"embed_dims": width, "num_heads": 4, "num_levels": 4, "batch_first": True}
    ffn = {"embed_dims": width, "feedforward_channels": 128, "ffn_drop": 0.1}
    attention = {"embed_dims": width, "num_heads": 4, "dropout": 0.1, "batch_first": True}
    detector = MODELS.build({
        "type": "DeformableDETR", "num_queries": 30, "num_feature_levels": 4, "with_box_refine": True,
        "data_preprocessor": {
            "type": "DetDataPreprocessor", "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375],
            "bgr_to_rgb": True},
        "backbone": {
            "type": "ResNet", "depth": 18, "base_channels": 8, "stem_channels": 8, "out_indices": (1, 2, 3)},
        "neck": {
            "type": "ChannelMapper", "in_channels": [16, 32, 64], "kernel_size": 1, "out_channels": width,
            "act_cfg": None, "norm_cfg": {"type": "GN", "num_groups": 8}, "num_outs": 4},
        "encoder": {
            "num_layers": 4, "num_cp": num_cp, "layer_cfg": {"self_attn_cfg": deformable, "ffn_cfg": ffn}},
        "decoder": {
            "num_layers": 2, "return_intermediate": True, "post_norm_cfg": None,
            "layer_cfg": {"self_attn_cfg": attention, "cross_attn_cfg": deformable, "ffn_cfg": ffn}},
        "positional_encoding": {"num_feats": width // 2, "normalize": True, "offset": -0.5},
        "bbox_head": {
            "type": "DeformableDETRHead", "num_classes": 5, "embed_dims": width, "sync_cls_avg_factor": True,
            "loss_cls": {"type": "FocalLoss", "use_sigmoid": True, "gamma": 2.0, "alpha": 0.25, "loss_weight": 2.0},
            "loss_bbox": {"type": "L1Loss", "loss_weight": 5.0},
            "loss_iou": {"type": "GIoULoss", "loss_weight": 2.0}},
        "train_cfg": {"assigner": {"type": "HungarianAssigner", "match_costs": [
            {"type": "FocalLossCost", "weight": 2.0},
            {"type": "BBoxL1Cost", "weight": 5.0, "box_format": "xywh"},
            {"type": "IoUCost", "iou_mode": "giou", "weight": 2.0}]}},
        "test_cfg": {"max_per_img": 100}})
    detector.init_weights()
    return detector


def make_batch():
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    images, samples = [], []
    for height, width in ((160, 192), (144, 192)):
        images.append(torch.randint(0, 256, (3, height, width), dtype=torch.uint8))
        corner = torch.rand(4, 2) * 80
        boxes = torch.cat((corner, corner + 10 + torch.rand(4, 2) * 50), 1)
        sample = DetDataSample(metainfo={"img_shape": (height, width), "scale_factor": (1.0, 1.0)})
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.randint(0, 5, (4,)))
        samples.append(sample)
    return {"inputs": images, "data_samples": samples}


def detector_training(num_cp, steps):
    def body():
        from mmengine.optim import OptimWrapper

        detector = make_detector(num_cp).train()
        optimizer = OptimWrapper(torch.optim.AdamW(detector.parameters(), lr=1e-3), clip_grad={"max_norm": 0.1})
        batch = make_batch()
        torch.manual_seed(3)
        losses = [{k: v.item() for k, v in detector.train_step(batch, optimizer).items()} for _ in range(steps)]
        return [losses, list(detector.state_dict().values()), torch.get_rng_state()]

    return body


def trains_a_detector():
    assert lowtide.compat.fairscale.install()
    plain, peak, _ = measured(detector_training(-1, 3))
    kept, lower, _ = measured(detector_training(4, 3))
    assert equal(plain, kept)
    assert lower < 0.8 * peak
    assert plain[0][0]["loss"] > plain[0][-1]["loss"]
    assert check_inside(detector_training(-1, 3), int(0.7 * peak), plain) > 0
    assert check_inside(detector_training(4, 3), int(0.97 * lower), plain) > 0  # regions and drops together


@pytest.mark.slow
def test_a_detector_trains(apart):
    apart(trains_a_detector)

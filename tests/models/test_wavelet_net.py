"""Wavelet networks: published parameter counts, invariance, and the contract of networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from kernelfield import wavelet_loss
from kernelfield.data.sets.synthetic.transients import transients
from kernelfield.models import create_model
from kernelfield.models.wavelet_net import Stage, WaveletNet
from kernelfield.testing import assert_compiles, assert_exports, assert_state_dict_round_trip, count_parameters

F64 = {"dtype": torch.float64}
PUBLISHED = {
    "m3": (220_672, "220.67k"),
    "m5": (558_080, "558.08k"),
    "m11": (1_784_192, "1.784M"),
    "m18": (3_679_872, "3.680M"),
    "m34": (3_978_432, "3.978M"),
    "w3": (219_450, "219.45k"),
    "w5": (558_034, "558.03k"),
    "w11": (1_806_369, "1.806M"),
    "w18": (3_758_865, "3.759M"),
    "w34": (4_020_525, "4.021M"),
    "cnn1d": (453_418, "453.42k"),
    "w_cnn1d": (458_614, "458.61k"),
    "m39": (2_394_162, "2.394M"),
    "w39": (2_403_860, "2.404M"),
}
#: dilations after each stage, the head's last
SCALES = {
    "w3": (9, 7, 5),
    "w5": (9, 7, 5, 3, 1),
    "w11": (9, 7, 7, 5, 5, 3, 3, 3, 1, 1, 1),
    "w34": (9, *[7] * 3, *[5] * 4, *[3] * 6, *[1] * 3, 1),
    "w_cnn1d": (9, 7, 5, 3, 1),
    "w39": (9, 7, 7, 7, 5, 5, 5, 3, 3, 3, 1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name):
    assert count_parameters(create_model(name)) == PUBLISHED[name][0], PUBLISHED[name][1]


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_dropped_as_in_the_chapter(name):
    net = create_model(name)
    seen = [stage.group.n for stage in net.stages]
    if hasattr(net.head, "group"):
        seen.append(net.head.group.n)
    assert tuple(seen) == SCALES[name]


def small(scales=6, **options):
    torch.manual_seed(1)
    stages = [Stage(4, 9, stride=2, pool=2), Stage(4, 3, 3, pool=2), Stage(8, 3, 2, residual=True), Stage(8)]
    net = WaveletNet(2, 3, scales=scales, **{"stages": stages, "head_interactions": 2, **options})
    for name, buffer in net.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
    return net


@pytest.mark.parametrize("scales", [0, 6])
@pytest.mark.parametrize("head", ["conv", "dense", "linear"])
def test_takes_inputs_of_any_length(scales, head):
    net = small(scales, head=head, hidden=(5,) if head == "dense" else ()).eval()
    for length in (7, 64, 200, 333):
        assert net(torch.randn(2, 2, length)).shape == (2, 3)
    assert net(torch.randn(2, 2, 100), mask=torch.rand(2, 100) < 0.5).shape == (2, 3)


@pytest.mark.parametrize("scales", [0, 3])
def test_unseen_samples_have_no_effect(scales):
    net = WaveletNet(2, 3, stages=[Stage(4, 5)], scales=scales).eval()
    x, mask = torch.randn(2, 2, 40), torch.rand(2, 40) < 0.5
    with torch.no_grad():
        wanted = net(x, mask=mask)
        for hidden in (100.0, math.nan):
            torch.testing.assert_close(net(torch.where(mask.unsqueeze(1), x, hidden), mask=mask), wanted)
        assert not torch.allclose(net(x), wanted)


def test_other_sampling_rates():
    """Twice the rate, told so, is the same sound: for signals that end where they begin, the same to rounding."""
    net = small().double().eval()
    t = torch.arange(200, **F64) / 200
    wave = torch.stack([torch.sin(2 * math.pi * 7 * t), torch.cos(2 * math.pi * 11 * t)])[None]
    fine = torch.arange(400, **F64) / 400
    finer = torch.stack([torch.sin(2 * math.pi * 7 * fine), torch.cos(2 * math.pi * 11 * fine)])[None]
    torch.testing.assert_close(net(finer, step=0.5), net(wave))
    assert not torch.allclose(net(finer), net(wave), rtol=1e-3)


def test_scales_follow_from_the_size():
    net = WaveletNet(stages=[Stage(4, 79), Stage(4)], scales=None, size=8_000)
    assert net.stages[0].group.n == 7
    with pytest.raises(ValueError, match=r"\bsize must"):
        WaveletNet(stages=[Stage(4, 79)], scales=None)


def sound(t):
    """Two bursts; what is in them is slow against a sample."""
    return torch.exp(-0.5 * ((t + 60) / 14) ** 2) * torch.sin(0.5 * t) + torch.exp(
        -0.5 * ((t - 50) / 22) ** 2
    ) * torch.cos(0.3 * t)


def deep(base=2.0, scales=8):
    """A network without pooling before its end: what pooling rounds to is another test's."""
    torch.manual_seed(0)
    stages = [Stage(6, 9), Stage(6, 3, 2), Stage(6, 3, 2)]
    net = WaveletNet(1, 4, stages=stages, scales=scales, base=base).double()
    net(sound(torch.arange(-256, 256, **F64))[None, None])  # statistics of this kind of sound
    return net.eval()


def test_the_network_is_invariant_to_translation():
    t = torch.arange(-512, 512, **F64)
    net = deep()
    plain = net(sound(t)[None, None])
    torch.testing.assert_close(net(sound(t - 37)[None, None]), plain, rtol=1e-6, atol=1e-8)
    # With pooling, to translations by what all pooling together makes one step.
    pooled = small().double().eval()
    silence = torch.zeros(1, 2, 2048, **F64)
    silence[:, :, 1000:1040] = torch.randn(2, 40, **F64)
    torch.testing.assert_close(pooled(silence.roll(24, -1)), pooled(silence), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("base", [2.0, 1.5])
def test_predictions_shift_by_one_scale(base):
    """A sound played slower by the base: each dilation predicts what the one before it did, within 3 percent."""
    net, found = deep(base), []
    for slow in (1.0, base):
        t = torch.arange(-384 * slow, 384 * slow, **F64) / slow
        with torch.no_grad():
            features = net.stages(sound(t)[None, None]).map(torch.mean, dim=-1, keepdim=True)
            found.append(net.head.conv(features).values[..., 0])
    assert float((found[0][..., :-1] - found[1][..., 1:]).norm() / found[0][..., :-1].norm()) < 0.03
    assert float((found[0] - found[1]).norm() / found[0].norm()) > 0.3


def test_the_network_is_invariant_to_scale_within_a_bound():
    """The maximum over dilations: within half a percent, where the same network of one dilation is off by ten."""
    errors = []
    for scales in (8, 1):
        net = deep(scales=scales)
        with torch.no_grad():
            a, b = (net(sound(torch.arange(-384 * s, 384 * s, **F64) / s)[None, None]) for s in (1.0, 2.0))
        errors.append(float((a - b).norm() / a.norm()))
    assert errors[0] < 0.005, errors
    assert errors[1] > 0.08, errors


def accuracies(arguments, seed, weight=0.0, epochs=25):
    """Train on events of one speed; return the accuracy at that, and on them 1.5 and 2 times slower."""
    speeds = (1.0, 1 / 1.5, 0.5)
    data = [transients(384, scales=(1, 1), speed=s, train=240, validation=0, test=150, noise=0.05) for s in speeds]
    torch.manual_seed(seed)
    net = WaveletNet(1, 5, **arguments)
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.015, total_steps=8 * epochs)
    inputs, target = data[0].train.inputs, data[0].train.target
    for _ in range(epochs):
        for chosen in torch.randperm(240).split(30):
            loss = F.cross_entropy(net(inputs[chosen]), target[chosen]) + weight * wavelet_loss(net)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        found = [net(d.test.inputs).argmax(dim=1) == d.test.target for d in data]
    return count_parameters(net), torch.stack([f.float().mean() for f in found])


@pytest.mark.slow
def test_a_network_trained_at_one_speed_keeps_its_accuracy_at_others():
    """On average over three seeds, where a plain network of equal size is left with about chance, one in five."""
    on_scales = {"stages": [Stage(8, 15, stride=2), Stage(8, 3, 2), Stage(16, 3, 2)], "scales": 9, "base": 2**0.5}
    plain = {"stages": [Stage(11, 15, stride=2), Stage(11), Stage(22)], "scales": 0}
    sizes, means = [], []
    for arguments, weight in ((on_scales, 0.3), (plain, 0.0)):
        runs = [accuracies(arguments, seed, weight) for seed in range(3)]
        sizes.append(runs[0][0])
        means.append(torch.stack([found for _, found in runs]).mean(dim=0))
    assert sizes == [1416, 1452]
    assert float(min(means[0][0], means[1][0])) > 0.95, means
    assert float(means[0][1:].min()) > 0.7, means
    assert float(means[1][1:].max()) < 0.45, means


def test_all_parameters_get_gradients_and_bf16_trains():
    for scales in (0, 6):
        net = small(scales).train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(torch.randn(4, 2, 200)).float().square().mean()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


STAGES = [Stage(4, 9, stride=2, pool=2), Stage(4, 3, 2, residual=True)]


@pytest.mark.slow
@pytest.mark.parametrize("scales", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_compiles(scales):
    assert_compiles(small(scales, stages=STAGES).eval(), torch.randn(2, 2, 200))


@pytest.mark.slow
@pytest.mark.parametrize("scales", [0, 2])
def test_exports_and_round_trips(scales):
    net, x = small(scales, stages=STAGES).eval(), torch.randn(2, 2, 200)
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64), 2: torch.export.Dim("length", min=130)}}
    assert_exports(net, (x,), shapes, [(torch.randn(3, 2, 260),)])
    assert_state_dict_round_trip(lambda: small(scales), x)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"\bhead must"):
        WaveletNet(stages=[Stage(4, 9)], head="mean")
    with pytest.raises(ValueError, match=r"\bstages must"):
        WaveletNet(stages=[Stage(4, 9, residual=True)])
    with pytest.raises(ValueError, match=r"\bx must"):
        small()(torch.randn(2, 1, 100))
    with pytest.raises(ValueError, match=r"\bstep must"):
        small()(torch.randn(2, 2, 100), step=1e9)

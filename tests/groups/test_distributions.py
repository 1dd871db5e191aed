from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from kernelfield.groups import (
    O2,
    SO2,
    Bernoulli,
    Cyclic,
    Dihedral,
    Independent,
    Interval,
    Mirror,
    Uniform,
    learned,
    monotonicity,
    parameter_groups,
)
from kernelfield.groups.distributions.bernoulli import read_logits

like = torch.zeros((), dtype=torch.float64)


def test_full_interval_draws_what_the_uniform_distribution_draws():
    uniform, interval = Uniform(SO2(), 8), Interval(SO2(), 8)
    for _ in range(3):
        torch.manual_seed(7)
        a, _ = uniform(like)
        torch.manual_seed(7)
        b, _ = interval(like)
        torch.testing.assert_close(a, b)


def test_offset_is_a_share_of_the_spacing_in_use():
    """One sample in each of the parts that are used, whatever the width: the offset is divided by the right count."""
    for width in (1.0, 0.5, 0.3):
        interval = Interval(SO2(), 16, width)
        assert interval.count == math.ceil(16 * width)
        for _ in range(20):
            share = (interval(like)[0].squeeze(-1) / (math.pi * width) + 1) / 2
            assert sorted((share * interval.count).floor().tolist()) == list(range(interval.count))


def test_samples_fill_the_interval_uniformly():
    torch.manual_seed(0)
    interval = Interval(SO2(), 4, 0.5)
    angles = torch.cat([interval(like)[0] for _ in range(2000)]).detach()
    assert float(angles.abs().max()) <= math.pi / 2
    assert abs(float(angles.mean())) < 0.05
    assert abs(float(angles.std()) - math.pi / 2 / math.sqrt(3)) < 0.03


def test_count_follows_the_width_when_the_mode_is_switched_and_when_a_state_is_loaded():
    interval = Interval(SO2(), 16)
    with torch.no_grad():
        interval.width.fill_(0.25)
    assert interval.count == 16
    interval.eval()
    assert interval.count == 4
    other = Interval(SO2(), 16)
    other.load_state_dict(interval.state_dict())
    assert other.count == 4


def test_width_zero_is_the_identity_and_can_grow_again():
    interval = Interval(SO2(), 8, 0.0)
    elements, _ = interval(like)
    assert elements.tolist() == [[0.0]]
    interval.count = 4
    elements, _ = interval(like)
    elements[-1].sum().backward()
    assert float(interval.width.grad) > 0


@pytest.mark.parametrize(("width", "limit"), [(1.2, 1.0), (-0.1, 0.0), (0.4, 0.4)])
def test_limits_are_clamped_but_their_gradient_passes(width, limit):
    interval = Interval(SO2(), samples=4)
    with torch.no_grad():
        interval.width.fill_(width)
    limits = interval.limits()
    assert limits.item() == pytest.approx(limit)
    limits.sum().backward()
    assert interval.width.grad == 1


def test_a_computed_width_is_left_as_it_is():
    """An interval that clamped it would break the graph of its gradient, and could use more samples than it has."""
    interval = Interval(SO2(), samples=8).eval()
    raw = torch.nn.Parameter(torch.tensor(0.0))
    elements, _ = torch.func.functional_call(interval, {"width": raw.sigmoid()}, (torch.zeros(()),))
    elements.square().sum().backward()
    assert len(elements) == 4
    assert raw.grad != 0
    wide = torch.nn.utils.parametrize.register_parametrization(interval, "width", torch.nn.Softplus())
    assert len(wide(torch.zeros(()))[0]) == 8


def test_a_diverged_width_keeps_all_samples():
    interval = Interval(SO2(), samples=8).train()
    with torch.no_grad():
        interval.width.fill_(torch.nan)
    assert interval.eval().count == 8


def test_every_element_moves_with_the_width():
    interval = Interval(SO2(), 4, 0.5).eval()
    elements, _ = interval(like)
    for i in range(len(elements)):
        (grad,) = torch.autograd.grad(elements[i, 0], interval.width, retain_graph=True)
        assert float(grad) == pytest.approx(float(elements[i, 0].detach()) / 0.5, rel=1e-5)


def test_bernoulli_keeps_with_its_probability_and_the_identity_always():
    """Probabilities are probabilities, not logits passed as such."""
    torch.manual_seed(0)
    for p in (0.2, 0.88):
        for temperature in (0.5, 1e-3):
            distribution = Bernoulli(Cyclic(4), p, temperature)
            counts = torch.zeros(4)
            for _ in range(600):
                elements, gates = distribution(like)
                counts[elements.squeeze(-1).long()] += 1
                assert bool((gates == 1).all())
            assert counts[0] == 600
            torch.testing.assert_close(counts[1:] / 600, torch.full((3,), p), atol=0.06, rtol=0)


def test_gates_have_the_gradient_of_the_soft_sample():
    torch.manual_seed(3)
    distribution = Bernoulli(Cyclic(4), 0.99)
    _, gates = distribution(like)
    gates[1:].sum().backward()
    assert bool((distribution.logits.grad > 0).any())
    assert bool((distribution.logits.grad >= 0).all())


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_temperature_sharpens_the_soft_sample(temperature, monkeypatch):
    distribution = Bernoulli(Cyclic(3), 0.8, temperature)
    noise = torch.tensor([-0.5, 1.0], dtype=torch.float64)
    monkeypatch.setattr(distribution, "_noise", lambda *_: noise)
    elements, gates = distribution(like)
    assert len(elements) == 3  # log(0.8 / 0.2) = 1.39 exceeds the noise
    gates.sum().backward()
    soft = torch.sigmoid((distribution.logits.detach() + noise) / temperature)
    torch.testing.assert_close(distribution.logits.grad, (soft * (1 - soft) / temperature).float())


def test_bernoulli_is_deterministic_in_evaluation():
    distribution = Bernoulli(Cyclic(4))
    with torch.no_grad():
        distribution.logits.copy_(torch.tensor([2.0, -2.0, 0.1]))
    elements, gates = distribution.eval()(like)
    assert elements.squeeze(-1).tolist() == [0, 1, 3]
    assert gates is None


def test_products_shrink_along_each_factor():
    distribution = learned(O2(), 16)
    assert isinstance(distribution, Independent)
    mirror, turns = distribution.parts
    assert isinstance(mirror, Bernoulli)
    assert isinstance(turns, Interval)
    with torch.no_grad():
        turns.width.fill_(0.5)
        mirror.logits.fill_(-3.0)
    elements, _ = distribution.eval()(like)
    assert elements.shape == (4, 2)
    assert bool((elements[:, 1] == 1).all())
    assert len(learned(Dihedral(4)).eval()(like)[0]) == 8


def test_product_gates_multiply():
    torch.manual_seed(0)
    distribution = learned(O2(), 8)
    for _ in range(10):
        elements, gates = distribution(like)
        assert gates.shape == (len(elements),)
        assert len(elements) in (4, 8)


def test_frozen_distributions_draw_nothing():
    for distribution in (Uniform(SO2(), 8), learned(O2(), 8), learned(Mirror())):
        distribution.freeze()
        state = torch.get_rng_state()
        a, _ = distribution(like)
        b, _ = distribution(like)
        assert a.equal(b)
        assert torch.get_rng_state().equal(state)


def test_monotonicity_penalises_growth_only():
    wide, narrow = Interval(SO2(), 8, 1.0), Interval(SO2(), 8, 0.25)
    assert monotonicity([wide, narrow]) == 0
    growth = monotonicity([narrow, wide])
    assert float(growth.detach()) == pytest.approx(0.75)
    growth.backward()
    assert float(wide.width.grad) == 1
    assert float(narrow.width.grad) == -1


def test_parameter_groups_separate_the_distributions():
    model = nn.ModuleList([nn.Linear(2, 2), learned(O2(), 8), Interval(SO2(), 4)])
    rest, slow = parameter_groups(model, lr=1e-3)
    assert [p.numel() for p in rest["params"]] == [4, 2]
    assert len(slow["params"]) == 3
    assert slow["lr"] == pytest.approx(1e-4)
    torch.optim.Adam([rest, slow])


def test_annealing():
    distribution = Bernoulli(Mirror())
    distribution.anneal_(0.5)
    assert distribution.temperature == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("group", lambda: Interval(Mirror(), 4)),
        ("width", lambda: Interval(SO2(), 4, 1.5)),
        ("group", lambda: Bernoulli(SO2())),
        ("samples", lambda: learned(O2(), 5)),
        ("samples", lambda: Uniform(Cyclic(4), 3)),
        ("distributions", lambda: monotonicity([])),
        ("distributions", lambda: monotonicity([learned(O2(), 8), learned(Mirror())])),
    ],
)
def test_errors_name_the_argument(name, make):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        make()


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
@pytest.mark.parametrize("copied", [False, True])
def test_evaluation_follows_every_kind_of_optimiser(options, copied):
    """Fused optimisers change parameters without counting versions; copies are followed too."""
    interval, gates = Interval(SO2(), 16), Bernoulli(Cyclic(4))
    if copied:
        interval, gates = copy.deepcopy([interval, gates])
    for distribution in (interval, gates):
        distribution.eval()
        optimizer = torch.optim.AdamW(
            distribution.parameters(), lr=0.75 if distribution is interval else 5.0, **options
        )
        for p in distribution.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert len(interval(like)[0]) == 4
    assert gates(like)[0].tolist() == [[0.0]]


@pytest.mark.parametrize("options", [{"fused": True}, {}], ids=str)
def test_draws_follow_every_kind_of_optimiser_and_every_other_change(options):
    gates = Bernoulli(Cyclic(4), probability=1 - 1e-5)
    assert len(gates(like)[0]) == 4
    optimizer = torch.optim.AdamW(gates.parameters(), lr=30.0, **options)
    gates.logits.grad = torch.ones(3)
    optimizer.step()
    assert len(gates(like)[0]) == 1
    with torch.no_grad():
        gates.logits.copy_(torch.tensor([20.0, -20.0, 20.0]))
    assert gates(like)[0].squeeze(-1).tolist() == [0, 1, 3]


@pytest.mark.parametrize("training", [True, False])
def test_subsets_follow_changes_that_no_version_counts(training):
    gates = Bernoulli(Cyclic(4), probability=1 - 1e-5).train(training)
    assert len(gates(like)[0]) == 4
    gates.logits.data.fill_(-20.0)
    assert len(gates(like)[0]) == 1
    for logit, count in [(20.0, 4), (-20.0, 1)]:
        assert len(functional_call(gates, {"logits": torch.full((3,), logit)}, (like,))[0]) == count
    interval = Interval(SO2(), 16).eval()
    interval.width.data = torch.tensor(0.25)
    assert len(interval(like)[0]) == 4


def test_the_host_reads_all_logits_at_once():
    several = [Bernoulli(Cyclic(4)), Bernoulli(Mirror(), 0.3)]
    read_logits(several)
    for distribution in several:
        assert distribution._known[0] == pytest.approx(distribution.logits.tolist())


def test_size_is_the_number_of_elements_of_the_next_pass():
    several = [Uniform(SO2(), 6), Uniform(Cyclic(4)), Interval(SO2(), 8, 0.4), Bernoulli(Cyclic(4)), learned(O2(), 8)]
    for distribution in several:
        assert distribution.eval().size() == len(distribution(like)[0])
        drawn = isinstance(distribution, (Bernoulli, Independent))
        assert distribution.train().size() == (None if drawn else len(distribution(like)[0]))


@pytest.mark.parametrize("make", [lambda: Interval(SO2(), samples=4), lambda: Bernoulli(Mirror())])
def test_parameters_that_differ_within_vmap_are_refused(make):
    like, each = torch.zeros(()), [make().eval() for _ in range(2)]
    parameters, _ = torch.func.stack_module_state(each)

    def elements(own):
        return functional_call(each[0], own, (like,))[0]

    with pytest.raises(ValueError, match=r"parameters of .* must be the same within torch\.vmap"):
        torch.vmap(elements)(parameters)
    torch.testing.assert_close(torch.vmap(lambda x: each[0](x)[0])(torch.zeros(3))[1], each[0](like)[0])

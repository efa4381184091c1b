"""Models with added positions are copied, saved, compiled, exported and trained in parallel."""

import copy
import gc
import io
import pickle

import peft
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from relpos.adapters import add_positions, remove_positions
from relpos.positions import Shaw, T5Bias
from tests.adapters.torch_models import drawn
from tests.factories import normal

traced = [
    pytest.mark.no_typecheck,
    # torch's own, as it traces its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


class Model(nn.Module):
    """An encoder and a causal decoder, whose memory has another length."""

    def __init__(self):
        super().__init__()
        shape = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
        encoder = nn.TransformerEncoderLayer(8, 2, **shape)
        self.encoder = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **shape), 1)

    def forward(self, x, memory):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.decoder(x, self.encoder(memory), tgt_mask=mask, tgt_is_causal=True)


def plain():
    torch.manual_seed(0)
    return Model()


def give(model):
    add_positions(model, lambda heads, head_dim: Shaw(head_dim, 3), include="encoder.*")
    across = {"include": "*multihead_attn", "cross_attention": True}
    add_positions(model, lambda heads, head_dim: T5Bias(heads, 8, 20), **across)
    return drawn(model)


def given(i=5, j=9):
    return tuple(normal(2, n, 8, seed=n, dtype=torch.float32) for n in (i, j))


def gradients(run, model):
    """Of a sum that the last norm does not make constant."""
    output = run(*given())
    names, parameters = zip(*model.named_parameters(), strict=True)
    (output * normal(*output.shape, dtype=output.dtype)).sum().backward()
    found = [parameter.grad for parameter in parameters]
    model.zero_grad()
    return dict(zip(names, found, strict=True))


def through_a_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


CLONES = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), through_a_file]


@pytest.mark.parametrize("clone", CLONES, ids=["deepcopy", "pickle", "file"])
def test_copies_compute_the_same_share_nothing_and_can_be_undone(clone):
    model = give(plain())
    want = model(*given())
    other = clone(model)
    assert repr(other) == repr(model)
    assert torch.equal(other(*given()), want)
    remove_positions(other)
    assert repr(other) == repr(plain())
    assert_close(other(*given()), plain()(*given()))
    assert torch.equal(model(*given()), want)


def test_a_state_dict_goes_round_and_that_from_before_fits_but_for_the_tables():
    model, other = give(plain()), plain()
    add_positions(other, lambda heads, head_dim: Shaw(head_dim, 3), include="encoder.*")
    across = {"include": "*multihead_attn", "cross_attention": True}
    add_positions(other, lambda heads, head_dim: T5Bias(heads, 8, 20), **across)
    assert_close(other(*given()), plain()(*given()))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(*given()), model(*given()))
    found = other.load_state_dict(plain().state_dict(), strict=False)
    assert not found.unexpected_keys
    assert found.missing_keys
    assert all(".position." in key for key in found.missing_keys)


class TestLora:
    """PEFT's, of whole attentions: it puts its weights into theirs for the time of a call."""

    pytestmark = pytest.mark.no_typecheck

    @staticmethod
    def wrap(model, **arguments):
        torch.manual_seed(2)
        config = peft.LoraConfig(
            r=2, init_lora_weights=False, **{"target_modules": ["self_attn"]} | arguments
        )
        return peft.get_peft_model(model, config)

    @staticmethod
    def shaw(model):
        return add_positions(model, lambda heads, head_dim: Shaw(head_dim, 3))

    def wrapped(self, order):
        model = plain()
        if order == "positions first":
            self.shaw(model)
        model = self.wrap(model)
        if order == "LoRA first":
            self.shaw(model)
        return model.double()

    orders = pytest.mark.parametrize("order", ["positions first", "LoRA first"])

    @orders
    def test_outputs_and_gradients_are_those_of_torchs_attention(self, order):
        theirs, ours = self.wrap(plain()).double(), self.wrapped(order)
        x = tuple(part.double() for part in given())
        assert_close(ours(*x), theirs(*x))
        for model in (theirs, ours):
            (model(*x) * normal(2, 5, 8)).sum().backward()
        found = {name: p.grad for name, p in ours.named_parameters() if "lora_" in name}
        want = {name: p.grad for name, p in theirs.named_parameters() if "lora_" in name}
        assert len(want) == 4 * 3
        assert_close(found, want)
        assert all(gradient.abs().max() > 1e-3 for gradient in found.values())

    @orders
    def test_merged_and_switched_off_it_is_what_it_says(self, order):
        model = drawn(self.wrapped(order))
        x = tuple(part.double() for part in given())
        want = model(*x)
        with model.disable_adapter():
            plain_output = model(*x)
            assert not torch.allclose(plain_output, want)
        merged = copy.deepcopy(model).merge_and_unload()
        assert_close(merged(*x), want)
        unloaded = model.unload()
        assert_close(unloaded(*x), plain_output)
        assert [scheme for _, scheme in remove_positions(unloaded).adapted] == ["Shaw"] * 3
        assert repr(unloaded) == repr(plain())

    @orders
    def test_it_acts_in_inference(self, order):
        model = drawn(self.wrapped(order))
        x = tuple(part.double() for part in given())
        want = model(*x)
        model.eval()
        assert_close(model(*x), want)
        with torch.no_grad():
            assert_close(model(*x), want)

    @orders
    def test_tables_given_before_are_frozen_as_all_weights_and_given_after_are_not(self, order):
        model = self.wrapped(order)
        tables = [p for name, p in model.named_parameters() if ".position." in name]
        trained = order == "LoRA first"
        assert [table.requires_grad for table in tables] == [trained] * 2 * 3
        for table in tables:
            table.requires_grad_()
        (model(*(x.double() for x in given())) * normal(2, 5, 8)).sum().backward()
        assert all(table.grad is not None and table.grad.abs().max() > 1e-3 for table in tables)

    def test_names_are_those_of_the_wrapper_and_cross_attention_is_known(self):
        model = self.wrap(plain(), target_modules=["self_attn", "multihead_attn"])
        report = self.shaw(model)
        start = "base_model.model."
        assert [name for name, _ in report.adapted] == [
            f"{start}{layer}.self_attn"
            for layer in ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0")
        ]
        assert report.left == [
            (
                f"{start}decoder.layers.0.multihead_attn",
                "cross-attention, and cross_attention=False",
            )
        ]


class TestTraced:
    pytestmark = traced

    def test_compiled_equals_eager_in_one_graph_for_all_lengths(self):
        torch._dynamo.reset()
        model = give(plain())
        graphs = []

        def backend(graph, _):
            graphs.append(graph)
            return graph.forward

        run = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
        for lengths in ((5, 9), (33, 12), (6, 65)):
            assert_close(run(*given(*lengths)), model(*given(*lengths)))
        assert len(graphs) == 1

    @pytest.mark.slow
    @pytest.mark.costly(4, of="compiled models")
    def test_compiled_ahead_of_time_has_the_gradients_of_eager(self):
        torch._dynamo.reset()
        model = give(plain())
        want = gradients(model, model)
        assert all(gradient is not None for gradient in want.values())
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_close(gradients(compiled, model), want)

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.costly(1)
    def test_an_exported_program_serves_all_lengths(self, strict):
        model = give(plain()).eval()
        dynamic = ({1: torch.export.Dim.DYNAMIC}, {1: torch.export.Dim.DYNAMIC})
        program = torch.export.export(model, given(), dynamic_shapes=dynamic, strict=strict)
        run = program.module()
        for lengths in ((5, 9), (33, 12), (6, 65)):
            assert_close(run(*given(*lengths)), model(*given(*lengths)))


@pytest.mark.no_typecheck
def test_one_process_of_many_has_the_gradients_of_none(tmp_path):
    model = give(plain())
    want = gradients(model, model)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        two_steps(model, want)
    finally:
        # Nothing holds the group any more.
        gc.collect()
        distributed.destroy_process_group()


def two_steps(model, want):
    # With `find_unused_parameters` left at False, a parameter without a gradient is an error in
    # the second step.
    parallel = DistributedDataParallel(model)
    for _ in range(2):
        assert_close(gradients(parallel, model), want)
    with pytest.raises(ValueError, match="positions before DistributedDataParallel"):
        add_positions(parallel, lambda heads, head_dim: Shaw(head_dim, 3), include="*decoder*")

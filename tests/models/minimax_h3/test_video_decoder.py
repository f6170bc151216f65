import pytest
import torch
from tests.models.minimax_h3.test_video_autoencoder import TILE, unfilled
from tests.support.mini import MINI

from omnireel.acceleration import compile_blocks
from omnireel.acceleration.compile import num_graphs
from omnireel.layers.kernels import PLAIN, TRACEABLE
from omnireel.weights import load_component, read_index


@pytest.fixture
def vae():
    made = unfilled(TILE)
    load_component(made, read_index(MINI / "vae"), device=torch.device("cpu"), dtype_of=lambda _, __: torch.float32)
    return made


@pytest.mark.parametrize("kernels", [PLAIN, TRACEABLE], ids=lambda each: each.name)
@torch.inference_mode()
def test_a_decoder_with_joined_projections_decodes_the_same(vae, kernels):
    latents = torch.randn(1, vae.config.latent_channels, 7, 4, 4, generator=torch.Generator().manual_seed(5))
    expected = vae.decode(latents)
    before = {name: tensor.clone() for name, tensor in vae.state_dict().items()}
    vae.decoder.use(kernels)
    torch.testing.assert_close(vae.decode(latents), expected, atol=1e-5, rtol=1e-5)
    after = vae.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@torch.inference_mode()
def test_all_blocks_of_a_decoder_share_one_graph_for_all_sizes(vae):
    vae.decoder.use(TRACEABLE)
    torch._dynamo.reset()
    compile_blocks(vae, ("decoder.transformer_blocks",), name="vae", backend="eager")
    assert len(vae.decoder.blocks) > 1
    before = num_graphs()
    for size, tile_batch in ((4, 1), (6, 2), (8, 4)):
        latents = torch.randn(1, vae.config.latent_channels, 7, size, size)
        assert vae.decode(latents, tile_batch=tile_batch).isfinite().all()
    torch._dynamo.reset()
    assert num_graphs() - before <= 2

"""Model geometries: bytes and parameters of the known models, files read, bad ones refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import InputError
from scenario.geometry import load_geometry, model_names
from scenario.model_config import FAMILIES, geometry_from_config

MODELS = json.loads(
    (Path(__file__).parents[2] / "scenario" / "models.json").read_text(encoding="utf-8")
)

BYTES_PER_TOKEN = {
    "Qwen3-4B": 147_456,  # 2 * 36 layers * 8 heads * 128 * 2 bytes
    "Qwen3-8B": 147_456,
    "Qwen3-14B": 163_840,  # 2 * 40 * 8 * 128 * 2
    "Qwen3-32B": 262_144,  # 2 * 64 * 8 * 128 * 2
    "Qwen3-30B-A3B": 98_304,  # 2 * 48 * 4 * 128 * 2
    "Llama-3.1-8B": 131_072,  # 2 * 32 * 8 * 128 * 2
    "Llama-3.1-70B": 327_680,  # 2 * 80 * 8 * 128 * 2
    "DeepSeek-V3": 70_272,  # 61 * (512 + 64) * 2
}

# From the safetensors metadata of the published weights.
EXACT_PARAMETERS = {
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
}


def test_the_known_models() -> None:
    assert model_names() == list(BYTES_PER_TOKEN)


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_bytes_of_a_token(name: str) -> None:
    geometry = load_geometry(name)
    assert geometry.kv_bytes_per_token == BYTES_PER_TOKEN[name]
    assert geometry.with_kv_dtype("fp8").kv_bytes_per_token * 2 == BYTES_PER_TOKEN[name]
    assert geometry.with_kv_dtype("fp16").kv_bytes_per_token == BYTES_PER_TOKEN[name]


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_parameters_computed_from_the_shape_are_the_published_ones(name: str) -> None:
    geometry, published = load_geometry(name), MODELS[name]
    assert geometry.parameter_count == pytest.approx(published["published_parameters"], rel=0.02)
    assert geometry.active_parameter_count == pytest.approx(
        published["published_active_parameters"], rel=0.02
    )
    assert geometry.parameter_count == EXACT_PARAMETERS.get(name, geometry.parameter_count)


def test_weights_take_two_bytes_each_and_one_where_they_are_fp8() -> None:
    assert load_geometry("qwen3-8b").weight_bytes == 2 * EXACT_PARAMETERS["Qwen3-8B"]
    deepseek = load_geometry("deepseek-v3")
    assert deepseek.weight_bytes == pytest.approx(deepseek.parameter_count, rel=0.01)


def test_arithmetic_of_a_dense_model() -> None:
    geometry = load_geometry("qwen3-8b")
    embedding = 151_936 * 4096
    assert geometry.dense_flops_per_token == 2 * (EXACT_PARAMETERS["Qwen3-8B"] - embedding)
    assert geometry.head_flops == 2 * embedding
    assert geometry.attention_flops_per_pair == 4 * 36 * 32 * 128
    # One matrix serves as both embeddings: as the head it is multiplied with.
    tied = load_geometry("qwen3-4b")
    assert tied.dense_flops_per_token == 2 * EXACT_PARAMETERS["Qwen3-4B"]


@pytest.mark.parametrize(
    "spelling",
    ["Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B", "QWEN/qwen3-8b", " qwen3-8b "],
)
def test_a_name_in_any_spelling(spelling: str) -> None:
    assert load_geometry(spelling).name == "Qwen3-8B"


def test_other_names_of_the_same_weights_shape() -> None:
    assert load_geometry("meta-llama/Llama-3.1-8B-Instruct").name == "Llama-3.1-8B"
    assert load_geometry("deepseek-r1").name == "DeepSeek-V3"


def test_an_unknown_model_names_the_nearest_and_all() -> None:
    with pytest.raises(InputError) as caught:
        load_geometry("qwen3-8")
    assert "did you mean Qwen3-8B?" in str(caught.value)
    assert "DeepSeek-V3" in str(caught.value)
    with pytest.raises(InputError, match="no known model"):
        load_geometry("nobody/Qwen3-8B")
    with pytest.raises(InputError, match="no known model"):
        load_geometry("")
    with pytest.raises(InputError, match="no such file or folder"):
        load_geometry("./nowhere")


def test_an_unknown_kv_dtype() -> None:
    with pytest.raises(InputError, match="it must be auto, bf16, fp16, fp8"):
        load_geometry("qwen3-8b", "int3")


LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def write(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def test_a_configuration_by_file_and_by_folder(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA)
    by_file, by_folder = load_geometry(file), load_geometry(tmp_path, "fp8")
    assert by_file.kv_heads == 8
    assert by_file.head_dim == 128
    assert by_file.kv_dtype == "bf16"
    assert by_file.kv_bytes_per_token == 2 * 2 * 8 * 128 * 2
    assert by_folder.kv_bytes_per_token * 2 == by_file.kv_bytes_per_token
    assert by_file.source == str(file)
    # Two layers of q, k, v, o, three matrices and two norms; both embeddings; the last norm.
    layer = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    assert by_file.parameter_count == 2 * layer + 2 * 1000 * 1024 + 1024


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    write(tmp_path / "models", LLAMA)
    monkeypatch.chdir(tmp_path)
    assert load_geometry("models").name == "models"
    assert load_geometry("models/config.json").hidden_size == 1024


def test_a_file_of_another_name_names_the_model(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA).rename(tmp_path / "my-model.v2.json")
    assert load_geometry(file).name == "my-model.v2"
    write(tmp_path, LLAMA)
    assert load_geometry(tmp_path).name == load_geometry(tmp_path / "config.json").name
    assert load_geometry(tmp_path).name == tmp_path.name


def test_a_dense_model_may_say_that_it_has_no_experts() -> None:
    for none in (None, 0, 1):
        changes = {"num_experts": none, "num_local_experts": none, "kv_lora_rank": None}
        assert geometry_from_config({**LLAMA, **changes}, "m", "", "m").experts == 0


@pytest.mark.parametrize(
    ("changes", "parameters_of_a_layer"),
    [
        ({"num_key_value_heads": 2}, 2 * 1024 * 1024 + 2 * 256 * 1024),
        ({"head_dim": 64}, 4 * 1024 * 512),
        ({"attention_bias": True}, 4 * 1024 * 1024 + 4 * 1024),
        ({"model_type": "qwen2"}, 4 * 1024 * 1024 + 3 * 1024),
        ({"model_type": "qwen3"}, 4 * 1024 * 1024 + 2 * 128),
    ],
)
def test_attention_of_the_families(changes: dict[str, Any], parameters_of_a_layer: int) -> None:
    geometry = geometry_from_config({**LLAMA, **changes}, "m", "", "m")
    others = 2 * (3 * 1024 * 4096 + 2 * 1024) + 2 * 1000 * 1024 + 1024
    assert geometry.parameter_count == 2 * parameters_of_a_layer + others


def test_tied_embeddings_count_once() -> None:
    tied = geometry_from_config({**LLAMA, "tie_word_embeddings": True}, "m", "", "m")
    untied = geometry_from_config(LLAMA, "m", "", "m")
    assert untied.parameter_count - tied.parameter_count == 1000 * 1024
    assert untied.dense_flops_per_token == tied.dense_flops_per_token


def test_mixtral() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    geometry = geometry_from_config(config, "m", "", "m")
    expert = 3 * 1024 * 4096
    assert geometry.expert_parameter_count == expert
    assert geometry.moe_layers == 2
    assert geometry.parameter_count - geometry.active_parameter_count == 2 * 6 * expert


def test_a_mixture_with_dense_layers_between() -> None:
    moe = {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 1,
        "moe_intermediate_size": 64, "num_hidden_layers": 6, "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }  # fmt: skip
    assert geometry_from_config({**LLAMA, **moe}, "m", "", "m").moe_layers == 2


def test_a_dense_latent_model_without_a_query_rank() -> None:
    config = {
        **LLAMA, "model_type": "deepseek_v2", "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    }  # fmt: skip
    geometry = geometry_from_config(config, "m", "", "m")
    assert geometry.kind == "mla"
    assert geometry.kv_bytes_per_token == 2 * (512 + 64) * 2
    assert geometry.moe_layers == 0


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "itemsize"),
    [("bfloat16", "bf16", 2), ("float16", "fp16", 2), ("float32", "fp32", 4)],
)
def test_element_types(dtype: str, kv_dtype: str, itemsize: int) -> None:
    for key in ("torch_dtype", "dtype"):
        geometry = geometry_from_config({**LLAMA, key: dtype}, "m", "", "m")
        assert (geometry.kv_dtype, geometry.kv_itemsize) == (kv_dtype, itemsize)
        assert geometry.weight_bytes == itemsize * geometry.parameter_count


def test_weights_of_four_bits() -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}}
    geometry = geometry_from_config(config, "m", "", "m")
    kept = 2 * 1000 * 1024 + 5 * 1024
    assert geometry.weight_bytes == 2 * kept + (geometry.parameter_count - kept) // 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2': understood are llama"),
        ({"model_type": "gpt2"}, "can be read with model_type llama"),
        ({"model_type": "qwen3", "num_experts": 128}, "num_experts is 128: model_type qwen3 has"),
        ({"num_local_experts": 8}, "understood with mixtral"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is 512: model_type llama has none of it"),
        ({"n_routed_experts": 64}, "n_routed_experts is 64: model_type llama"),
        ({"num_experts": "many"}, "num_experts is 'many': model_type llama"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two': it must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0: it must be a whole number, 1 or more"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 10.5}, "vocab_size is 10.5"),
        ({"num_attention_heads": 7}, "num_attention_heads, 7, does not divide it"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3: it must divide"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes': it must be true or false"),
        ({"torch_dtype": "int8"}, "torch_dtype is 'int8': understood are bfloat16"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"quantization_config": {"quant_method": "odd"}}, "quantization_config: quant_method is"),
        ({"quantization_config": 3}, "quantization_config: not a table"),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank is missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok is 3: it must be at most num_local_experts, 2",
        ),
        (
            {"model_type": "qwen3_moe", "mlp_only_layers": "none"},
            "mlp_only_layers is 'none': it must be a list",
        ),
    ],
)
def test_a_bad_configuration_names_the_key(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    file = write(tmp_path, {**LLAMA, **changes})
    with pytest.raises(InputError) as caught:
        load_geometry(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)


def test_a_window_that_is_switched_off_does_not_matter() -> None:
    config = {**LLAMA, "sliding_window": 4096, "use_sliding_window": False}
    assert geometry_from_config(config, "m", "", "m").layers == 2


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json: not valid JSON"):
        load_geometry(file)
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="not a table"):
        load_geometry(file)
    file.unlink()
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        load_geometry(tmp_path)


def test_every_family_is_named_once() -> None:
    assert len(set(FAMILIES)) == len(FAMILIES)

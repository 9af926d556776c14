"""DeepSeek-V3.2: V3 whose latent attention reads the keys that an indexer chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from archc.checkpoint.common import rope, stated_types
from archc.checkpoint.config import Config
from archc.checkpoint.rules import LeftOut, Rule, both, rule
from archc.graph.graph import Graph
from archc_plugins.checkpoint.deepseek import DeepseekV3, latent_attention
from archc_plugins.checkpoint.mixtures import layers_from

_INDEXER = "model.layers.{i}.self_attn.indexer"
INDEXER: tuple[Rule, ...] = (
    *(
        rule(f"{_INDEXER}.{name}.weight", f"layers.{{i}}.mixer.indexer.{name}.weight")
        for name in ("wq_b", "wk", "weights_proj")
    ),
    *both(f"{_INDEXER}.k_norm", "layers.{i}.mixer.indexer.k_norm"),
)


class DeepseekV32(DeepseekV3):
    """DeepseekV32ForCausalLM. Layers that predict further tokens are no part of the class; published files state one."""

    model_class: ClassVar[str] = "DeepseekV32ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        **{key: value for key, value in DeepseekV3.defaults.items() if key != "rope_interleave"},
        "max_position_embeddings": 163840,
        "num_nextn_predict_layers": 0,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "mlp_layer_types": None,
        "layer_types": None,
    }
    mixer: ClassVar[str] = "dsa"

    def attention(self, config: Config) -> dict[str, Any]:
        stated_types(config, config.take("num_hidden_layers"), "indexed_attention")
        found = {**latent_attention(config), "kind": "sparse_mla"}
        if "q_lora_rank" not in found:
            config.refuse("q_lora_rank", "is null; the indexer reads the compressed query")
        names = {"num_heads": "index_n_heads", "head_dim": "index_head_dim", "topk": "index_topk"}
        return found | {"indexer": {ours: config.take(theirs) for ours, theirs in names.items()}}

    def schedule(self, config: Config, layers: int) -> list[str]:
        types = stated_types(config, layers, "dense", "sparse", key="mlp_layer_types")
        if types is None:
            return super().schedule(config, layers)
        config.ignore("first_k_dense_replace", why="mlp_layer_types says it")
        return ["dense" if kind == "dense" else "moe" for kind in types]

    def position(self, config: Config, length: int) -> dict[str, Any]:
        config.expect("rope_interleave", True, why="asks for halves, and this family turns pairs side by side")
        return rope(config, head_dim=0, length=length, interleaved=True)

    def router(self, config: Config) -> dict[str, Any]:
        config.ignore("mlp_bias", why="this family's feed-forwards have no biases, whatever is said here")
        return super().router(config)

    def left_out(self, config: Mapping[str, Any]) -> Sequence[LeftOut]:
        stated = {**self.defaults, **config}
        return layers_from(stated["num_hidden_layers"], stated["num_nextn_predict_layers"] or 1)

    def rules(self, graph: Graph, config: Mapping[str, Any]) -> Sequence[Rule]:
        return (*INDEXER, *super().rules(graph, config))

    def other_layouts(self, graph: Graph, config: Mapping[str, Any]) -> Mapping[str, Sequence[Rule]]:
        return {name: (*INDEXER, *rules) for name, rules in super().other_layouts(graph, config).items()}

"""Names and shapes of the tensors in a GGUF file and in a Hugging Face checkpoint.

Tensors are given as: name within the block -> Hugging Face's name within the layer, and the shape
in letters: `V` vocabulary, `C` width, `F` feed-forward width, `Q` and `K` all query and key/value
heads (H · D and K · D), `D` head width, `E` experts, `X` an expert's width. A name with {e} is one
of the E experts, which a GGUF file holds in one tensor.
"""

from collections.abc import Mapping

Block = Mapping[str, tuple[str, str]]

TOP: Block = {
    "token_embd.weight": ("model.embed_tokens.weight", "V C"),
    "output_norm.weight": ("model.norm.weight", "C"),
}
HEAD: Block = {"output.weight": ("lm_head.weight", "V C")}

ATTENTION: Block = {
    "attn_q.weight": ("self_attn.q_proj.weight", "Q C"),
    "attn_k.weight": ("self_attn.k_proj.weight", "K C"),
    "attn_v.weight": ("self_attn.v_proj.weight", "K C"),
    "attn_output.weight": ("self_attn.o_proj.weight", "C Q"),
}
QKV_BIAS: Block = {
    "attn_q.bias": ("self_attn.q_proj.bias", "Q"),
    "attn_k.bias": ("self_attn.k_proj.bias", "K"),
    "attn_v.bias": ("self_attn.v_proj.bias", "K"),
}
QK_NORMS: Block = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "D"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "D"),
}
MLP: Block = {
    "ffn_gate.weight": ("mlp.gate_proj.weight", "F C"),
    "ffn_up.weight": ("mlp.up_proj.weight", "F C"),
    "ffn_down.weight": ("mlp.down_proj.weight", "C F"),
}
ATTN_NORM: Block = {"attn_norm.weight": ("input_layernorm.weight", "C")}
FFN_NORM: Block = {"ffn_norm.weight": ("post_attention_layernorm.weight", "C")}
POST_NORMS: Block = {
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "C"),
    "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", "C"),
}
ATTENTION_BIAS: Block = {**QKV_BIAS, "attn_output.bias": ("self_attn.o_proj.bias", "C")}
MLP_BIAS: Block = {
    "ffn_gate.bias": ("mlp.gate_proj.bias", "F"),
    "ffn_up.bias": ("mlp.up_proj.bias", "F"),
    "ffn_down.bias": ("mlp.down_proj.bias", "C"),
}


def experts(module: str, gate: str, up: str, down: str, width: str) -> Block:
    """The router and the experts of a layer; `width`, the letter of an expert's width."""
    return {
        "ffn_gate_inp.weight": (f"{module}.gate.weight", "E C"),
        "ffn_gate_exps.weight": (f"{module}.experts.{{e}}.{gate}.weight", f"E {width} C"),
        "ffn_up_exps.weight": (f"{module}.experts.{{e}}.{up}.weight", f"E {width} C"),
        "ffn_down_exps.weight": (f"{module}.experts.{{e}}.{down}.weight", f"E C {width}"),
    }

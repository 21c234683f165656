#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a random model of any family for make_models.py: sizes, and the options that the family has in transformers and in
Hocket."""
GATED = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh")
ACTIVATIONS = (*GATED, "relu")  # of MLPs without a gate
LONGEST = 33  # of the lists of tokens that make_models.py runs


def draw_rope(draw, family):
    """rope_parameters of one kind."""
    theta = draw.choice((500.0, 7777.0, 10000.0, 1000000.0))
    original = draw.choice((4, 16, 40))
    kinds = {
        "default": {},
        "linear": {"factor": draw.choice((1.0, 2.5, 8.0))},
        "dynamic": {"factor": draw.choice((1.0, 2.0, 4.0))},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": draw.choice((2.0, 4.0)),
                   "original_max_position_embeddings": original},
        "yarn": {"factor": draw.choice((1.5, 4.0, 16.0)), "original_max_position_embeddings": original,
                 **draw.choice(({}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"attention_factor": 1.1},
                                {"mscale": 0.7, "mscale_all_dim": 1.3}, {"truncate": False}))},
    }
    kind = "default" if family == "phi3" else draw.choice(("default", "default", *kinds))
    return {"rope_type": kind, "rope_theta": theta, **kinds[kind]}


def draw_experts(draw, kwargs, name):
    kwargs[name] = draw.randint(2, 9)
    kwargs["num_experts_per_tok"] = draw.randint(2, min(4, kwargs[name]))


def draw_model(draw, families):
    """(family, arguments of its config, extra) as in make_models.MODELS."""
    family = draw.choice(families)
    layers, heads = draw.randint(1, 6), draw.randint(1, 8)
    kv_heads = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
    head_dim = 2 * draw.randint(2, 10)
    flag = lambda: draw.random() < 0.5  # noqa: E731
    window = draw.choice((2, 5, 9, 40))
    extra = {"weights": 0.8} if flag() else {}
    if flag():
        extra["shards"] = "20KB"
    if family == "gpt2":
        kwargs = dict(vocab_size=draw.randint(40, 140), n_embd=heads * draw.randint(2, 11), n_layer=layers, n_head=heads,
                      n_positions=draw.randint(LONGEST, 64), n_inner=draw.choice((None, draw.randint(9, 90))),
                      activation_function=draw.choice(ACTIVATIONS), scale_attn_weights=flag(),
                      reorder_and_upcast_attn=flag(), layer_norm_epsilon=draw.choice((1e-5, 1e-3)))
        return family, kwargs, extra
    kwargs = dict(vocab_size=draw.randint(40, 140), intermediate_size=draw.randint(9, 90), num_hidden_layers=layers,
                  num_attention_heads=heads, tie_word_embeddings=flag(),
                  max_position_embeddings=draw.choice((40, 64, 200)), hidden_act=draw.choice(ACTIVATIONS if family == "gpt_neox" else ("silu", *GATED)))
    if family in ("mixtral", "qwen3_moe", "olmoe"):
        kwargs["hidden_act"] = "silu"  # experts have no other
    kwargs["layer_norm_eps" if family == "gpt_neox" else "rms_norm_eps"] = draw.choice((1e-6, 1e-5, 1e-3))
    # Families that read head_dim have heads of any width.
    if family in ("llama", "mistral", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "mixtral", "parallel_llama"):
        kwargs.update(head_dim=head_dim, hidden_size=heads * draw.randint(-(-9 // heads), 60 // heads))
    else:
        kwargs["hidden_size"] = heads * head_dim
    if family != "gpt_neox":
        kwargs["num_key_value_heads"] = kv_heads
    if family in ("gemma2", "gemma3_text"):
        kwargs["hidden_activation"] = kwargs.pop("hidden_act")
        kwargs.update(query_pre_attn_scalar=draw.randint(4, 40), sliding_window=window,
                      final_logit_softcapping=draw.choice((None, 5.0, 30.0)))
        if flag():
            kwargs["layer_types"] = [draw.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    rope = draw_rope(draw, family)
    if family == "gemma2":
        kwargs["attn_logit_softcapping"] = draw.choice((None, 2.0, 50.0))
    if family == "gemma3_text":
        rope = {"full_attention": rope, "sliding_attention": draw_rope(draw, family)}
    if family in ("phi3", "gpt_neox"):
        share = draw.choice((1.0, 0.5)) if head_dim % 4 == 0 else 1.0
        if family == "phi3" and flag():
            turning = int(head_dim * share) // 2
            original = draw.choice((4, 40))
            kwargs["original_max_position_embeddings"] = original
            rope = {"rope_type": "longrope", "rope_theta": rope["rope_theta"],
                    "short_factor": [1 + draw.random() for _ in range(turning)],
                    "long_factor": [1 + 3 * draw.random() for _ in range(turning)],
                    "original_max_position_embeddings": original}
            extra["weights"] = 0.6
        rope["partial_rotary_factor"] = share
    kwargs["rope_parameters"] = rope
    if family in ("llama", "qwen3", "qwen3_moe", "olmo2", "olmoe", "smollm3", "granite", "gpt_neox"):
        kwargs["attention_bias"] = flag()
    if family in ("llama", "smollm3", "granite"):
        kwargs["mlp_bias"] = flag()
    if family in ("mistral", "mixtral", "phi3"):
        kwargs["sliding_window"] = draw.choice((None, window))
    if family in ("qwen2", "qwen3") and flag():
        kwargs.update(use_sliding_window=True, sliding_window=window, max_window_layers=draw.randint(0, layers))
    if family == "qwen3_moe":
        draw_experts(draw, kwargs, "num_experts")
        kwargs.update(moe_intermediate_size=draw.randint(5, 30), norm_topk_prob=flag(),
                      decoder_sparse_step=draw.choice((1, 1, 2)),
                      mlp_only_layers=[i for i in range(layers) if draw.random() < 0.3])
        if flag():
            kwargs.update(use_sliding_window=True, sliding_window=window)
    if family == "olmoe":
        draw_experts(draw, kwargs, "num_experts")
        kwargs["norm_topk_prob"] = flag()
    if family == "mixtral":
        draw_experts(draw, kwargs, "num_local_experts")
    if family == "smollm3":
        kwargs.update(draw.choice(({"no_rope_layers": [draw.randint(0, 1) for _ in range(layers)]},
                                   {"no_rope_layer_interval": draw.randint(1, 4)})))
        if flag():
            kwargs.update(use_sliding_window=True, sliding_window=window)
    if family == "granite":
        kwargs.update(embedding_multiplier=draw.choice((1.0, 3.0)), attention_multiplier=draw.choice((0.1, 0.4)),
                      residual_multiplier=draw.choice((0.3, 1.0)), logits_scaling=draw.choice((1.0, 5.0)))
    if family == "gpt_neox":
        kwargs["use_parallel_residual"] = flag()
    return family, kwargs, extra

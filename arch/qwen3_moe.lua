-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3-MoE: grouped-query attention with a norm on each head of q and k, softmax-routed experts without a shared one.
return {
  arch = { "Qwen3MoeForCausalLM" },
  model_type = { "qwen3_moe" },
  output = { talk.formats.qwen3_coder, talk.formats.hermes, talk.formats.think },
  build = function(c)
    local H, nq = c:count "hidden_size", c:count "num_attention_heads"
    local nkv, eps = c:count("num_key_value_heads", nq), c:num "rms_norm_eps"
    local hd = c:count("head_dim", H // nq)
    local fn, bias = c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    local inter, n = c:count "intermediate_size", c:count "num_hidden_layers"
    local E, k, I = c:count "num_experts", c:count "num_experts_per_tok", c:count "moe_intermediate_size"
    local step = c:count("decoder_sparse_step", 1)
    local dense = {}
    for _, i in ipairs(c:list("mlp_only_layers", nil, {})) do dense[i] = true end
    c:opt "router_aux_loss_coef"
    c:opt "output_router_logits"
    local window, from = c:opt "sliding_window", c:int("max_window_layers", 0)
    if not c:flag("use_sliding_window", false) then window = nil end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count "max_position_embeddings")

    local function self_attn(x, i)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = bias }
      local key = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      q, key = rms_norm { q, "q_norm", dim = hd, eps = eps }, rms_norm { key, "k_norm", dim = hd, eps = eps }
      q, key = apply_rope { q, "q_rope", pos = pos }, apply_rope { key, "k_rope", pos = pos }
      local o = attention { q = q, k = key, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5, window = i >= from and window or nil }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function mlp(x)
      local g = linear { x, "gate_proj", out = inter, part = col }
      local u = linear { x, "up_proj", out = inter, part = col }
      return linear { glu { g, u, fn = fn }, "down_proj", out = H, part = row }
    end

    local function sparse(x)
      return moe { x, n = E, k = k, inter = I, gate = "gate", score = "softmax", renormalize = c:flag("norm_topk_prob", false), fn = fn,
        experts = { { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" },
          { packed = "experts", gate_up = "gate_up_proj", down = "down_proj" } } }
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = n, at = "model.layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h, i) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return (dense[i] or (i + 1) % step ~= 0) and mlp(h) or sparse(h) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

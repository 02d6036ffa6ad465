-- SPDX-License-Identifier: Apache-2.0
--
-- Mixtral: Mistral's block with a sparse MLP. Each token goes through two of the experts; their weights are the softmax over all
-- experts, divided by the sum of the chosen ones.
return {
  arch = { "MixtralForCausalLM" },
  model_type = { "mixtral" },
  build = function(c)
    local H, nq, eps = c:count "hidden_size", c:count "num_attention_heads", c:num "rms_norm_eps"
    local nkv = c:count("num_key_value_heads", nq)
    local hd = c:count("head_dim", 0)
    if hd == 0 then
      if H % nq ~= 0 then unsupported("num_attention_heads", nq .. " does not divide hidden_size " .. H) end
      hd = H // nq
    end
    local attention_bias = c:flag("attention_bias", false)
    if c:flag("mlp_bias", false) then unsupported("mlp_bias", "experts of this family have no bias") end
    local window = c:count("sliding_window", 0)
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count "max_position_embeddings")
    for _, key in ipairs { "output_router_logits", "router_aux_loss_coef", "router_jitter_noise" } do c:opt(key) end -- training only

    local function self_attn(x)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = attention_bias }
      local k = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = attention_bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = attention_bias }
      q, k = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { k, "k_rope", pos = pos, dim = hd }
      local o = attention { q = q, k = k, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5, window = window > 0 and window or nil }
      return linear { o, "o_proj", out = H, part = row, bias = attention_bias }
    end

    local function sparse(x)
      return moe { x, n = c:count "num_local_experts", k = c:count "num_experts_per_tok", inter = c:count "intermediate_size",
        gate = "gate", score = "softmax", renormalize = true, fn = c:text("hidden_act", "silu"),
        experts = { at = "experts.%d", gate = "w1", up = "w3", down = "w2" } }
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = c:count "num_hidden_layers", at = "model.layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("block_sparse_moe", function() return sparse(h) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

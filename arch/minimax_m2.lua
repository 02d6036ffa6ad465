-- SPDX-License-Identifier: Apache-2.0
--
-- MiniMax-M2: full attention whose queries and keys are normed as whole vectors, not head by head, half of each head rotated;
-- experts chosen by sigmoid plus a bias that steers the choice only.
return {
  arch = { "MiniMaxM2ForCausalLM" },
  model_type = { "minimax_m2" },
  build = function(c)
    local H, hd, eps = c:count "hidden_size", c:count "head_dim", c:num "rms_norm_eps"
    local nq, nkv = c:count "num_attention_heads", c:count "num_key_value_heads"
    local normed = c:flag("use_qk_norm", true)
    if normed and c:text("qk_norm_type", "per_layer") ~= "per_layer" then unsupported("qk_norm_type", c.qk_norm_type .. ": only per_layer is") end
    if c:int("shared_intermediate_size", 0) ~= 0 then unsupported("shared_intermediate_size", "this family has no shared expert") end
    local r = rope_config(c)
    local rotated = c:count("rotary_dim", math.tointeger(hd * r.partial) or hd)
    local pos = rope { r, dim = rotated }
    context(c:count "max_position_embeddings")
    local bias = c:flag("use_routing_bias", true)
    -- drafting modules: their weights are not published
    for _, key in ipairs { "use_mtp", "num_mtp_modules", "mtp_transformer_layers" } do c:opt(key) end
    for _, key in ipairs { "output_router_logits", "router_aux_loss_coef", "router_jitter_noise" } do c:opt(key) end -- training only

    local function self_attn(x)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq) }
      local k = linear { x, "k_proj", out = nkv * hd, part = heads(nkv) }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv) }
      if normed then
        q = rms_norm { q, "q_norm", eps = eps, part = heads(nq) }
        k = rms_norm { k, "k_norm", eps = eps, part = heads(nkv) }
      end
      q, k = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { k, "k_rope", pos = pos, dim = hd }
      local o = attention { q = q, k = k, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5 }
      return linear { o, "o_proj", out = H, part = row }
    end

    local function sparse(x)
      return moe { x, n = c:count "num_local_experts", k = c:count "num_experts_per_tok", inter = c:count "intermediate_size",
        gate = "gate", bias = bias and "e_score_correction_bias" or nil, bias_dtype = "F32", score = c:text("scoring_func", "sigmoid"),
        renormalize = true, fn = c:text("hidden_act", "silu"), experts = { at = "experts.%d", gate = "w1", up = "w3", down = "w2" } }
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

-- SPDX-License-Identifier: Apache-2.0
--
-- Gemma-2: every second layer has a window, the first one too; scores and logits are capped; norms before and behind every branch, all
-- stored minus one; embeddings scaled by the root of their width.
return {
  arch = { "Gemma2ForCausalLM" },
  model_type = { "gemma2" },
  build = function(c)
    local H, n = c:count "hidden_size", c:count "num_attention_heads"
    local kv, hd = c:count "num_key_value_heads", c:count "head_dim"
    local L, eps, I = c:count "num_hidden_layers", c:num "rms_norm_eps", c:count "intermediate_size"
    local fn, bias = c:text("hidden_activation", "gelu_pytorch_tanh"), c:flag("attention_bias", false)
    local window, scaled = c:count("sliding_window", 4096), c:num("query_pre_attn_scalar", 256.0) ^ -0.5
    local function cap_of(key, default) -- null: none
      local cap = c:num(key, c:states(key) and 0.0 or default)
      return cap > 0 and cap or nil
    end
    local softcap, cap = cap_of("attn_logit_softcapping", 50.0), cap_of("final_logit_softcapping", 30.0)
    if c:flag("use_bidirectional_attention", false) then unsupported("use_bidirectional_attention", "is true") end
    for _, key in ipairs { "hidden_act", "sliding_window_size", "cache_implementation" } do c:opt(key) end -- nobody follows them
    context(c:count("max_position_embeddings", 8192))
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    local types = c:list("layer_types", L, {})
    local function is_full(i)
      if types[i + 1] then return types[i + 1] == "full_attention" end
      return i % 2 == 1
    end

    local function norm(x, name) return rms_norm { x, name, eps = eps, plus_one = true } end

    local vocab = c:count "vocab_size"
    local x = embed_by_root(c, { "model.embed_tokens", vocab = vocab, dim = H })
    x = layers { x, n = L, at = "model.layers.%d", each = function(x, i)
      local h = norm(x, "input_layernorm")
      h = scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, scale = scaled,
          window = not is_full(i) and window or nil, softcap = softcap }
      end)
      x = x + norm(h, "post_attention_layernorm")
      h = norm(x, "pre_feedforward_layernorm")
      h = scope("mlp", function() return gated_mlp { h, inter = I, fn = fn } end)
      return x + norm(h, "post_feedforward_layernorm")
    end }
    x = norm(wanted_rows(x), "model.norm")
    return logits { x, "lm_head", vocab = vocab, tied = tied_head { c, c, "lm_head", default = true }, softcap = cap }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen2 and Qwen2.5: pre-norm blocks of grouped-query attention with biases on q, k and v, and a gated MLP.
return {
  arch = "Qwen2ForCausalLM",
  model_type = "qwen2",
  output = { talk.formats.deepseek_v3, talk.formats.hermes, talk.formats.think }, -- DeepSeek distilled R1 into this family too
  build = function(c)
    local H, n = c:count "hidden_size", c:count "num_attention_heads"
    local kv, eps, L = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count "num_hidden_layers"
    local hd = c:count("head_dim", 0)
    if hd == 0 then hd = H // n end
    if c:flag("use_mrope", false) then unsupported("use_mrope", "is true in a text model") end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count "max_position_embeddings")

    -- A window only where the config turns it on, and then only from layer max_window_layers on.
    local window, first = c:count("sliding_window", 4096), c:int("max_window_layers", L)
    local types = c:list("layer_types", L, {})
    local on = c:flag("use_sliding_window", false)
    local function window_of(i)
      if types[i + 1] then return types[i + 1] == "sliding_attention" and window or nil end
      return on and i >= first and window or nil
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = L, at = "model.layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = true, window = window_of(i) }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return gated_mlp { h, inter = c:count "intermediate_size", fn = c:text("hidden_act", "silu") } end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3: as Qwen2, without biases, and with a norm over every head of q and k before the rotation.
return {
  arch = "Qwen3ForCausalLM",
  model_type = "qwen3",
  output = { talk.formats.qwen3_coder, talk.formats.hermes, talk.formats.think },
  build = function(c)
    local H, n = c:count "hidden_size", c:count "num_attention_heads"
    local kv, eps, L = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count "num_hidden_layers"
    local hd, bias = c:count("head_dim", 128), c:flag("attention_bias", false)
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count "max_position_embeddings")

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
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, qk_norm = eps, window = window_of(i) }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return gated_mlp { h, inter = c:count "intermediate_size", fn = c:text("hidden_act", "silu") } end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

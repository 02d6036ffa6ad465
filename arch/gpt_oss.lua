-- SPDX-License-Identifier: Apache-2.0
--
-- gpt-oss: biases everywhere, one learned sink per head, windows on every second layer, and experts stored as one fused tensor in
-- which gate and up alternate. The router chooses by its logits; the weights are the softmax over the chosen ones.
return {
  arch = { "GptOssForCausalLM" },
  model_type = { "gpt_oss" },
  build = function(c)
    local H, hd, eps = c:count "hidden_size", c:count "head_dim", c:num "rms_norm_eps"
    local nq, nkv, n = c:count "num_attention_heads", c:count "num_key_value_heads", c:count "num_hidden_layers"
    local bias, window, limit = c:flag("attention_bias", true), c:count "sliding_window", c:num("swiglu_limit", 7.0)
    local k = c:count "num_experts_per_tok"
    if c:count("experts_per_token", k) ~= k then unsupported("experts_per_token", "differs from num_experts_per_tok") end
    if c:text("hidden_act", "silu") ~= "silu" then unsupported("hidden_act", c.hidden_act .. ": the gate of this family is its own") end
    local pos = rope { rope_config(c), dim = hd }                  -- yarn with truncate = false: the ramp ends between two angles
    context(c:count "max_position_embeddings")
    c:opt "initial_context_length"                                 -- same as the scaling's original_max_position_embeddings
    for _, key in ipairs { "output_router_logits", "router_aux_loss_coef" } do c:opt(key) end -- training only

    local kinds = c:list("layer_types", n, {})
    local function is_local(i)
      local kind = kinds[i + 1]
      if kind == nil then return i % 2 == 0 end
      if kind ~= "sliding_attention" and kind ~= "full_attention" then unsupported("layer_types", tostring(kind) .. " is not implemented") end
      return kind == "sliding_attention"
    end

    local function self_attn(x, i)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = bias }
      local key = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      q, key = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { key, "k_rope", pos = pos, dim = hd }
      local o = attention { q = q, k = key, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5,
        window = is_local(i) and window or nil, sinks = "sinks" }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function sparse(x)
      return moe { x, n = c:count "num_local_experts", k = k, inter = c:count "intermediate_size", gate = "router", gate_bias = true,
        score = "logits", fn = "swigluoai", p = { alpha = 1.702, limit = limit },
        experts = { packed = "experts", gate_up = "gate_up_proj", down = "down_proj", transposed = true, interleaved = true, bias = true } }
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = n, at = "model.layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h, i) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return sparse(h) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

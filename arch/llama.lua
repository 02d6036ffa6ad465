-- SPDX-License-Identifier: Apache-2.0
--
-- Llama 1 to 3 and Mistral: pre-norm blocks of grouped-query attention and a gated MLP.
return {
  arch = { "LlamaForCausalLM", "MistralForCausalLM" },
  model_type = { "llama", "mistral" },
  output = { talk.formats.deepseek_v3, talk.formats.hermes, talk.formats.llama3, talk.formats.think },
  build = function(c, architecture)
    local H, I, nq = c:count "hidden_size", c:count "intermediate_size", c:count "num_attention_heads"
    local nkv, eps = c:count("num_key_value_heads", nq), c:num "rms_norm_eps"
    local hd = c:count("head_dim", 0)
    if hd == 0 then
      if H % nq ~= 0 then unsupported("num_attention_heads", nq .. " does not divide hidden_size " .. H) end
      hd = H // nq
    end
    local fn = c:text("hidden_act", "silu")
    local attention_bias, mlp_bias = c:flag("attention_bias", false), c:flag("mlp_bias", false)
    local window
    if architecture == "MistralForCausalLM" then
      window = c:count("sliding_window", 0)
      if window == 0 then window = nil end
    end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { dim = hd, theta = r.theta, scaling = r.scaling }
    context(c:count "max_position_embeddings")

    local function self_attn(x)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = attention_bias }
      local k = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = attention_bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = attention_bias }
      q, k = apply_rope { q, "q_rope", pos = pos }, apply_rope { k, "k_rope", pos = pos }
      local o = attention { q = q, k = k, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5, window = window }
      return linear { o, "o_proj", out = H, part = row, bias = attention_bias }
    end

    local function mlp(x)
      local g = linear { x, "gate_proj", out = I, part = col, bias = mlp_bias }
      local u = linear { x, "up_proj", out = I, part = col, bias = mlp_bias }
      return linear { glu { g, u, fn = fn }, "down_proj", out = H, part = row, bias = mlp_bias }
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = c:count "num_hidden_layers", at = "model.layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return mlp(h) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- Llama-4, text alone: layers with rotation see their own chunk of positions only, every fourth layer has neither rotation nor chunks but
-- queries that grow with the position; experts take their input times the router's weight, and one more expert takes every token.
return {
  arch = { "Llama4ForCausalLM" },
  model_type = { "llama4_text" },
  build = function(c)
    local H, nq, eps = c:count "hidden_size", c:count "num_attention_heads", c:num("rms_norm_eps", 1e-5)
    local nkv, hd, L = c:count("num_key_value_heads", nq), c:count("head_dim", 128), c:count "num_hidden_layers"
    local I, wide, fn = c:count "intermediate_size", c:count "intermediate_size_mlp", c:text("hidden_act", "silu")
    local E, k = c:count "num_local_experts", c:count("num_experts_per_tok", 1)
    local bias, normed = c:flag("attention_bias", false), c:flag("use_qk_norm", true)
    local chunk, tuned = c:count("attention_chunk_size", 8192), c:flag("attn_temperature_tuning", true)
    local floor, beta = c:count("floor_scale", 8192), c:num("attn_scale", 0.1)
    for _, key in ipairs { "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "for_llm_compressor" } do c:opt(key) end
    context(c:count("max_position_embeddings", 131072))
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd, style = "pairs" }

    -- 1: the layer rotates. An empty list is what the default makes of it.
    local rotates = c:list("no_rope_layers", nil, {})
    local every = c:count("no_rope_layer_interval", 4)
    if #rotates > 0 and #rotates < L then unsupported("no_rope_layers", "has " .. #rotates .. " entries for " .. L .. " layers") end
    local function is_rotated(i)
      if #rotates > 0 then return rotates[i + 1] ~= 0 end
      return (i + 1) % every ~= 0
    end
    local types = c:list("layer_types", L, {})
    local function is_chunked(i)
      if types[i + 1] then return types[i + 1] == "chunked_attention" end
      return is_rotated(i)
    end
    local sparse, step = c:opt "moe_layers", c:count("interleave_moe_layer_step", 1)
    local function is_sparse(i)
      if sparse == nil then return (i + 1) % step == 0 end
      for _, x in ipairs(c:list("moe_layers", nil, {})) do
        if x == i then return true end
      end
      return false
    end

    local function self_attn(x, i)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = bias }
      local key = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      if is_rotated(i) then
        q, key = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { key, "k_rope", pos = pos, dim = hd }
        if normed then                                                                     -- behind the rotation, without weights
          q = scope("q_norm", function() return rms_norm { q, nil, dim = hd, eps = eps } end)
          key = scope("k_norm", function() return rms_norm { key, nil, dim = hd, eps = eps } end)
        end
      elseif tuned then
        q = position_scale { q, length = floor, beta = beta, offset = 1 }
      end
      local o = attention { q = q, k = key, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5, chunk = is_chunked(i) and chunk or nil }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function feed_forward(x, i)
      if not is_sparse(i) then return gated_mlp { x, inter = wide, fn = fn } end
      local y = moe { x, n = E, k = k, inter = I, gate = "router", score = "sigmoid", input_weighted = true, fn = fn,
        experts = { packed = "experts", gate_up = "gate_up_proj", down = "down_proj", transposed = true } }
      return y + scope("shared_expert", function() return gated_mlp { x, inter = I, fn = fn } end)
    end

    local vocab = c:count "vocab_size"
    local x = embed { "model.embed_tokens", vocab = vocab, dim = H }
    x = layers { x, n = L, at = "model.layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h, i) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("feed_forward", function() return feed_forward(h, i) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = vocab, tied = c:flag("tie_word_embeddings", false) }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3-Next: three layers of gated delta rule, then one of gated attention; many small experts and one shared. All norms are stored
-- minus one, but for the one inside the delta rule.
return {
  arch = "Qwen3NextForCausalLM",
  model_type = "qwen3_next",
  output = { talk.formats.qwen3_coder, talk.formats.hermes, talk.formats.think },
  build = function(c)
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", 256)
    local dk, dv = c:count("linear_key_head_dim", 128), c:count("linear_value_head_dim", 128)
    local nk, nv = c:count("linear_num_key_heads", 16), c:count("linear_num_value_heads", 32)
    local width, fn, bias = c:count("linear_conv_kernel_dim", 4), c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    if nv % nk ~= 0 then unsupported("linear_num_value_heads", nv .. " is no multiple of " .. nk .. " key heads") end
    local r = rope_config(c)
    if r.partial == 1 then r.partial = c:num("partial_rotary_factor", 0.25) end
    local pos = rope { r, dim = math.tointeger(hd * r.partial // 1) }
    context(c:count "max_position_embeddings")
    for _, key in ipairs { "router_aux_loss_coef", "output_router_logits" } do c:opt(key) end
    if c:flag("use_sliding_window", false) then unsupported("use_sliding_window", "is true") end

    local types, interval = c:list("layer_types", L, {}), c:count("full_attention_interval", 4)
    local function is_full(i)
      if types[i + 1] then return types[i + 1] == "full_attention" end
      return (i + 1) % interval == 0
    end
    local dense, every = {}, c:count("decoder_sparse_step", 1)
    for _, i in ipairs(c:list("mlp_only_layers", nil, {})) do dense[i] = true end

    local function norm(x, name) return rms_norm { x, name, eps = eps, plus_one = true } end

    -- The inputs come for each key head: q, k, its value heads, their gates z; b and a likewise.
    local function linear_attn(x)
      local m = nv // nk
      local qkvz = linear { x, "in_proj_qkvz", out = 2 * nk * dk + 2 * nv * dv, part = heads(nk) }
      local ba = linear { x, "in_proj_ba", out = 2 * nv, part = heads(nk) }
      local q, k, v, z = split { qkvz, sizes = { dk, dk, m * dv, m * dv }, groups = nk }
      local b, a = split { ba, sizes = { m, m }, groups = nk }
      local sizes = { nk * dk, nk * dk, nv * dv }
      local y = short_conv { concat { q, k, v }, "conv1d", width = width, fn = "silu", part = heads(nk), pieces = sizes }
      q, k, v = split { y, sizes = sizes }
      local o = delta_rule { q = q, k = k, v = v, g = a, beta = act { b, fn = "sigmoid" }, decay = "scalar", heads = nk, v_heads = nv, dim = dk,
        v_dim = dv, l2norm = 1e-6, scale = dk ^ -0.5 }
      return linear { gated_norm { o, z, "norm", dim = dv, eps = eps, fn = "silu" }, "out_proj", out = H, part = row }
    end

    local function self_attn(x)
      return gqa { x, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, qk_norm = eps, plus_one = true, gate = true }
    end

    local function sparse(x)
      local y = moe { x, n = c:count "num_experts", k = c:count "num_experts_per_tok", inter = c:count "moe_intermediate_size", gate = "gate",
        score = "softmax", renormalize = c:flag("norm_topk_prob", true), fn = fn, experts = {
          { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" },
          { packed = "experts", gate_up = "gate_up_proj", down = "down_proj" } } }
      local s = scope("shared_expert", function() return gated_mlp { x, inter = c:count "shared_expert_intermediate_size", fn = fn } end)
      return y + s * act { linear { x, "shared_expert_gate", out = 1, quant = false }, fn = "sigmoid" }
    end

    local function block(x, full, mlp)
      local h = norm(x, "input_layernorm")
      x = x + (full and scope("self_attn", function() return self_attn(h) end) or scope("linear_attn", function() return linear_attn(h) end))
      h = norm(x, "post_attention_layernorm")
      return x + scope("mlp", function() return mlp(h) end)
    end

    local inter = c:count("intermediate_size", 5120)
    local function mlp_of(i)
      if dense[i] or (i + 1) % every ~= 0 then return function(x) return gated_mlp { x, inter = inter, fn = fn } end end
      return sparse
    end
    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = L, at = "model.layers.%d", each = function(x, i) return block(x, is_full(i), mlp_of(i)) end }
    x = norm(wanted_rows(x), "model.norm")

    -- The drafting layer, which the config does not mention: attention and experts over [norm(embedding), norm(hidden)].
    mtp(function()
      local e, h = norm(input("embedding", H), "mtp.pre_fc_norm_embedding"), norm(input("hidden", H), "mtp.pre_fc_norm_hidden")
      local y = linear { concat { e, h }, "mtp.fc", out = H }
      y = layers { y, n = 1, at = "mtp.layers.%d", each = function(y) return block(y, true, sparse) end }
      norm(y, "mtp.norm")
    end)
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

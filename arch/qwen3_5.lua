-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3.5 and its successors of that type: as Qwen3-Next, with the inputs of the delta rule in matrices of their own, interleaved image
-- positions, and the tower of Qwen3-VL. Text alone comes under the same names, or without `language_model`.
return {
  placeholders = talk.placeholders.qwen,
  arch = { "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM" },
  model_type = { "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text" },
  output = { talk.formats.qwen3_coder, talk.formats.hermes, talk.formats.think },
  build = function(top, architecture)
    local c = top:sub { "text_config" }
    local text_only = architecture == "Qwen3_5ForCausalLM" or architecture == "Qwen3_5MoeForCausalLM"
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", 256)
    local dk, dv = c:count("linear_key_head_dim", 128), c:count("linear_value_head_dim", 128)
    local nk, nv = c:count("linear_num_key_heads", 16), c:count("linear_num_value_heads", 32)
    local width, fn, bias = c:count("linear_conv_kernel_dim", 4), c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    local gated = c:flag("attn_output_gate", true)
    if nv % nk ~= 0 then unsupported("linear_num_value_heads", nv .. " is no multiple of " .. nk .. " key heads") end
    local r = rope_config(c)
    if r.partial == 1 then r.partial = c:num("partial_rotary_factor", 0.25) end
    local pos = rope { r, dim = math.tointeger(hd * r.partial // 1), sections = r.sections or { 11, 11, 10 }, interleaved = true }
    context(c:count "max_position_embeddings")
    for _, key in ipairs { "router_aux_loss_coef", "output_router_logits", "image_token_id", "video_token_id", "vision_start_token_id",
      "vision_end_token_id", "mamba_ssm_dtype" } do c:opt(key) end

    local types, interval = c:list("layer_types", L, {}), c:count("full_attention_interval", 4)
    local function is_full(i)
      if types[i + 1] then return types[i + 1] == "full_attention" end
      return (i + 1) % interval == 0
    end
    local dense = {}
    for _, i in ipairs(c:list("mlp_only_layers", nil, {})) do dense[i] = true end

    local function norm(x, name) return rms_norm { x, name, eps = eps, plus_one = true } end

    local function linear_attn(x)
      local sizes = { nk * dk, nk * dk, nv * dv }
      local qkv = linear { x, "in_proj_qkv", out = 2 * nk * dk + nv * dv, part = heads(nk), pieces = sizes }
      local z = linear { x, "in_proj_z", out = nv * dv, part = heads(nv) }
      local b, a = linear { x, "in_proj_b", out = nv, part = heads(nv) }, linear { x, "in_proj_a", out = nv, part = heads(nv) }
      local q, k, v = split { short_conv { qkv, "conv1d", width = width, fn = "silu", part = heads(nk), pieces = sizes }, sizes = sizes }
      local o = delta_rule { q = q, k = k, v = v, g = a, beta = act { b, fn = "sigmoid" }, decay = "scalar", heads = nk, v_heads = nv, dim = dk,
        v_dim = dv, l2norm = 1e-6, scale = dk ^ -0.5 }
      return linear { gated_norm { o, z, "norm", dim = dv, eps = eps, fn = "silu" }, "out_proj", out = H, part = row }
    end

    local function self_attn(x)
      return gqa { x, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, qk_norm = eps, plus_one = true, gate = gated }
    end

    local function sparse(x)
      local y = moe { x, n = c:count "num_experts", k = c:count "num_experts_per_tok", inter = c:count "moe_intermediate_size", gate = "gate",
        score = "softmax", renormalize = true, fn = fn, experts = {
          { packed = "experts", gate_up = "gate_up_proj", down = "down_proj" },
          { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" } } }
      local s = scope("shared_expert", function() return gated_mlp { x, inter = c:count "shared_expert_intermediate_size", fn = fn } end)
      return y + s * act { linear { x, "shared_expert_gate", out = 1, quant = false }, fn = "sigmoid" }
    end

    local function block(x, full, i)
      local h = norm(x, "input_layernorm")
      x = x + (full and scope("self_attn", function() return self_attn(h) end) or scope("linear_attn", function() return linear_attn(h) end))
      h = norm(x, "post_attention_layernorm")
      return x + scope("mlp", function()
        if c:opt "num_experts" and not dense[i] then return sparse(h) end
        return gated_mlp { h, inter = c:count "intermediate_size", fn = fn }
      end)
    end

    if top:opt "vision_config" then qwen3_vision(top.vision_config, "model.visual", top:opt "image_token_id") end

    local at = prefix_of(text_only and { "model." } or { "model.language_model.", "model." })
    if text_only and has "model.language_model.embed_tokens.weight" then at = "model.language_model." end
    local x = pictures(embed { at .. "embed_tokens", vocab = c:count "vocab_size", dim = H })
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x, i) return block(x, is_full(i), i) end }
    x = norm(wanted_rows(x), at .. "norm")

    local drafting = c:int("mtp_num_hidden_layers", 0)
    if drafting > 0 then
      if c:flag("mtp_use_dedicated_embeddings", false) then unsupported("mtp_use_dedicated_embeddings", "is true") end
      mtp(function()
        local e, h = norm(input("embedding", H), "mtp.pre_fc_norm_embedding"), norm(input("hidden", H), "mtp.pre_fc_norm_hidden")
        local y = linear { concat { e, h }, "mtp.fc", out = H }
        y = layers { y, n = drafting, at = "mtp.layers.%d", each = function(y) return block(y, true) end }
        norm(y, "mtp.norm")
      end)
    end
    return logits { x, "lm_head", vocab = c.vocab_size,
      tied = tied_head { top, c, "lm_head", counts = text_only and "inner" or "outer" } }
  end,
}

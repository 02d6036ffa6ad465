-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3-VL, dense and with experts: the text model of Qwen3 with interleaved image positions, and a tower whose middle layers also feed
-- the first layers of the text.
-- Qwen3-VL's tower: learned positions and a rotation; groups of merge x merge patches become one row. Called inside a tower.
local function qwen3_vision(v)
  local W, n, p, out = v:count "hidden_size", v:count "num_heads", v:count "patch_size", v:count "out_hidden_size"
  local fn, merge = v:text "hidden_act", v:count "spatial_merge_size"
  local M = W * merge * merge
  local pos = rope { dim = W // n, theta = 10000 }                                       -- half of the angles from h, half from w
  local x = conv { input "patches", "patch_embed.proj", shape = { W, v:count("in_channels", 3), v:count "temporal_patch_size", p, p }, bias = true }
  table { "pos_embed", shape = { v:count "num_position_embeddings", W } }
  local function merger(x, norm_after)
    local h = norm_after and reshape { x, dim = M } or layer_norm { x, "norm", eps = 1e-6 }
    h = norm_after and layer_norm { h, "norm", eps = 1e-6 } or reshape { h, dim = M }
    h = act { linear { h, "linear_fc1", out = M, bias = true, part = col }, fn = "gelu_erf" }
    return linear { h, "linear_fc2", out = out, bias = true, part = row }
  end
  local tap = {}
  for k, i in ipairs(v:list("deepstack_visual_indexes", nil, {})) do tap[i] = k - 1 end  -- added to the first layers of the text
  x = layers { x, n = v:count "depth", at = "blocks.%d", each = function(x)
    local qkv = linear { layer_norm { x, "norm1", eps = 1e-6 }, "attn.qkv", out = 3 * W, bias = true, part = heads(n), pieces = { W, W, W } }
    local q, k, val = split { qkv, sizes = { W, W, W } }
    q, k = apply_rope { q, pos = pos }, apply_rope { k, pos = pos }
    local o = attention { q = q, k = k, v = val, heads = n, dim = W // n, scale = (W // n) ^ -0.5 }
    x = x + linear { o, "attn.proj", out = W, bias = true, part = row }
    local h = linear { layer_norm { x, "norm2", eps = 1e-6 }, "mlp.linear_fc1", out = v:count "intermediate_size", bias = true, part = col }
    return x + linear { act { h, fn = fn }, "mlp.linear_fc2", out = W, bias = true, part = row }
  end }
  for _, k in pairs(tap) do scope("deepstack_merger_list." .. k, function() return merger(x, true) end) end
  return scope("merger", function() return merger(x, false) end)
end

return {
  arch = { "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration" },
  model_type = { "qwen3_vl", "qwen3_vl_moe" },
  build = function(top)
    local c = top:sub { "text_config" }
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", 128)
    local fn, bias = c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd, sections = r.sections or { 24, 20, 20 }, interleaved = true }
    context(c:count "max_position_embeddings")
    for _, key in ipairs { "router_aux_loss_coef", "output_router_logits", "image_token_id", "video_token_id", "vision_start_token_id",
      "vision_end_token_id" } do c:opt(key) end

    local dense, every = {}, c:count("decoder_sparse_step", 1)
    for _, i in ipairs(c:list("mlp_only_layers", nil, {})) do dense[i] = true end
    local function is_sparse(i) return c:opt "num_experts" and not dense[i] and (i + 1) % every == 0 end

    tower("vision", function() scope("model.visual", function() qwen3_vision(top.vision_config) end) end)

    -- Published with inputs before outputs in the packed matrices; one matrix an expert in releases that were quantised.
    local function sparse(x)
      return moe { x, n = c:count "num_experts", k = c:count "num_experts_per_tok", inter = c:count "moe_intermediate_size", gate = "gate",
        score = "softmax", renormalize = c:flag("norm_topk_prob", true), fn = fn, experts = {
          { packed = "experts", gate_up = "gate_up_proj", down = "down_proj", transposed = true },
          { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" } } }
    end

    local inter = c:count("intermediate_size", 1)
    local at = prefix_of { "model.language_model.", "model." }
    local x = embed { at .. "embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, qk_norm = eps }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function()
        if is_sparse(i) then return sparse(h) end
        return gated_mlp { h, inter = inter, fn = fn }
      end)
    end }
    x = rms_norm { wanted_rows(x), at .. "norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- InternVL: InternViT, whose squares of rows are joined, normed and projected by two matrices, and a Qwen2, Qwen3 or Llama. It comes in
-- the library's layout (InternVLForConditionalGeneration) and in its own (InternVLChatModel), with other names and the same model.
local texts = { qwen2 = { bias = true }, qwen3 = { norm = true }, llama = {} }

-- A number, or two equal ones.
local function side(v, key, default)
  local x = v:opt(key, default)
  if type(x) ~= "table" then return v:count(key, default) end
  if x[1] ~= x[2] then unsupported("vision_config." .. key, "is not square") end
  return math.tointeger(x[1])
end

-- from: the layer behind which rows are taken; nil: behind the last, and the last norm.
local function tower_of(v, own, depth, from)
  local W, n, p = v:count("hidden_size", own and 3200 or 1024), v:count("num_attention_heads", own and 25 or 16), side(v, "patch_size", 14)
  local I, fn, eps = v:count("intermediate_size", own and 12800 or 4096), v:text("hidden_act", "gelu"), v:num("layer_norm_eps", 1e-6)
  local qkv_bias = v:flag(own and "qkv_bias" or "attention_bias", false)
  local qk_norm = v:flag(own and "qk_normalization" or "use_qk_norm", own)
  local rms, g = v:text("norm_type", own and "rms_norm" or "layer_norm") == "rms_norm", side(v, "image_size", own and 224 or 448) // p
  if v:flag("use_mask_token", false) then unsupported("vision_config.use_mask_token", "is true") end
  for _, key in ipairs { "layer_scale_init_value", "drop_path_rate", "initializer_factor", "use_flash_attn", "hidden_dropout_prob", "dropout",
    "projection_dropout" } do v:opt(key) end
  local function norm(x, name) return (rms and rms_norm or layer_norm) { x, name, eps = eps } end
  local x = conv { input "patches", own and "embeddings.patch_embedding" or "embeddings.patch_embeddings.projection",
    shape = { W, v:count("num_channels", 3), p, p }, bias = true }
  x = learned_row { x, own and "embeddings.class_embedding" or "embeddings.cls_token", shape = { 1, 1, W }, at = "class" }
  if own or v:flag("use_absolute_position_embeddings", true) then
    x = x + table { own and "embeddings.position_embedding" or "embeddings.position_embeddings", bare = true, shape = { 1, g * g + 1, W }, taps = 16 }
  end
  local function block(x)
    local h = norm(x, own and "norm1" or "layernorm_before")
    local q, k, val
    if own then
      q, k, val = split { linear { h, "attn.qkv", out = 3 * W, bias = qkv_bias, part = heads(n), pieces = { W, W, W } }, sizes = { W, W, W } }
    else
      local function one(name) return linear { h, "attention." .. name, out = W, bias = qkv_bias, part = heads(n) } end
      q, k, val = one "q_proj", one "k_proj", one "v_proj"
    end
    local at = own and "attn." or "attention."
    if qk_norm then
      local e = own and eps or 1e-6
      q, k = rms_norm { q, at .. "q_norm", eps = e }, rms_norm { k, at .. "k_norm", eps = e }
    end
    local o = attention { q = q, k = k, v = val, heads = n, dim = W // n, scale = (W // n) ^ -0.5 }
    o = linear { o, at .. (own and "proj" or "projection_layer"), out = W, bias = true, part = row }
    x = x + scale { o, weight = param { own and "ls1" or "lambda_1", shape = { W } } }
    h = norm(x, own and "norm2" or "layernorm_after")
    h = act { linear { h, "mlp.fc1", out = I, bias = true, part = col }, fn = fn }
    h = linear { h, "mlp.fc2", out = W, bias = true, part = row }
    return x + scale { h, weight = param { own and "ls2" or "lambda_2", shape = { W } } }
  end
  local at = own and "encoder.layers.%d" or "encoder.layer.%d"
  local function norm_after(x)
    return not own and not v:flag("use_mean_pooling", true) and layer_norm { x, "layernorm", eps = eps } or x
  end
  x = layers { x, n = from or depth, at = at, each = block }
  if not from then return norm_after(x) end
  undrawn(function() norm_after(layers { x, first = from, n = depth - from, at = at, each = block }) end)
  return x
end

return {
  placeholders = { marker = "<IMG_CONTEXT>", picture = "<img>$tokens</img>" },
  arch = { "InternVLForConditionalGeneration", "InternVLChatModel" },
  model_type = { "internvl", "internvl_chat" },
  build = function(top, architecture)
    local own = architecture == "InternVLChatModel"
    local v = top.vision_config
    local kind = (own and top.llm_config or top.text_config):text("model_type", "qwen2")
    local c = top:sub { own and "llm_config" or "text_config" }
    local t = texts[kind]
    if not t then unsupported("text model", kind .. " is not described here (qwen2, qwen3 and llama are)") end
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", t.norm and 128 or H // n)
    if c:flag("use_sliding_window", false) then unsupported("use_sliding_window", "is true") end
    for _, key in ipairs { "sliding_window", "max_window_layers", "layer_types", "attn_implementation", "moe_config", "image_token_id",
      "image_seq_length", "dynamic_image_size", "force_image_size", "max_dynamic_patch", "min_dynamic_patch",
      "pad2square", "system_message", "template", "use_backbone_lora", "use_llm_lora", "use_thumbnail",
      "image_fold" } do c:opt(key) end
    if top:text("ps_version", own and "v1" or "v2") ~= "v2" then     -- absent, the own layout turns each tile over
      unsupported("ps_version", "is not v2")
    end
    local bias = t.bias or c:flag("attention_bias", false)
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count "max_position_embeddings")

    local later = not own and has "model.language_model.embed_tokens.weight"
    local at, outside = later and "model.language_model." or "language_model.model.", later and "model." or ""

    local key, m = own and "select_layer" or "vision_feature_layer", math.tointeger(1 / top:num("downsample_ratio", 0.5) // 1)
    local depth, from = v:count("num_hidden_layers", own and 48 or 24), nil
    if top:int(key, -1) ~= -1 then from = feature_layers(top, key, -1, depth)[1] end
    local how = top:text("vision_feature_select_strategy", "default")
    if how ~= "default" then unsupported("vision_feature_select_strategy", how .. ", which leaves no square of rows") end
    local p, tabled = side(v, "patch_size", 14), own or v:flag("use_absolute_position_embeddings", true)
    vision({ patch = p, channels = v:count("num_channels", 3), merge = m, raster = true, class_row = true, drop_first = true,
      table = tabled and side(v, "image_size", own and 224 or 448) // p or nil, interpolation = tabled and "bicubic" or nil,
      image_token = top:opt "image_token_id" }, function()
      local x = scope(own and "vision_model" or outside .. "vision_tower", function() return tower_of(v, own, depth, from) end)
      local at = own and "mlp1." or outside .. "multi_modal_projector."
      local fn = top:text("projector_hidden_act", "gelu")
      x = layer_norm { reshape { x, dim = x.dim * m * m }, at .. (own and "0" or "layer_norm"), eps = 1e-5 }
      x = act { linear { x, at .. (own and "1" or "linear_1"), out = H, bias = true, part = col }, fn = fn }
      return linear { x, at .. (own and "3" or "linear_2"), out = H, bias = true, part = row }
    end)

    local x = pictures(embed { at .. "embed_tokens", vocab = c:count "vocab_size", dim = H })
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = not t.bias and bias, qk_norm = t.norm and eps }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return gated_mlp { h, inter = c:count "intermediate_size", fn = c:text("hidden_act", "silu") } end)
    end }
    x = rms_norm { wanted_rows(x), at .. "norm", eps = eps }
    local head = later and "lm_head" or "language_model.lm_head"
    return logits { x, head, vocab = c.vocab_size, tied = tied_head { top, c, head, counts = own and "inner" or "outer", default = not own } }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- LLaVA and its relatives: a tower (CLIP, SigLIP or Pixtral's), a projector of two matrices, and a Llama, Mistral or Qwen2. Which they are
-- stands in vision_config.model_type and text_config.model_type; config.json may leave out what is the default of those types.
local texts = {
  llama = { inter = 11008, positions = 2048 },
  mistral = { inter = 14336, kv = 8, positions = 131072 },
  qwen2 = { inter = 22016, kv = 32, positions = 32768, bias = true },
}
local towers = {
  clip_vision_model = { at = "vision_model", fn = "quick_gelu", eps = 1e-5, cls = true },
  siglip_vision_model = { at = "vision_model", fn = "gelu_pytorch_tanh", eps = 1e-6 },
  pixtral = {},
}

-- Pixtral: blocks as in the text, no biases, a rotation by row and column, and every image attends to itself alone. Gives what the layers
-- of the list `from` gave (feature_layers), joined.
local function pixtral_tower(v, from)
  local W, n, p = v:count("hidden_size", 1024), v:count("num_attention_heads", 16), v:count("patch_size", 16)
  local I, fn, hd = v:count("intermediate_size", 4096), v:text("hidden_act", "gelu"), v:count("head_dim", W // n)
  v:opt "image_size"
  local depth, last, kept, given = v:count("num_hidden_layers", 24), 0, {}, {}
  local pos = rope { dim = hd, theta = rope_config(v).theta, plane = "split" }
  local x = conv { input "patches", "patch_conv", shape = { W, v:count("num_channels", 3), p, p } }
  x = rms_norm { x, "ln_pre", eps = 1e-5 }
  local function block(x, i)
    local h = rms_norm { x, "attention_norm", eps = 1e-5 }
    x = x + scope("attention", function() return gqa { h, heads = n, kv_heads = n, dim = hd, pos = pos } end)
    h = rms_norm { x, "ffn_norm", eps = 1e-5 }
    kept[i + 1] = x + scope("feed_forward", function() return gated_mlp { h, inter = I, fn = fn } end)
    return kept[i + 1]
  end
  kept[0] = x
  for _, i in ipairs(from) do last = math.max(last, i) end
  x = layers { x, n = last, at = "transformer.layers.%d", each = block }
  for k, i in ipairs(from) do given[k] = kept[i] end
  undrawn(function() layers { x, first = last, n = depth - last, at = "transformer.layers.%d", each = block } end)
  return #given == 1 and given[1] or concat(given)
end

-- Mistral-3: squares of m x m rows become one, the m x m values of each channel behind each other, and a product makes a row of it.
local function merge_patches(x, m)
  if m * m > 8 then unsupported("spatial_merge_size", m .. " x " .. m .. " rows: at most 8 become one") end
  local W, sizes = x.dim, {}
  for k = 1, m * m do sizes[k] = W end
  local parts = { split { reshape { x, dim = W * m * m }, sizes = sizes } }
  parts.groups = W
  return linear { #parts > 1 and concat(parts) or parts[1], "patch_merger.merging_layer", out = W }
end

-- Pixtral's tower and the projector behind it.
local function pixtral(top, v, at, H, eps, mistral3)
  local from = feature_layers(top, "vision_feature_layer", mistral3 and -1 or -2, v:count("num_hidden_layers", 24))
  local m = mistral3 and top:count("spatial_merge_size", 2) or 1
  if mistral3 and #from ~= 1 then unsupported("vision_feature_layer", "is no number") end
  vision({ patch = v:count("patch_size", 16), channels = v:count("num_channels", 3), merge = m, raster = true,
    image_token = top:int("image_token_index", top:int("image_token_id", 10)) }, function()
    local x = scope(at .. "vision_tower", function() return pixtral_tower(v, from) end)
    return scope(at .. "multi_modal_projector", function()
      local b = top:flag("multimodal_projector_bias", not mistral3)
      x = mistral3 and merge_patches(rms_norm { x, "norm", eps = eps }, m) or reshape { x, dim = x.dim }
      x = act { linear { x, "linear_1", out = H, bias = b, part = col }, fn = top:text("projector_hidden_act", "gelu") }
      return linear { x, "linear_2", out = H, bias = b, part = row }
    end)
  end)
end

-- CLIP's or SigLIP's tower and the projector behind it. `next`: LLaVA-NeXT, whose tiles lie side by side, each line with a learned row
-- behind it. The strategy "default" drops the first row of each picture, whether the tower has a class row or not.
local function clip(top, v, o, at, H, next)
  local from = feature_layers(top, "vision_feature_layer", -2, v:count("num_hidden_layers", 12))
  local how = top:text("vision_feature_select_strategy", "default")
  if how ~= "default" and how ~= "full" then unsupported("vision_feature_select_strategy", how .. " (default and full are implemented)") end
  if next and (how == "default") ~= (o.cls or false) then
    unsupported("vision_feature_select_strategy", how .. ", which leaves no squares of rows to lay side by side")
  end
  local p = v:count("patch_size", 16)
  vision({ patch = p, channels = v:count("num_channels", 3), table = v:count("image_size", 224) // p, interpolation = "exact",
    class_row = o.cls, drop_first = how == "default", lines = next, image_token = top:opt "image_token_id" or top:opt "image_token_index" }, function()
    local x = scope(at .. "vision_tower", function()
      return scope(o.at, function() return clip_tower(v, { cls = o.cls, fn = o.fn, eps = o.eps, from = from }) end)
    end)
    local newline = top:flag("use_image_newline_parameter", next)                        -- LLaVA-NeXT takes it whatever this says
    if newline and not next then param { at .. "image_newline", shape = { H } } end
    x = scope(at .. "multi_modal_projector", function()
      local b = top:flag("multimodal_projector_bias", true)
      local h = act { linear { reshape { x, dim = x.dim }, "linear_1", out = H, bias = b, part = col }, fn = top:text("projector_hidden_act", "gelu") }
      return linear { h, "linear_2", out = H, bias = b, part = row }
    end)
    return next and learned_row { x, at .. "image_newline", shape = { H }, at = "line" } or x
  end)
end

return {
  placeholders = {
    { needs = "[IMG_BREAK]", marker = "[IMG]", line = "[IMG_BREAK]", last_line = "[IMG_END]" }, -- Pixtral, Mistral-3
    { marker = "<image>" } },
  arch = { "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration", "Mistral3ForConditionalGeneration" },
  model_type = { "llava", "llava_next", "mistral3" },
  build = function(top, architecture)
    local mistral3, next = architecture == "Mistral3ForConditionalGeneration", architecture == "LlavaNextForConditionalGeneration"
    local v, c = top.vision_config, top.text_config
    local kind, sight = c:text("model_type", "llama"), v:text("model_type", mistral3 and "pixtral" or "clip_vision_model")
    c = top:sub { "text_config" }
    local t, o = texts[kind], towers[sight]
    if not t then unsupported("text_config.model_type", kind .. " is not described here (llama, mistral and qwen2 are)") end
    if not o then unsupported("vision_config.model_type", sight .. " is not described here (CLIP, SigLIP and Pixtral are)") end
    if mistral3 and sight ~= "pixtral" then unsupported("vision_config.model_type", sight .. " with a merger of patches (pixtral is described)") end
    if sight == "pixtral" and not mistral3 and top:text("vision_feature_select_strategy", "default") ~= "full" then
      unsupported("vision_feature_select_strategy", "is not full, which drops a row of each picture")
    end
    local H, n, L = c:count("hidden_size", 4096), c:count("num_attention_heads", 32), c:count("num_hidden_layers", 32)
    local kv, eps, hd = c:count("num_key_value_heads", t.kv or n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", H // n)
    local window = kind == "mistral" and c:count("sliding_window", 0) or 0
    local bias = t.bias or kind == "llama" and c:flag("attention_bias", false)
    if c:flag("use_sliding_window", false) then unsupported("text_config.use_sliding_window", "is true") end
    for _, key in ipairs { "ignore_index", "image_token_index", "image_token_id", "image_seq_length", "image_grid_pinpoints", "is_composition",
      "vision_feature_select_strategy", "sliding_window", "max_window_layers" } do c:opt(key) end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count("max_position_embeddings", t.positions))

    -- Published as a whole language model beside a tower; later versions of the library write the second layout.
    local later = has "model.language_model.embed_tokens.weight"
    local at, outside = later and "model.language_model." or "language_model.model.", later and "model." or ""

    for _, key in ipairs { "projection_dim", "vocab_size", "vision_use_head", "is_composition", "tie_word_embeddings" } do v:opt(key) end
    if sight == "pixtral" then
      if next then unsupported("vision_config.model_type", "pixtral with tiles") end
      pixtral(top, v, outside, H, eps, mistral3)
    else
      clip(top, v, o, outside, H, next)
    end

    local x = pictures(embed { at .. "embed_tokens", vocab = c:count("vocab_size", 32000), dim = H })
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = not t.bias and bias,
          window = window > 0 and window or nil }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function()
        return gated_mlp { h, inter = c:count("intermediate_size", t.inter), fn = c:text("hidden_act", "silu"), bias = c:flag("mlp_bias", false) }
      end)
    end }
    x = rms_norm { wanted_rows(x), at .. "norm", eps = eps }
    local head = later and "lm_head" or "language_model.lm_head"
    return logits { x, head, vocab = c:count("vocab_size", 32000),
      tied = tied_head { top, c, head, counts = architecture == "LlavaForConditionalGeneration" and "either" or "outer", default = mistral3 } }
  end,
}

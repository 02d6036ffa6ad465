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

-- Pixtral: blocks as in the text, no biases, a rotation by row and column, and every image attends to itself alone.
local function pixtral_tower(v)
  local W, n, p = v:count("hidden_size", 1024), v:count("num_attention_heads", 16), v:count("patch_size", 16)
  local I, fn, hd = v:count("intermediate_size", 4096), v:text("hidden_act", "gelu"), v:count("head_dim", W // n)
  v:opt "image_size"
  local pos = rope { dim = hd, theta = rope_config(v).theta }
  local x = conv { input "patches", "patch_conv", shape = { W, v:count("num_channels", 3), p, p } }
  x = rms_norm { x, "ln_pre", eps = 1e-5 }
  return layers { x, n = v:count("num_hidden_layers", 24), at = "transformer.layers.%d", each = function(x)
    local h = rms_norm { x, "attention_norm", eps = 1e-5 }
    x = x + scope("attention", function() return gqa { h, heads = n, kv_heads = n, dim = hd, pos = pos } end)
    h = rms_norm { x, "ffn_norm", eps = 1e-5 }
    return x + scope("feed_forward", function() return gated_mlp { h, inter = I, fn = fn } end)
  end }
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
    if not next and top:flag("use_image_newline_parameter", false) then param { at .. "image_newline", shape = { H } } end
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
    local mistral3 = architecture == "Mistral3ForConditionalGeneration"
    local v, c = top.vision_config, top.text_config
    local kind, sight = c:text("model_type", "llama"), v:text("model_type", "clip_vision_model")
    c = top:sub { "text_config" }
    local t, o = texts[kind], towers[sight]
    if not t then unsupported("text_config.model_type", kind .. " is not described here (llama, mistral and qwen2 are)") end
    if not o then unsupported("vision_config.model_type", sight .. " is not described here (CLIP, SigLIP and Pixtral are)") end
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
    if sight ~= "pixtral" then clip(top, v, o, outside, H, architecture == "LlavaNextForConditionalGeneration") else tower("vision", function()
      local x = scope(outside .. "vision_tower", function() return pixtral_tower(v) end)
      scope(outside .. "multi_modal_projector", function()
        local W, from = x.dim, top:opt("vision_feature_layer", -2)
        local b = top:flag("multimodal_projector_bias", not mistral3)
        if mistral3 then                                                                 -- squares of rows become one row
          local m = top:count("spatial_merge_size", 2)
          x = reshape { rms_norm { x, "norm", eps = eps }, dim = W * m * m }
          x = linear { x, "patch_merger.merging_layer", out = W }
        elseif type(from) == "table" then                                                -- the rows of several layers, joined
          x = reshape { x, dim = W * #from }
        end
        x = act { linear { x, "linear_1", out = H, bias = b, part = col }, fn = top:text("projector_hidden_act", "gelu") }
        linear { x, "linear_2", out = H, bias = b, part = row }
      end)
    end) end

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

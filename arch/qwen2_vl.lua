-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen2-VL: the text model of Qwen2 with image positions in three sections, and a tower whose patches attend within their image.
return {
  placeholders = talk.placeholders.qwen,
  arch = "Qwen2VLForConditionalGeneration",
  model_type = "qwen2_vl",
  build = function(top)
    local c, v = top:sub { "text_config" }, top.vision_config
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", H // n)
    if c:flag("use_sliding_window", false) then unsupported("use_sliding_window", "is true") end
    for _, key in ipairs { "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id", "sliding_window",
      "max_window_layers", "layer_types" } do c:opt(key) end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd, sections = r.sections or { 16, 24, 24 } }
    context(c:count "max_position_embeddings")

    -- Published without `language_model`; written with it by later versions of the library.
    local later = has "model.language_model.embed_tokens.weight"
    local at, visual = later and "model.language_model." or "model.", later and "model.visual" or "visual"

    local p, merge, frames = v:count "patch_size", v:count "spatial_merge_size", v:count "temporal_patch_size"
    local colours = v:count("in_channels", v:count("in_chans", 3))
    vision({ patch = p, merge = merge, frames = frames, channels = colours, image_token = top:opt "image_token_id" },
      function() return scope(visual, function()
      local W, vh = v:count "embed_dim", v:count "num_heads"
      local out, fn, I = v:count "hidden_size", v:text("hidden_act", "quick_gelu"), math.tointeger(v:num "mlp_ratio" * W // 1)
      local M = W * merge * merge
      v:opt "spatial_patch_size"
      local angles = rope { dim = W // vh, theta = 10000, plane = "halves" }                 -- half of the angles from h, half from w
      local x = conv { input "patches", "patch_embed.proj", shape = { W, colours, frames, p, p } }
      x = layers { x, n = v:count "depth", at = "blocks.%d", each = function(x)
        local qkv = linear { layer_norm { x, "norm1", eps = 1e-6 }, "attn.qkv", out = 3 * W, bias = true, part = heads(vh), pieces = { W, W, W } }
        local q, k, val = split { qkv, sizes = { W, W, W } }
        q, k = apply_rope { q, pos = angles }, apply_rope { k, pos = angles }
        local o = attention { q = q, k = k, v = val, heads = vh, dim = W // vh, scale = (W // vh) ^ -0.5 }
        x = x + linear { o, "attn.proj", out = W, bias = true, part = row }
        local h = linear { layer_norm { x, "norm2", eps = 1e-6 }, "mlp.fc1", out = I, bias = true, part = col }
        return x + linear { act { h, fn = fn }, "mlp.fc2", out = W, bias = true, part = row }
      end }
      x = reshape { layer_norm { x, "merger.ln_q", eps = 1e-6 }, dim = M }
      x = act { linear { x, "merger.mlp.0", out = M, bias = true, part = col }, fn = "gelu_erf" }
      return linear { x, "merger.mlp.2", out = out, bias = true, part = row }
    end) end)

    local x = pictures(embed { at .. "embed_tokens", vocab = c:count "vocab_size", dim = H })
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = true } end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return gated_mlp { h, inter = c:count "intermediate_size", fn = c:text("hidden_act", "silu") } end)
    end }
    x = rms_norm { wanted_rows(x), at .. "norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = tied_head { top, c, "lm_head", counts = "either" } }
  end,
}

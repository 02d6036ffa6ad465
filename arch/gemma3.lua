-- SPDX-License-Identifier: Apache-2.0
--
-- Gemma-3: five layers with a window, then one without; norms before and behind every branch, all stored minus one; embeddings scaled by
-- the root of their width. With images: SigLIP, whose rows are averaged, normed and projected.

return {
  placeholders = { marker = "<start_of_image>", token = "<image_soft_token>", both_ways = true,
    picture = "\n\n<start_of_image>$tokens<end_of_image>\n\n",
    tiles = { first = "Here is the original image \n\n<start_of_image>$tokens<end_of_image>\n\n and here are some crops to help you see better ",
      tile = "\n\n<start_of_image>$tokens<end_of_image>\n\n", between = " " } },
  arch = { "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM" },
  model_type = { "gemma3", "gemma3_text" },
  build = function(top, architecture)
    -- config.json may leave out what is the default of its type
    local c = top:sub { "text_config" }
    local H, n = c:count("hidden_size", 2304), c:count("num_attention_heads", 8)
    local kv, hd = c:count("num_key_value_heads", 4), c:count("head_dim", 256)
    local L, eps, I = c:count("num_hidden_layers", 26), c:num("rms_norm_eps", 1e-6), c:count("intermediate_size", 9216)
    local fn, bias = c:text("hidden_activation", "gelu_pytorch_tanh"), c:flag("attention_bias", false)
    local window, softcap, cap = c:count("sliding_window", 4096), c:num("attn_logit_softcapping", 0.0), c:num("final_logit_softcapping", 0.0)
    local scaled = c:num("query_pre_attn_scalar", 256.0) ^ -0.5
    local images = top:opt "vision_config"
    if c:flag("use_bidirectional_attention", false) then unsupported("use_bidirectional_attention", "is true") end
    context(c:count("max_position_embeddings", 131072))
    for _, key in ipairs { "boi_token_index", "eoi_token_index", "image_token_index", "image_token_id", "cache_implementation" } do c:opt(key) end

    -- The scaling is that of the layers without a window.
    local all, near = rope_config(c, "full_attention"), rope_config(c, "sliding_attention")
    local spelt_twice = c:opt "rope_parameters" ~= nil
    local wide = rope { dim = hd, theta = spelt_twice and all.theta or c:num("rope_theta", 1e6), scaling = all.scaling }
    local narrow = rope { dim = hd, theta = spelt_twice and near.theta or c:num("rope_local_base_freq", 1e4),
      scaling = spelt_twice and near.scaling or nil }
    local types, every = c:list("layer_types", L, {}), c:count("sliding_window_pattern", c:count("_sliding_window_pattern", 6))
    local function is_full(i)
      if types[i + 1] then return types[i + 1] == "full_attention" end
      return (i + 1) % every == 0
    end

    local function norm(x, name) return rms_norm { x, name, eps = eps, plus_one = true } end

    local inside = architecture == "Gemma3ForCausalLM" and "" or "language_model."
    local outside = ""
    if has "model.language_model.embed_tokens.weight" then inside, outside = "", "model." end   -- as later versions of the library write it
    local at = outside == "" and inside .. "model." or "model.language_model."

    -- Squares of patches are averaged: each picture becomes as many rows as config.json says.
    local function rows_of_picture(v)
      local p, tokens = v:count("patch_size", 16), c:count("mm_tokens_per_image", 256)
      local side, down = v:count("image_size", 224) // p, math.tointeger(tokens ^ 0.5 // 1)
      local k = side // down
      if down * down ~= tokens or k * down ~= side then
        unsupported("mm_tokens_per_image", tokens .. " rows of " .. side .. " x " .. side .. " patches")
      end
      local token = top:int("image_token_index", top:int("image_token_id", 262144))
      vision({ patch = p, channels = v:count("num_channels", 3), merge = k, raster = true, table = side, interpolation = "exact",
        image_token = token }, function()
        local x = scope(outside .. "vision_tower", function()
          return scope("vision_model", function() return clip_tower(v, { fn = "gelu_pytorch_tanh", eps = 1e-6 }) end)
        end)
        if v:flag("vision_use_head", true) then unsupported("vision_config.vision_use_head", "is true") end
        return scope(outside .. "multi_modal_projector", function()
          local W, sizes = x.dim, {}
          for i = 1, k * k do sizes[i] = W end
          local parts = { split { reshape { x, dim = W * k * k }, sizes = sizes } }
          x = parts[1]
          for i = 2, k * k do x = x + parts[i] end
          x = scale { x, by = 1 / (k * k) }
          x = rms_norm { x, "mm_soft_emb_norm", eps = v:num("layer_norm_eps", 1e-6), plus_one = true }
          return linear { x, "mm_input_projection", out = H,
            weight = param { "mm_input_projection_weight", shape = { W, H }, turned = true } }
        end)
      end)
    end
    if images then rows_of_picture(images) end

    local x = pictures(embed_by_root(c, { at .. "embed_tokens", vocab = c:count("vocab_size", 262208), dim = H }))
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x, i)
      local full = is_full(i)
      local h = norm(x, "input_layernorm")
      h = scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = full and wide or narrow, bias = bias, o_bias = bias, qk_norm = eps, plus_one = true,
          scale = scaled, window = not full and window or nil, softcap = softcap > 0 and softcap or nil, bidirectional = images and true }
      end)
      x = x + norm(h, "post_attention_layernorm")
      h = norm(x, "pre_feedforward_layernorm")
      h = scope("mlp", function() return gated_mlp { h, inter = I, fn = fn } end)
      return x + norm(h, "post_feedforward_layernorm")
    end }
    x = norm(wanted_rows(x), at .. "norm")
    local head = outside == "" and inside .. "lm_head" or "lm_head"
    return logits { x, head, vocab = c:count("vocab_size", 262208),
      tied = tied_head { top, c, head, counts = architecture == "Gemma3ForCausalLM" and "inner" or "outer", default = true }, softcap = cap > 0 and cap or nil }
  end,
}

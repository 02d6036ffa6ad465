-- SPDX-License-Identifier: Apache-2.0
--
-- Idefics-3 and SmolVLM: SigLIP, scale x scale neighbouring rows joined and projected by one matrix, and a Llama.
return {
  placeholders = { marker = "<image>", picture = "<fake_token_around_image><global-img>$tokens<fake_token_around_image>",
    tiles = { tile = "<fake_token_around_image><row_$row_col_$column>$tokens", row = "\n",
      last = "\n<fake_token_around_image><global-img>$tokens<fake_token_around_image>" } },
  arch = { "SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration" },
  model_type = { "smolvlm", "idefics3" },
  build = function(top)
    local v, c = top.vision_config, top:sub { "text_config" }
    local H, n = c:count("hidden_size", 4096), c:count("num_attention_heads", 32)
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", H // n)
    local fn, bias = c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    -- left over from another model; they must be off
    for _, key in ipairs { "qk_layer_norms", "rope_interleaved", "use_resampler", "mlp_bias" } do
      if c:flag(key, false) then unsupported("text_config." .. key, "is true") end
    end
    local function pass(view, keys) for _, key in ipairs(keys) do view:opt(key) end end
    pass(c, { "is_llama_config", "neftune_noise_alpha", "pixel_shuffle_factor", "use_reentrant_checkpointing", "image_token_id",
      "tie_word_embeddings" })
    local resampler = c:opt "perceiver_config"
    if resampler then pass(resampler, { "hidden_act", "num_key_value_heads", "qk_layer_norms_perceiver", "resampler_depth", "resampler_head_dim",
      "resampler_n_heads", "resampler_n_latents" }) end
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd }
    context(c:count("max_position_embeddings", 2048))

    pass(v, { "use_base_siglip", "tie_word_embeddings" })
    for _, key in ipairs { "max_image_size", "size" } do                                 -- of the image, before it is cut
      if v:opt(key) then v:opt(key):opt "longest_edge" end
    end
    local s, p = top:count("scale_factor", 2), v:count("patch_size", 16)
    vision({ patch = p, channels = v:count("num_channels", 3), merge = s, raster = true, table = v:count("image_size", 224) // p,
      interpolation = "buckets", image_token = top:opt "image_token_id" }, function()
      local x = scope("model.vision_model", function() return clip_tower(v, { fn = "gelu_pytorch_tanh", eps = 1e-6 }) end)
      return linear { reshape { x, dim = x.dim * s * s }, "model.connector.modality_projection.proj", out = H }
    end)

    local x = pictures(embed { "model.text_model.embed_tokens", vocab = c:count "vocab_size", dim = H })
    x = layers { x, n = c:count("num_hidden_layers", 32), at = "model.text_model.layers.%d", each = function(x)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias } end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return gated_mlp { h, inter = c:count("intermediate_size", 11008), fn = fn } end)
    end }
    x = rms_norm { wanted_rows(x), "model.text_model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = tied_head { top, c, "lm_head", counts = "outer" } }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- Kimi-K2.5: the text model of Kimi-K2 (DeepSeek-V3's blocks with more experts, half the heads and no groups), a MoonViT tower and a
-- projector that joins 2 x 2 patches.
return {
  placeholders = { marker = "<|media_pad|>" },
  arch = { "KimiK25ForConditionalGeneration" },
  model_type = { "kimi_k25" },
  output = talk.formats.kimi_k2,
  build = function(top)
    local c, v = top:sub { "text_config" }, top:sub { "vision_config" }
    local H, nh, eps = c:count "hidden_size", c:count "num_attention_heads", c:num "rms_norm_eps"
    local nope, rd, vd = c:count "qk_nope_head_dim", c:count "qk_rope_head_dim", c:count "v_head_dim"
    local latent, qr, inter = c:count "kv_lora_rank", c:count "q_lora_rank", c:count "moe_intermediate_size"
    local fn, bias, vocab = c:text("hidden_act", "silu"), c:flag("attention_bias", false), c:count "vocab_size"
    if c:count("num_key_value_heads", nh) ~= nh then unsupported("num_key_value_heads", "differs from num_attention_heads") end
    if c:count("moe_layer_freq", 1) ~= 1 then unsupported("moe_layer_freq", "only 1 is implemented") end
    if c:text("topk_method", "noaux_tc") ~= "noaux_tc" then unsupported("topk_method", c.topk_method .. ": only noaux_tc is implemented") end
    if c:int("num_nextn_predict_layers", 0) ~= 0 then unsupported("num_nextn_predict_layers", "drafting layers of this family are not described") end
    local r = rope_config(c)
    local pos = rope { r, dim = rd, style = "pairs" }
    context(c:count "max_position_embeddings")
    kimi_tiktoken()
    for _, key in ipairs { "aux_loss_alpha", "seq_aux", "ep_size", "ignore_index" } do c:opt(key) end -- training only
    for _, key in ipairs { "video_placeholder", "use_unified_vision_chunk" } do top:opt(key) end -- the processor's

    local function self_attn(x)
      local cq = rms_norm { linear { x, "q_a_proj", out = qr, bias = bias }, "q_a_layernorm", eps = 1e-6 }
      local q = linear { cq, "q_b_proj", out = nh * (nope + rd), part = heads(nh) }
      local ckv, k_pe = split { linear { x, "kv_a_proj_with_mqa", out = latent + rd, bias = bias }, sizes = { latent, rd } }
      ckv = rms_norm { ckv, "kv_a_layernorm", eps = 1e-6 }
      q, k_pe = apply_rope { q, "q_rope", pos = pos, dim = nope + rd, offset = nope }, apply_rope { k_pe, "k_rope", pos = pos, dim = rd }
      local o = mla { q = q, latent_kv = ckv, k_pe = k_pe, kv_b = "kv_b_proj", heads = nh, nope = nope, rope = rd, v_dim = vd, latent = latent,
        scale = (nope + rd) ^ -0.5 * r.softmax }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function mlp(x, width)
      local g, u = linear { x, "gate_proj", out = width, part = col }, linear { x, "up_proj", out = width, part = col }
      return linear { glu { g, u, fn = fn }, "down_proj", out = H, part = row }
    end

    local function sparse(x)
      local y = moe { x, n = c:count "n_routed_experts", k = c:count "num_experts_per_tok", inter = inter, gate = "gate",
        bias = "gate.e_score_correction_bias", bias_dtype = "F32", score = c:text("scoring_func", "sigmoid"), groups = c:count("n_group", 1),
        groups_kept = c:count("topk_group", 1), renormalize = c:flag("norm_topk_prob", true), renorm_eps = 1e-20,
        scale = c:num "routed_scaling_factor", fn = fn, experts = { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" } }
      return y + scope("shared_experts", function() return mlp(x, inter * c:count "n_shared_experts") end)
    end

    local merge, p, side = v:list("merge_kernel_size", 2), v:count "patch_size", v:count "init_pos_emb_height"
    if merge[1] ~= merge[2] then unsupported("vision_config.merge_kernel_size", "is no square") end
    if v:count "init_pos_emb_width" ~= side then unsupported("vision_config.init_pos_emb_width", "differs from init_pos_emb_height") end

    local function tower_of_patches()
      local W, n, wide = v:count "vt_hidden_size", v:count "vt_num_attention_heads", v:count "vt_intermediate_size"
      if v:text("mm_projector_type", "patchmerger") ~= "patchmerger" then unsupported("mm_projector_type", v.mm_projector_type) end
      if v:text("merge_type", "sd2_tpool") ~= "sd2_tpool" then unsupported("merge_type", v.merge_type) end
      for _, key in ipairs { "pos_emb_type", "video_attn_type", "init_pos_emb_time", "projector_hidden_act" } do v:opt(key) end
      local x = scope("vision_tower", function()
        local pos = rope { dim = W // n, theta = 10000, style = "pairs", plane = "turns" }
        local x = conv { input "patches", "patch_embed.proj", shape = { W, 3, p, p }, bias = true }
        x = x + table { "patch_embed.pos_emb", shape = { side, v:count "init_pos_emb_width", W }, taps = 16 }
        x = layers { x, n = v:count "vt_num_hidden_layers", at = "encoder.blocks.%d", each = function(x)
          local qkv = linear { layer_norm { x, "norm0", eps = 1e-5 }, "wqkv", out = 3 * W, part = heads(n), pieces = { W, W, W }, bias = true,
            quant = false }
          local q, k, val = split { qkv, sizes = { W, W, W } }
          q, k = apply_rope { q, pos = pos }, apply_rope { k, pos = pos }
          local o = attention { q = q, k = k, v = val, heads = n, dim = W // n, scale = (W // n) ^ -0.5 }
          x = x + linear { o, "wo", out = W, part = row, bias = true, quant = false }
          local h = linear { layer_norm { x, "norm1", eps = 1e-5 }, "mlp.fc0", out = wide, part = col, bias = true, quant = false }
          return x + linear { act { h, fn = "gelu_tanh" }, "mlp.fc1", out = W, part = row, bias = true, quant = false }
        end }
        return layer_norm { x, "encoder.final_layernorm", eps = 1e-5 }
      end)
      local M = v:count "mm_hidden_size" * merge[1] * merge[2]
      x = reshape { layer_norm { x, "mm_projector.pre_norm", eps = v:num("projector_ln_eps", 1e-5) }, dim = M }
      x = act { linear { x, "mm_projector.proj.0", out = M, bias = true, quant = false }, fn = "gelu_erf" }
      return linear { x, "mm_projector.proj.2", out = v:count("text_hidden_size", H), bias = true, quant = false }
    end
    vision({ patch = p, merge = merge[1], channels = 3, raster = true, table = side, interpolation = "bicubic",
      image_token = top:opt "media_placeholder_token_id" }, tower_of_patches)

    return scope("language_model", function()
      local x = pictures(embed { "model.embed_tokens", vocab = vocab, dim = H })
      x = layers { x, n = c:count "num_hidden_layers", at = "model.layers.%d", each = function(x, i)
        local h = rms_norm { x, "input_layernorm", eps = eps }
        x = x + scope("self_attn", function() return self_attn(h) end)
        h = rms_norm { x, "post_attention_layernorm", eps = eps }
        return x + scope("mlp", function()
          if i < c:int("first_k_dense_replace", 0) then return mlp(h, c:count "intermediate_size") end
          return sparse(h)
        end)
      end }
      x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
      return logits { x, "lm_head", vocab = vocab, tied = tied_head { top, c, "lm_head", counts = "outer", default = true } }
    end)
  end,
}

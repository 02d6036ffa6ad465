-- SPDX-License-Identifier: Apache-2.0
--
-- DeepSeek V3 and R1, Kimi K2: compressed attention (MLA), sigmoid-routed experts with a correction bias, one shared expert, and the
-- drafting layers that are stored as layers past the last.
return {
  arch = { "DeepseekV3ForCausalLM" },
  model_type = { "deepseek_v3", "kimi_k2" },
  output = { talk.formats.kimi_k2, talk.formats.deepseek_v3, talk.formats.think },
  build = function(c)
    local H, nh, eps = c:count "hidden_size", c:count "num_attention_heads", c:num "rms_norm_eps"
    local nope, rd, vd = c:count "qk_nope_head_dim", c:count "qk_rope_head_dim", c:count "v_head_dim"
    local latent, qr = c:count "kv_lora_rank", c:opt "q_lora_rank"
    local fn, bias = c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    local n, V = c:count "num_hidden_layers", c:count "vocab_size"
    local dense, inter = c:int("first_k_dense_replace", 0), c:count "intermediate_size"
    local every = c:count("moe_layer_freq", 1)
    local E, shared = c:opt "n_routed_experts", c:int("n_shared_experts", 0)
    if c:text("topk_method", "noaux_tc") ~= "noaux_tc" then unsupported("topk_method", c.topk_method .. " is not implemented (noaux_tc is)") end
    c:opt "num_key_value_heads"
    c:opt "head_dim"
    c:opt "ep_size"
    c:opt "aux_loss_alpha"
    c:opt "seq_aux"
    local r = rope_config(c)
    local pos = rope { r, dim = rd, style = "pairs", offset = nope }
    local scale = (nope + rd) ^ -0.5 * r.softmax
    context(c:count "max_position_embeddings")
    kimi_tiktoken() -- of the releases with this description only Kimi-K2 has no tokenizer.json

    local function self_attn(x)
      local q = x
      if qr then q = rms_norm { linear { x, "q_a_proj", out = qr, bias = bias }, "q_a_layernorm", eps = 1e-6 } end
      q = linear { q, qr and "q_b_proj" or "q_proj", out = nh * (nope + rd), part = heads(nh) }
      local kv = linear { x, "kv_a_proj_with_mqa", out = latent + rd, bias = bias }
      local ckv, k_pe = split { kv, sizes = { latent, rd } }
      local o = mla { q = apply_rope { q, "q_rope", pos = pos, dim = nope + rd }, latent_kv = rms_norm { ckv, "kv_a_layernorm", eps = 1e-6 },
        k_pe = apply_rope { k_pe, "k_rope", pos = pos, dim = rd, offset = 0 }, kv_b = "kv_b_proj", heads = nh, nope = nope, rope = rd, v_dim = vd,
        latent = latent, scale = scale }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function mlp(x, width)
      local g = linear { x, "gate_proj", out = width, part = col }
      local u = linear { x, "up_proj", out = width, part = col }
      return linear { glu { g, u, fn = fn }, "down_proj", out = H, part = row }
    end

    local function sparse(x)
      local I = c:count "moe_intermediate_size"
      local y = moe { x, n = E, k = c:count "num_experts_per_tok", inter = I, gate = "gate", bias = "gate.e_score_correction_bias", bias_dtype = "F32",
        score = c:text("scoring_func", "sigmoid"), groups = c:count("n_group", 1), groups_kept = c:count("topk_group", 1), group_score = "top2_sum",
        renormalize = c:flag("norm_topk_prob", true), renorm_eps = 1e-20, scale = c:num("routed_scaling_factor", 1.0), fn = fn,
        experts = { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" } }
      if shared == 0 then return y end
      return y + scope("shared_experts", function() return mlp(x, I * shared) end)
    end

    local function block(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function()
        if not E or i < dense or i % every ~= 0 then return mlp(h, inter) end
        return sparse(h)
      end)
    end

    local x = embed { "model.embed_tokens", vocab = V, dim = H }
    x = layers { x, n = n, at = "model.layers.%d", each = block }
    mtp(function()
      layers { x, n = c:int("num_nextn_predict_layers", 0), first = n, at = "model.layers.%d", each = function(h, i)
        local e = rms_norm { embed { "embed_tokens", vocab = V, dim = H }, "enorm", eps = eps }
        local y = linear { concat { e, rms_norm { h, "hnorm", eps = eps } }, "eh_proj", out = H, quant = false }
        y = block(y, i)
        logits { rms_norm { y, "shared_head.norm", eps = eps }, "shared_head.head", vocab = V }
        return y
      end }
    end)
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = V, tied = c:flag("tie_word_embeddings", false) }
  end,
}

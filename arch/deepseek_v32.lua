-- SPDX-License-Identifier: Apache-2.0
--
-- DeepSeek-V3.2 and GLM-5: the DeepSeek-V3 block with sparse attention. An indexer of small heads scores all earlier tokens, and
-- latent attention runs over the best of them. GLM-5 rotates the indexer in pairs like the attention itself, DeepSeek in halves;
-- some layers of later GLM-5 releases have no indexer and keep the choice of the layer before.
return {
  arch = { "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM" },
  model_type = { "deepseek_v32", "glm_moe_dsa" },
  output = { talk.formats.glm, talk.formats.deepseek_v32, talk.formats.deepseek_v3, talk.formats.think },
  build = function(c, architecture)
    local glm = architecture == "GlmMoeDsaForCausalLM"
    local H, nh, eps = c:count "hidden_size", c:count "num_attention_heads", c:num "rms_norm_eps"
    local nope, rd, vd = c:count "qk_nope_head_dim", c:count "qk_rope_head_dim", c:count "v_head_dim"
    local latent, qr, n = c:count "kv_lora_rank", c:count "q_lora_rank", c:count "num_hidden_layers"
    local ih, id, topk = c:count "index_n_heads", c:count "index_head_dim", c:count "index_topk"
    local fn, bias, vocab = c:text("hidden_act", "silu"), c:flag("attention_bias", false), c:count "vocab_size"
    local inter = c:count "moe_intermediate_size"
    if c:count("num_key_value_heads", nh) ~= nh then unsupported("num_key_value_heads", "differs from num_attention_heads") end
    if c:count("qk_head_dim", nope + rd) ~= nope + rd then unsupported("qk_head_dim", "is not the sum of its two parts") end
    if c:count("head_dim", rd) ~= rd then unsupported("head_dim", "differs from qk_rope_head_dim") end
    if c:count("moe_layer_freq", 1) ~= 1 then unsupported("moe_layer_freq", "only 1 is implemented") end
    if c:text("topk_method", "noaux_tc") ~= "noaux_tc" then unsupported("topk_method", c.topk_method .. ": only noaux_tc is implemented") end
    for _, key in ipairs { "aux_loss_alpha", "seq_aux", "ep_size" } do c:opt(key) end -- training only

    local r = rope_config(c)
    local pos = rope { r, dim = rd, style = c:flag("rope_interleave", true) and "pairs" or "half" }
    local index_pos = rope { r, dim = rd, style = c:flag("indexer_rope_interleave", glm) and "pairs" or "half" }
    local scale_of = (nope + rd) ^ -0.5 * r.softmax
    context(c:count "max_position_embeddings")

    -- Which layers choose keys themselves: a list, a string of F and S, or a rhythm.
    local kinds, pattern = c:list("indexer_types", nil, {}), c:opt "index_topk_pattern"
    local every, start = c:count("index_topk_freq", 1), c:int("index_skip_topk_offset", 2)
    local function chooses(i)
      if i >= n then return true end                                             -- drafting
      if #kinds > 0 then return kinds[i + 1] ~= "shared" end
      if type(pattern) == "string" then return string.sub(pattern, i + 1, i + 1) ~= "S" end
      return math.max(i - start + 1, 0) % every == 0
    end

    local function indexer(x, cq)
      local q = apply_rope { linear { cq, "wq_b", out = ih * id }, "q_rope", pos = index_pos, dim = id }
      local k = layer_norm { linear { x, "wk", out = id }, "k_norm", eps = 1e-6 }
      k = apply_rope { k, "k_rope", pos = index_pos, dim = id }
      local w = scale { linear { x, "weights_proj", out = ih, quant = false }, by = ih ^ -0.5 }
      return index_topk { q = q, k = k, weights = w, heads = ih, dim = id, topk = topk, scale = id ^ -0.5 }
    end

    local chosen
    local function self_attn(x, i)
      local cq = rms_norm { linear { x, "q_a_proj", out = qr, bias = bias }, "q_a_layernorm", eps = 1e-6 }
      local q = linear { cq, "q_b_proj", out = nh * (nope + rd), part = heads(nh) }
      local ckv, k_pe = split { linear { x, "kv_a_proj_with_mqa", out = latent + rd, bias = bias }, sizes = { latent, rd } }
      ckv = rms_norm { ckv, "kv_a_layernorm", eps = 1e-6 }
      q, k_pe = apply_rope { q, "q_rope", pos = pos, dim = nope + rd, offset = nope }, apply_rope { k_pe, "k_rope", pos = pos, dim = rd }
      if chooses(i) then chosen = scope("indexer", function() return indexer(x, cq) end) end
      local o = mla { q = q, latent_kv = ckv, k_pe = k_pe, kv_b = "kv_b_proj", heads = nh, nope = nope, rope = rd, v_dim = vd, latent = latent,
        scale = scale_of, index = chosen }
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

    local dense, mixed = c:int("first_k_dense_replace", 0), c:list("mlp_layer_types", nil, {})
    local function is_dense(i)
      if mixed[i + 1] then return mixed[i + 1] == "dense" end
      return i < dense
    end
    local function block(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h, i) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function()
        if is_dense(i) then return mlp(h, c:count "intermediate_size") end
        return sparse(h)
      end)
    end

    local x = embed { "model.embed_tokens", vocab = vocab, dim = H }
    x = layers { x, n = n, at = "model.layers.%d", each = block }

    mtp(function()
      layers { x, n = c:int("num_nextn_predict_layers", 0), first = n, at = "model.layers.%d", each = function(x, i)
        -- GLM-5 drafts with the model's own embedding and head unless the checkpoint has others
        local own = not glm or has "embed_tokens.weight"
        local e = own and embed { "embed_tokens", vocab = vocab, dim = H } or x
        e = rms_norm { e, "enorm", eps = eps }
        x = block(linear { concat { e, rms_norm { x, "hnorm", eps = eps } }, "eh_proj", out = H, quant = false }, i)
        x = rms_norm { x, "shared_head.norm", eps = eps }
        if own then logits { x, "shared_head.head", vocab = vocab } end
        return x
      end }
    end)
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = vocab, tied = c:flag("tie_word_embeddings", false) }
  end,
}

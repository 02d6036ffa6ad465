-- SPDX-License-Identifier: Apache-2.0
--
-- DeepSeek-V4. The residual is several streams, mixed before and after each sublayer (hyper-connections). One key-value head of
-- which a window stays as it is; older tokens are pooled, 128 to one, or 4 to one of which an indexer chooses. The output of the
-- attention is rotated back and projected in groups. The first layers choose experts by a table over token ids.
return {
  arch = { "DeepseekV4ForCausalLM" },
  model_type = { "deepseek_v4" },
  output = { talk.formats.deepseek_v4, talk.formats.think },
  build = function(c)
    local H, nh, hd, eps = c:count "hidden_size", c:count "num_attention_heads", c:count "head_dim", c:num "rms_norm_eps"
    local qr, groups, orank = c:count "q_lora_rank", c:count "o_groups", c:count "o_lora_rank"
    local ih, id, topk = c:count "index_n_heads", c:count "index_head_dim", c:count "index_topk"
    local streams, hc_eps, rounds = c:count "hc_mult", c:num "hc_eps", c:count "hc_sinkhorn_iters"
    local n, inter, vocab, limit = c:count "num_hidden_layers", c:count "moe_intermediate_size", c:count "vocab_size", c:num "swiglu_limit"
    local drafts, rd = c:int("num_nextn_predict_layers", 0), c:count("qk_rope_head_dim", 64)
    if c:count("num_key_value_heads", 1) ~= 1 then unsupported("num_key_value_heads", "this family has one") end
    if c:text("hidden_act", "silu") ~= "silu" then unsupported("hidden_act", c.hidden_act .. ": the clamped silu is the only one") end
    if c:flag("attention_bias", false) then unsupported("attention_bias", "this family has none") end
    if c:text("topk_method", "noaux_tc") ~= "noaux_tc" then unsupported("topk_method", c.topk_method .. ": only noaux_tc is implemented") end
    -- Scales are bytes that hold an exponent; experts may have 4 bits.
    local fp8, fp4 = "v4_fp8", c:text("expert_dtype", "fp8") == "fp4" and "v4_fp4" or "v4_fp8"
    context(c:count "max_position_embeddings")

    -- Pooling of each layer: 0 none, or the tokens of one entry.
    local ratios, kinds = c:list("compress_ratios", nil, {}), c:list("layer_types", nil, {})
    local ratio_of = { sliding_attention = 0, compressed_sparse_attention = 4, heavily_compressed_attention = 128 }
    local function ratio(i)
      local r = ratios[i + 1] or ratio_of[kinds[i + 1] or "sliding_attention"]
      if r ~= 0 and r ~= 4 and r ~= 128 then unsupported("compress_ratios", tostring(r) .. " is not implemented (0, 4 and 128 are)") end
      return r
    end
    if #ratios < n and #kinds < n then unsupported("compress_ratios", "names no ratio for each of the " .. n .. " layers") end
    local hashed = c:int("num_hash_layers", 0)

    -- Layers that pool rotate by another base and yarn, whose attention factor this family does not apply.
    local near = rope { dim = rd, style = "pairs", theta = c:num("rope_theta", 10000.0), offset = hd - rd }
    local far = rope { dim = rd, style = "pairs", theta = c:num "compress_rope_theta", scaling = c:opt "rope_scaling", attention = 1,
      offset = hd - rd }

    -- Names as published; transformers saves some of them under others.
    local saved = has "model.embed_tokens.weight"
    local top = saved and "model." or ""

    local function pool(x, at, dim, every)
      local wide = every == 4 and 2 or 1                           -- short windows overlap: channels of this one and the next
      return scope(at, function()
        return pool_kv { kv = linear { x, "wkv", out = wide * dim, quant = false }, gate = linear { x, "wgate", out = wide * dim, quant = false },
          ape = "ape", norm = "norm", ratio = every, dim = dim, overlap = every == 4, eps = eps, pos = far, dtype = "F32" }
      end)
    end

    local function attn(x, i)
      local every = ratio(i)
      local pos = every > 0 and far or near
      local cq = rms_norm { linear { x, "wq_a", out = qr, quant = fp8 }, "q_norm", eps = eps }
      local q = rms_norm { linear { cq, "wq_b", out = nh * hd, part = heads(nh), quant = fp8 }, dim = hd, eps = eps }
      local kv = rms_norm { linear { x, "wkv", out = hd, quant = fp8 }, saved and "norm" or "kv_norm", eps = eps }
      q, kv = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { kv, "kv_rope", pos = pos, dim = hd }
      local pooled, chosen
      if every > 0 then pooled = pool(x, "compressor", hd, every) end
      if every == 4 then
        chosen = scope("indexer", function()
          local iq = apply_rope { linear { cq, "wq_b", out = ih * id, quant = fp8 }, "q_rope", pos = far, dim = id, offset = id - rd }
          local w = scale { linear { x, "weights_proj", out = ih, quant = false }, by = ih ^ -0.5 }
          return pool_topk { q = iq, pool = pool(x, "compressor", id, every), weights = w, heads = ih, dim = id, topk = topk, scale = id ^ -0.5 }
        end)
      end
      local o = pool_attention { q = q, kv = kv, pool = pooled, index = chosen, heads = nh, dim = hd, window = c:count "sliding_window",
        sinks = "attn_sink", sinks_dtype = "F32", scale = hd ^ -0.5 }
      o = apply_rope { o, "o_rope", pos = pos, dim = hd, inverse = true }
      o = group_linear { o, "wo_a", groups = groups, out = groups * orank, quant = fp8 }
      return linear { o, "wo_b", out = H, part = row, quant = fp8 }
    end

    local function ffn(x, i)
      local clamp = { fn = "silu_clamp", p = { limit = limit } }
      local y = moe { x, n = c:count "n_routed_experts", k = c:count "num_experts_per_tok", inter = inter, gate = "gate",
        table = i < hashed and "gate.tid2eid" or nil, vocab = vocab, bias = i >= hashed and "gate.bias" or nil, bias_dtype = "F32",
        score = c:text("scoring_func", "sqrtsoftplus"), renormalize = c:flag("norm_topk_prob", true), renorm_eps = 1e-20,
        scale = c:num "routed_scaling_factor", fn = clamp.fn, p = clamp.p,
        experts = { at = "experts.%d", gate = "w1", up = "w3", down = "w2", quant = fp4 } }
      return y + scope("shared_experts", function()
        local width = inter * c:count("n_shared_experts", 1)
        local g, u = linear { x, "w1", out = width, part = col, quant = fp8 }, linear { x, "w3", out = width, part = col, quant = fp8 }
        return linear { glu { g, u, fn = clamp.fn, p = clamp.p }, "w2", out = H, part = row, quant = fp8 }
      end)
    end

    local function site(X, at, norm, f)
      local x, m = hyper_in { X, "hc_" .. at, streams = streams, eps = eps, hc_eps = hc_eps, rounds = rounds, dtype = "F32" }
      x = rms_norm { x, norm, eps = eps }
      return hyper_out { scope(at, function() return f(x) end), X, m, streams = streams, name = at .. "_streams" }
    end
    local function block(X, i)
      X = site(X, "attn", "attn_norm", function(x) return attn(x, i) end)
      return site(X, "ffn", "ffn_norm", function(x) return ffn(x, i) end)
    end
    local function collapse(X, name)
      return hyper_head { X, name, streams = streams, eps = eps, hc_eps = hc_eps, dtype = "F32" }
    end

    local x = embed { saved and "model.embed_tokens" or "embed", vocab = vocab, dim = H }
    local copies = {}
    for k = 1, streams do copies[k] = x end
    local X = layers { concat(copies), n = n, at = top .. "layers.%d", each = block }

    mtp(function()
      layers { X, n = drafts, at = top .. "mtp.%d", each = function(Y, i)
        local e = linear { rms_norm { x, "enorm", eps = eps }, "e_proj", out = H, quant = fp8 }
        local h = linear { rms_norm { Y, "hnorm", dim = H, eps = eps }, "h_proj", into = H, out = H, quant = fp8 }
        Y = block(reshape { e + h, dim = streams * H }, n + i)
        rms_norm { collapse(Y, "hc_head"), "norm", eps = eps }
        return Y
      end }
    end)
    x = collapse(wanted_rows(X), saved and "model.hc_head.hc" or "hc_head")
    x = rms_norm { x, top .. "norm", eps = eps }
    return logits { x, saved and has "lm_head.weight" and "lm_head" or "head", vocab = vocab, tied = c:flag("tie_word_embeddings", false) }
  end,
}

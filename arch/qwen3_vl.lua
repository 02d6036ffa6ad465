-- SPDX-License-Identifier: Apache-2.0
--
-- Qwen3-VL, dense and with experts: the text model of Qwen3 with interleaved image positions, and a tower whose middle layers also feed
-- the first layers of the text.
return {
  placeholders = talk.placeholders.qwen,
  arch = { "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration" },
  model_type = { "qwen3_vl", "qwen3_vl_moe" },
  output = { talk.formats.qwen3_coder, talk.formats.hermes, talk.formats.think },
  build = function(top)
    local c = top:sub { "text_config" }
    local H, n, L = c:count "hidden_size", c:count "num_attention_heads", c:count "num_hidden_layers"
    local kv, eps, hd = c:count("num_key_value_heads", n), c:num("rms_norm_eps", 1e-6), c:count("head_dim", 128)
    local fn, bias = c:text("hidden_act", "silu"), c:flag("attention_bias", false)
    local r = rope_config(c)
    if r.partial ~= 1 then unsupported("partial_rotary_factor", r.partial .. ": only whole heads are rotated") end
    local pos = rope { r, dim = hd, sections = r.sections or { 24, 20, 20 }, interleaved = true }
    context(c:count "max_position_embeddings")
    for _, key in ipairs { "router_aux_loss_coef", "output_router_logits", "video_token_id", "vision_start_token_id",
      "vision_end_token_id" } do c:opt(key) end

    local dense, every = {}, c:count("decoder_sparse_step", 1)
    for _, i in ipairs(c:list("mlp_only_layers", nil, {})) do dense[i] = true end
    local function is_sparse(i) return c:opt "num_experts" and not dense[i] and (i + 1) % every == 0 end

    qwen3_vision(top.vision_config, "model.visual", c:opt "image_token_id")

    -- Published with inputs before outputs in the packed matrices; one matrix an expert in releases that were quantised.
    local function sparse(x)
      return moe { x, n = c:count "num_experts", k = c:count "num_experts_per_tok", inter = c:count "moe_intermediate_size", gate = "gate",
        score = "softmax", renormalize = c:flag("norm_topk_prob", true), fn = fn, experts = {
          { packed = "experts", gate_up = "gate_up_proj", down = "down_proj", transposed = true },
          { at = "experts.%d", gate = "gate_proj", up = "up_proj", down = "down_proj" } } }
    end

    local inter = c:count("intermediate_size", 1)
    local at = prefix_of { "model.language_model.", "model." }
    local x = pictures(embed { at .. "embed_tokens", vocab = c:count "vocab_size", dim = H })
    x = layers { x, n = L, at = at .. "layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function()
        return gqa { h, heads = n, kv_heads = kv, dim = hd, pos = pos, bias = bias, o_bias = bias, qk_norm = eps }
      end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return pictures(x + scope("mlp", function()
        if is_sparse(i) then return sparse(h) end
        return gated_mlp { h, inter = inter, fn = fn }
      end), i + 1)
    end }
    x = rms_norm { wanted_rows(x), at .. "norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = tied_head { top, c, "lm_head", counts = "outer" } }
  end,
}

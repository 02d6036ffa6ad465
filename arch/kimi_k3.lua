-- SPDX-License-Identifier: Apache-2.0
--
-- Kimi K3: layers of gated delta rule with a decay for each key channel (KDA), every fourth of compressed attention without rotation;
-- experts in a latent space; residual sums mixed over blocks of layers; the MoonViT-3d tower.

-- ---- chats: XML-like tags whose brackets are tokens; the release has no template ----

local function attributes(out, tag, list)
  out.special "<|open|>"
  out.text(tag)
  for i = 1, #list, 2 do
    out.text(" " .. list[i])
    out.text '="'
    out.text(talk.replace(list[i + 1], { ["&"] = "&amp;", ['"'] = "&quot;" }))
    out.text '"'
  end
  out.special "<|sep|>"
end

local function close(out, tag)
  out.special "<|close|>"
  out.text(tag)
  out.special "<|sep|>"
end

local function message(out, list, content) -- a text, or a message of the request
  attributes(out, "message", list)
  if type(content) == "string" then out.text(content) else talk.write(out, content, "<|media_pad|>") end
  close(out, "message")
  out.special "<|end_of_msg|>"
end

local function internal(out, kind, text) message(out, { "role", "system", "type", kind }, talk.strip(text)) end

local function declare(out, tools, later)
  local text = later
    and "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all existing and extended tools.\nHere are the specs for the extended tools."
    or "# Tools\nHere are the available tools, described in JSONSchema."
  internal(out, "tool-declare", text .. "\n\n```json\n" .. talk.json(tools, { sort = true, comma = ",", colon = ":" }) .. "\n```")
end

local function declare_effort(out, o)
  local effort = o.thinking_effort
  if talk.given(effort) then
    if effort ~= "low" and effort ~= "high" and effort ~= "max" then
      error("thinking_effort must be low, high or max, not " .. tostring(effort), 0)
    end
  else
    effort = o.reasoning_effort -- OpenAI's; medium has no equal here
    if effort ~= "low" and effort ~= "high" and effort ~= "max" then return end
  end
  internal(out, "thinking-effort", "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    .. "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=" .. effort .. "`.")
end

local json_types = { string = "string", number = "number", boolean = "boolean" }

local function call(out, index, c)
  local f = talk.given(c["function"]) and c["function"] or c
  if type(f.name) ~= "string" then error("a tool call has no function name", 0) end
  attributes(out, "call", { "tool", f.name, "index", tostring(index) })
  local args = f.arguments
  if type(args) == "string" and talk.strip(args) ~= "" then -- JSON that is no object
    attributes(out, "json", { "type", "object" })
    out.text(args)
    close(out, "json")
  elseif type(args) == "table" and args ~= null then
    for _, key in ipairs(talk.keys(args)) do
      local v = args[key]
      local kind = v == null and "null" or json_types[type(v)] or (v.n and getmetatable(v) == nil and "array" or "object")
      attributes(out, "argument", { "key", key, "type", kind })
      out.text(type(v) == "string" and v or talk.json(v))
      close(out, "argument")
    end
  end
  close(out, "call")
end

local function answer(out, m, thinking)
  if thinking then
    local r = m.reasoning_content
    if not talk.given(r) or r == "" then r = m.reasoning end
    attributes(out, "think", {})
    if type(r) == "string" and talk.strip(r) ~= "" then out.text(r) end
    close(out, "think")
  end
  attributes(out, "response", {})
  out.text(talk.content(m))
  close(out, "response")
  if talk.given(m.tool_calls) and m.tool_calls.n > 0 then
    attributes(out, "tools", {})
    for i, c in ipairs(m.tool_calls) do call(out, i, c) end
    close(out, "tools")
  end
end

-- Results of tools in the order of their calls, where every one of a row names its call.
local function in_order(messages)
  local list, place, i = {}, {}, 1
  while i <= messages.n do
    local m = messages[i]
    if m.role == "assistant" then
      place = {}
      for k, c in ipairs(talk.given(m.tool_calls) and m.tool_calls or {}) do
        if type(c.id) == "string" and not place[c.id] then
          place[c.id] = { k, (talk.given(c["function"]) and c["function"] or c).name }
        end
      end
    end
    if m.role ~= "tool" then
      list[#list + 1] = { m }
      i = i + 1
    else
      local run, known = {}, true
      while i <= messages.n and messages[i].role == "tool" do
        local p = place[messages[i].tool_call_id]
        known = known and p ~= nil
        run[#run + 1] = { messages[i], p and p[2], p and p[1] * 65536 + #run }
        i = i + 1
      end
      if known then table.sort(run, function(a, b) return a[3] < b[3] end) end
      for _, r in ipairs(run) do list[#list + 1] = { r[1], known and r[2] or nil } end
    end
  end
  return list
end

local function named(role, m)
  local list = { "role", role }
  if type(m.name) == "string" and m.name ~= "" then list[3], list[4] = "name", m.name end
  return list
end

local function chat(messages, o)
  local out, thinking = talk.segments(), o.thinking ~= false
  local calls, results = {}, 0
  if talk.given(o.tools) and o.tools.n > 0 then declare(out, o.tools, false) end
  if thinking then declare_effort(out, o) end
  for _, entry in ipairs(in_order(messages)) do
    local m, role = entry[1], entry[1].role
    if role == "system" and talk.given(m.tools) and m.tools.n > 0 then
      declare(out, m.tools, true)
    elseif role == "user" or role == "system" then
      message(out, named(role, m), m)
    elseif role == "assistant" then
      calls, results = talk.given(m.tool_calls) and m.tool_calls or {}, 0
      attributes(out, "message", named(role, m))
      answer(out, m, thinking)
      close(out, "message")
      out.special "<|end_of_msg|>"
    elseif role == "tool" then
      results = results + 1
      local c = calls[results]
      local name = entry[2] or (talk.given(m.tool) and m.tool) or (talk.given(m.name) and m.name)
        or (c and (talk.given(c["function"]) and c["function"] or c).name)
      if type(name) ~= "string" then error("a result of a tool names no tool and answers no call", 0) end
      message(out, { "role", "tool", "tool", name, "index", tostring(results) }, m)
    else
      error("messages of the role " .. tostring(role) .. " are not rendered", 0)
    end
  end
  if o.tool_choice == "none" then
    internal(out, "tool-choice", "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.")
  end
  if o.add_generation_prompt ~= false then
    attributes(out, "message", { "role", "assistant" })
    attributes(out, thinking and "think" or "response", {})
  end
  return out.list
end

return {
  chat = chat,
  output = talk.formats.kimi_k3,
  -- The size is that of the picture as it came.
  placeholders = { marker = "<|media_pad|>", picture = "<|media_begin|>image $widthx$height<|media_content|>$tokens<|media_end|>" },
  arch = { "KimiK3ForConditionalGeneration" },
  model_type = { "kimi_k3" },
  build = function(top)
    local c, v = top:sub { "text_config" }, top.vision_config
    local H, eps, nh = c:count "hidden_size", c:num "rms_norm_eps", c:count "num_attention_heads"
    local la, V = c.linear_attn_config, c:count "vocab_size"
    local kd, kh, taps = la:count "head_dim", la:count "num_heads", la:count "short_conv_kernel_size"
    local lower = la:num "gate_lower_bound"
    local full = {}
    for _, i in ipairs(la:list "full_attn_layers") do full[i - 1] = true end -- the lists count layers from 1
    for _, i in ipairs(la:list "kda_layers") do
      if full[i - 1] then unsupported("linear_attn_config.kda_layers", "layer " .. i .. " is in both lists") end
    end
    if not la:flag("use_full_rank_gate", true) then unsupported("linear_attn_config.use_full_rank_gate", "is false") end
    if c:text "hidden_act" ~= "situ" then unsupported("hidden_act", c.hidden_act .. " is not implemented (situ is)") end
    local situ = { beta = c:num "activation_situ_beta", linear_beta = c:num "activation_situ_linear_beta" }
    local latent, qr, nope, rd, vd =
      c:count "kv_lora_rank", c:count "q_lora_rank", c:count "qk_nope_head_dim", c:count "qk_rope_head_dim", c:count "v_head_dim"
    if not c:flag("mla_use_nope", true) then unsupported("mla_use_nope", "is false: rotated layers are not described") end
    if not c:flag("mla_use_output_gate", true) then unsupported("mla_use_output_gate", "is false") end
    if not c:flag("latent_moe_use_norm", true) then unsupported("latent_moe_use_norm", "is false") end
    if c:count("moe_layer_freq", 1) ~= 1 then unsupported("moe_layer_freq", "is " .. c.moe_layer_freq) end
    if c:int("num_nextn_predict_layers", 0) ~= 0 then unsupported("num_nextn_predict_layers", "drafting layers are not described") end
    c:opt "num_key_value_heads"
    c:opt "topk_method"
    c:opt "use_grouped_topk"
    local block, dense, Z, I = c:count "attn_res_block_size", c:int "first_k_dense_replace", c:count "routed_expert_hidden_size",
      c:count "moe_intermediate_size"
    context(c:count "max_position_embeddings")
    kimi_tiktoken()

    local function mlp(x, inter)
      local g = linear { x, "gate_proj", out = inter, part = col }
      local u = linear { x, "up_proj", out = inter, part = col }
      return linear { glu { g, u, fn = "situ", p = situ }, "down_proj", out = H, part = row }
    end

    local function kda(x)
      local P, t = kh * kd, {}
      for _, name in ipairs { "q", "k", "v" } do
        t[name] = short_conv { linear { x, name .. "_proj", out = P, part = heads(kh) }, name .. "_conv1d", width = taps, fn = "silu", part = heads(kh),
          dtype = "F32" }
      end
      local g = linear { linear { x, "f_a_proj", out = kd }, "f_b_proj", out = P, part = heads(kh) }
      local beta = act { linear { x, "b_proj", out = kh, part = heads(kh) }, name = "beta", fn = "sigmoid" }
      -- A_log is stored longer than there are heads
      local o = delta_rule { q = t.q, k = t.k, v = t.v, g = g, beta = beta, decay = "channel", A_log = "A_log", A_entries = 128, dt_bias = "dt_bias",
        dtype = "F32", lower = lower, heads = kh, dim = kd, l2norm = 1e-6, scale = kd ^ -0.5 }
      o = gated_norm { o, linear { x, "g_proj", out = P, part = heads(kh) }, "o_norm", dim = kd, eps = eps, fn = "sigmoid", dtype = "F32" }
      return linear { o, "o_proj", out = H, part = row, heads = kh }
    end

    local function mla_layer(x)
      local q = rms_norm { linear { x, "q_a_proj", out = qr }, "q_a_layernorm", eps = 1e-6 }
      q = linear { q, "q_b_proj", out = nh * (nope + rd), part = heads(nh) }
      local ckv, k_pe = split { linear { x, "kv_a_proj_with_mqa", out = latent + rd }, sizes = { latent, rd } }
      local o = mla { q = q, latent_kv = rms_norm { ckv, "kv_a_layernorm", eps = 1e-6 }, k_pe = k_pe, kv_b = "kv_b_proj", heads = nh, nope = nope,
        rope = rd, v_dim = vd, latent = latent, scale = (nope + rd) ^ -0.5 }
      o = o * act { linear { x, "g_proj", out = nh * vd, part = heads(nh) }, name = "gate", fn = "sigmoid" }
      return linear { o, "o_proj", out = H, part = row, heads = nh }
    end

    local function sparse(x)
      local z = linear { x, "routed_expert_down_proj", out = Z, quant = false }
      local y = moe { x, via = z, dim = Z, n = c:count "num_experts", k = c:count "num_experts_per_token", inter = I, gate = "gate",
        bias = "gate.e_score_correction_bias", bias_dtype = "F32", score = c:text "moe_router_activation_func", groups = c:count("num_expert_group", 1),
        groups_kept = c:count("topk_group", 1), renormalize = c:flag "moe_renormalize", renorm_eps = 1e-20, scale = c:num "routed_scaling_factor",
        fn = "situ", p = situ, experts = { at = "experts.%d", gate = "w1", up = "w3", down = "w2" } }
      y = linear { rms_norm { y, "routed_expert_norm", eps = eps }, "routed_expert_up_proj", out = H, quant = false }
      return y + scope("shared_experts", function() return mlp(x, I * c:count "num_shared_experts") end)
    end

    local merge, side, how = v:list("merge_kernel_size", 2), v:count "init_pos_emb_height", v:text("pos_emb_interpolation_mode", "bilinear")
    if merge[1] ~= merge[2] then unsupported("vision_config.merge_kernel_size", "is no square") end
    if v:count "init_pos_emb_width" ~= side then unsupported("vision_config.init_pos_emb_width", "differs from init_pos_emb_height") end
    if how ~= "bilinear" and how ~= "bicubic" then unsupported("vision_config.pos_emb_interpolation_mode", how .. " is not described") end
    vision({ patch = v:count "patch_size", merge = merge[1], channels = 3, raster = true, table = side,
      interpolation = how == "bilinear" and "centres" or how, image_token = top:opt "media_placeholder_token_id" }, function()
      local W, Q, W2 = v:count "vt_hidden_size", v:count "qkv_hidden_size", v:count "vt_intermediate_size"
      local vh, fnv = v:count "vt_num_attention_heads", v:text("activation_func", "gelu_pytorch_tanh")
      if v:flag("attn_bias", false) or v:flag("linear_bias", false) or v:flag("patch_embed_proj_bias", false) then
        unsupported("vision_config.attn_bias", "a tower with biases is not described")
      end
      for _, key in ipairs { "merge_type", "mlp_type", "mm_projector_type", "norm_type", "pos_emb_type",
        "init_pos_emb_time", "text_hidden_size", "projector_hidden_act" } do v:opt(key) end
      local x = scope("vision_tower", function()
        local pos = rope { dim = Q // vh, theta = 10000, style = "pairs", plane = "turns" }
        local x = conv { input "patches", "patch_embed.proj", shape = { W, 3, v.patch_size, v.patch_size } }
        x = x + table { "patch_embed.pos_emb", shape = { side, v.init_pos_emb_width, W }, taps = how == "bilinear" and 4 or 16 }
        x = layers { x, n = v:count "vt_num_hidden_layers", at = "encoder.blocks.%d", each = function(x)
          local qkv = linear { rms_norm { x, "norm0", eps = 2 ^ -7 }, "wqkv", out = 3 * Q, part = heads(vh), pieces = { Q, Q, Q } }
          local q, k, val = split { qkv, sizes = { Q, Q, Q } }
          q, k = apply_rope { q, pos = pos }, apply_rope { k, pos = pos }
          local o = attention { q = q, k = k, v = val, heads = vh, dim = Q // vh, scale = (Q // vh) ^ -0.5 }
          x = x + linear { o, "wo", out = W, part = row }
          local h = act { linear { rms_norm { x, "norm1", eps = 2 ^ -7 }, "mlp.fc0", out = W2, part = col }, fn = fnv }
          return x + linear { h, "mlp.fc1", out = W, part = row }
        end }
        return rms_norm { x, "encoder.final_layernorm", eps = 2 ^ -7 }
      end)
      local mm = v:count "mm_hidden_size" * merge[1] * merge[2]
      local im = linear { reshape { x, dim = mm }, "mm_projector.proj.0", out = mm, quant = false }
      im = linear { act { im, fn = "gelu_erf" }, "mm_projector.proj.2", out = H, quant = false }
      return rms_norm { im, "mm_projector.post_norm", eps = v:num "projector_ln_eps" }
    end)
    top:opt "image_placeholder"
    top:opt "ignore_index"

    return scope("language_model", function()
      local x = pictures(embed { "model.embed_tokens", vocab = V, dim = H })
      x = layers { x, n = c:count "num_hidden_layers", at = "model.layers.%d", each = function(x, i)
        local push = i % block == 0
        local h = rms_norm { mix_residual { x, "self_attention_res", eps = eps, push = push }, "input_layernorm", eps = eps }
        local y = scope("self_attn", function() return (full[i] and mla_layer or kda)(h) end)
        x = push and y or x + y -- the sum starts anew after a push
        h = rms_norm { mix_residual { x, "mlp_res", eps = eps }, "post_attention_layernorm", eps = eps }
        if i < dense then return x + scope("mlp", function() return mlp(h, c:count "intermediate_size") end) end
        return x + scope("block_sparse_moe", function() return sparse(h) end)
      end }
      x = rms_norm { wanted_rows(mix_residual { x, "model.output_attn_res", eps = eps }), "model.norm", eps = eps }
      return logits { x, "lm_head", vocab = V, tied = tied_head { top, c, "lm_head", counts = "inner" } }
    end)
  end,
}

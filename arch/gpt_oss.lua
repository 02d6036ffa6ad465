-- SPDX-License-Identifier: Apache-2.0
--
-- gpt-oss: biases everywhere, one learned sink per head, windows on every second layer, and experts stored as one fused tensor in
-- which gate and up alternate. The router chooses by its logits; the weights are the softmax over the chosen ones.

-- ---- chats: the harmony format, for directories without a template ----

local schema

local function default_text(v)
  if type(v.default) ~= "string" then return talk.json(v.default, talk.compact) end
  return talk.given(v.enum) and v.enum.n > 0 and v.default or '"' .. v.default .. '"'
end

local function typed(v, indent)
  local t = schema(v, indent)
  return v.nullable == true and not (t == "null" or t:sub(-7) == " | null") and t .. " | null" or t
end

-- One of several types: the comments behind it; first_done: its description stands above the property.
local function variant(v, indent, above, first)
  local notes = {}
  if type(v.description) == "string" and v.description ~= above and not (first and above) then notes[1] = v.description end
  if v.default ~= nil then notes[#notes + 1] = "default: " .. default_text(v) end
  return typed(v, indent .. "   ") .. (#notes > 0 and " // " .. table.concat(notes, " ") or "")
end

local function property(out, key, v, required, indent)
  local function line(s) out[#out + 1] = indent .. s .. "\n" end
  local choice = talk.given(v.oneOf) and v.oneOf or nil
  local about = type(v.description) == "string" and v.description or nil
  if type(v.title) == "string" then
    line("// " .. v.title)
    line "//"
  end
  if about and not choice then line("// " .. about) end
  if talk.given(v.examples) and v.examples.n > 0 then
    line "// Examples:"
    for _, x in ipairs(v.examples) do if type(x) == "string" then line('// - "' .. x .. '"') end end
  end
  if choice then
    if about and choice[1] and choice[1].description == about then about = nil end
    if about then line("// " .. about) end
    if v.default ~= nil then line("// default: " .. default_text(v)) end
    line(key .. (required and "" or "?") .. ":")
    for i, x in ipairs(choice) do line(" | " .. variant(x, indent, about, i == 1)) end
    line ","
    return
  end
  line(key .. (required and "" or "?") .. ": " .. typed(v, indent .. "    ") .. ","
    .. (v.default ~= nil and " // default: " .. default_text(v) or ""))
end

local function object(v, indent)
  local out, required = {}, {}
  if type(v.description) == "string" then out[1] = indent .. "// " .. v.description .. "\n" end
  out[#out + 1] = "{\n"
  for _, key in ipairs(talk.given(v.required) and v.required or {}) do required[key] = true end
  if talk.given(v.properties) then
    for _, key in ipairs(talk.keys(v.properties)) do property(out, key, v.properties[key], required[key], indent) end
  end
  return table.concat(out) .. indent .. "}"
end

local plain = { string = "string", number = "number", integer = "number", boolean = "boolean" }

-- A JSON schema as a type of TypeScript.
function schema(v, indent)
  if talk.given(v.oneOf) then
    local out = {}
    for i, x in ipairs(v.oneOf) do out[i] = "\n" .. indent .. " | " .. variant(x, indent, nil, false) end
    return table.concat(out)
  end
  if type(v.type) == "table" and v.type.n and v.type.n > 0 then
    local names = {}
    for i, t in ipairs(v.type) do names[i] = t == "integer" and "number" or t end
    return table.concat(names, " | ")
  end
  if v.type == "object" then return object(v, indent) end
  if v.type == "string" and talk.given(v.enum) and v.enum.n > 0 then
    local values = {}
    for _, x in ipairs(v.enum) do if type(x) == "string" then values[#values + 1] = '"' .. x .. '"' end end
    if #values > 0 then return table.concat(values, " | ") end
  end
  if v.type == "array" then return talk.given(v.items) and schema(v.items, indent) .. "[]" or "Array<any>" end
  return plain[v.type] or "any"
end

-- namespaces: a list of { name, description, tools = a list of { name, description, parameters } }.
local function tools_text(namespaces)
  local sections = { "# Tools" }
  for _, ns in ipairs(namespaces) do
    local out, tools = { "## " .. ns.name .. "\n" }, talk.given(ns.tools) and ns.tools or {}
    for _, l in ipairs(type(ns.description) == "string" and talk.lines(ns.description) or {}) do
      out[#out + 1] = (#tools > 0 and "// " or "") .. l
    end
    if #tools > 0 then
      out[#out + 1] = "namespace " .. ns.name .. " {\n"
      for _, t in ipairs(tools) do
        for _, l in ipairs(type(t.description) == "string" and talk.lines(t.description) or {}) do out[#out + 1] = "// " .. l end
        out[#out + 1] = "type " .. t.name .. (talk.given(t.parameters) and " = (_: " .. schema(t.parameters, "") .. ") => any;\n"
          or " = () => any;\n")
      end
      out[#out + 1] = "} // namespace " .. ns.name
    end
    sections[#sections + 1] = table.concat(out, "\n")
  end
  return table.concat(sections, "\n\n")
end

local function functions_of(o)
  local list = {}
  for i, t in ipairs(talk.given(o.tools) and o.tools or {}) do
    list[i] = talk.given(t["function"]) and t["function"] or t
    if type(list[i].name) ~= "string" then error("a tool has no name", 0) end
  end
  return #list > 0 and { { name = "functions", tools = list } } or nil
end

-- Messages as the format has them: role (of a tool: its name), to, channel, constrain, text.
local function put(out, m)
  out.special "<|start|>"
  out.text(m.role)
  if m.to then out.text(" to=" .. m.to) end
  if m.channel then
    out.special "<|channel|>"
    out.text(m.channel)
  end
  if m.constrain then
    out.text " "
    out.special "<|constrain|>"
    out.text(m.constrain)
  end
  out.special "<|message|>"
  out.text(m.text)
  out.special(m.call and "<|call|>" or "<|end|>")
end

local function system_text(o, has_functions)
  local channels = {}
  for i, c in ipairs(talk.given(o.channels) and o.channels or { "analysis", "commentary", "final" }) do channels[i] = c end
  local head = { talk.given(o.model_identity) and o.model_identity or "You are ChatGPT, a large language model trained by OpenAI.",
    "Knowledge cutoff: " .. (talk.given(o.knowledge_cutoff) and o.knowledge_cutoff or "2024-06") }
  if talk.given(o.current_date) then head[3] = "Current date: " .. o.current_date end
  local effort = talk.given(o.reasoning_effort) and o.reasoning_effort or "medium"
  if effort ~= "low" and effort ~= "medium" and effort ~= "high" then
    error("reasoning_effort must be low, medium or high, not " .. tostring(effort), 0)
  end
  local sections = { table.concat(head, "\n"), "Reasoning: " .. effort }
  if talk.given(o.namespaces) then sections[#sections + 1] = tools_text(o.namespaces) end
  sections[#sections + 1] = "# Valid channels: " .. table.concat(channels, ", ") .. ". Channel must be included for every message."
    .. (has_functions and "\nCalls to these tools must go to the commentary channel: 'functions'." or "")
  return table.concat(sections, "\n\n")
end

local function assistant(list, m, names)
  local text, calls = talk.content(m), talk.given(m.tool_calls) and m.tool_calls or {}
  local r = talk.given(m.reasoning_content) and m.reasoning_content or m.reasoning
  if type(r) == "string" and r ~= "" then list[#list + 1] = { role = "assistant", channel = "analysis", text = r } end
  if text ~= "" then list[#list + 1] = { role = "assistant", channel = #calls > 0 and "commentary" or "final", text = text } end
  for _, c in ipairs(calls) do
    local f = talk.given(c["function"]) and c["function"] or c
    if type(f.name) ~= "string" then error("a tool call has no function name", 0) end
    if type(c.id) == "string" then names[c.id] = f.name end
    names.last = f.name
    local args = type(f.arguments_text) == "string" and f.arguments_text or f.arguments
    list[#list + 1] = { role = "assistant", to = "functions." .. f.name, channel = "commentary", constrain = "json", call = true,
      text = type(args) == "string" and args or talk.json(talk.given(args) and args or {}) }
  end
end

local function result(m, names)
  local name = names[m.tool_call_id] or (talk.given(m.name) and m.name) or names.last
  if type(name) ~= "string" then error("a result of a tool names no tool and answers no call", 0) end
  if name:sub(1, 10) ~= "functions." then name = "functions." .. name end
  if m.channel == null then return { role = name, text = talk.content(m) } end
  return { role = name, to = "assistant", channel = "commentary", text = talk.content(m) }
end

-- The reasoning before the first final answer goes, if an answer is the last the model said.
local function drop_analysis(list)
  local first, last
  for i, m in ipairs(list) do
    if m.role == "assistant" then
      last = m.channel
      if m.channel == "final" and not first then first = i end
    end
  end
  local kept = {}
  for i, m in ipairs(list) do
    if last ~= "final" or i > first or m.channel ~= "analysis" then kept[#kept + 1] = m end
  end
  return kept
end

local function chat(messages, o)
  local out, list, names, functions, instructions = talk.segments(), {}, {}, functions_of(o), {}
  for _, m in ipairs(messages) do
    if m.role == "system" or m.role == "developer" then
      if #list > 0 then error("a " .. m.role .. " message after others is not rendered", 0) end
      local text = talk.content(m)
      if text ~= "" then instructions[#instructions + 1] = text end
    elseif m.role == "user" then
      list[#list + 1] = { role = "user", text = talk.content(m) }
    elseif m.role == "assistant" then
      assistant(list, m, names)
    elseif m.role == "tool" then
      list[#list + 1] = result(m, names)
    else
      error("messages of the role " .. tostring(m.role) .. " are not rendered", 0)
    end
  end
  if o.system_message ~= false then put(out, { role = "system", text = system_text(o, functions ~= nil) }) end
  local developer = {}
  if #instructions > 0 then developer[1] = "# Instructions\n\n" .. table.concat(instructions, "\n\n") end
  if functions then developer[#developer + 1] = tools_text(functions) end
  if #developer > 0 then put(out, { role = "developer", text = table.concat(developer, "\n\n") }) end
  for _, m in ipairs(o.keep_analysis == true and list or drop_analysis(list)) do put(out, m) end
  if o.add_generation_prompt ~= false then
    out.special "<|start|>"
    out.text "assistant"
  end
  return out.list
end

return {
  chat = chat,
  output = talk.formats.harmony,
  arch = { "GptOssForCausalLM" },
  model_type = { "gpt_oss" },
  build = function(c)
    local H, hd, eps = c:count "hidden_size", c:count "head_dim", c:num "rms_norm_eps"
    local nq, nkv, n = c:count "num_attention_heads", c:count "num_key_value_heads", c:count "num_hidden_layers"
    local bias, window, limit = c:flag("attention_bias", true), c:count "sliding_window", c:num("swiglu_limit", 7.0)
    local k = c:count "num_experts_per_tok"
    if c:count("experts_per_token", k) ~= k then unsupported("experts_per_token", "differs from num_experts_per_tok") end
    if c:text("hidden_act", "silu") ~= "silu" then unsupported("hidden_act", c.hidden_act .. ": the gate of this family is its own") end
    local pos = rope { rope_config(c), dim = hd }                  -- yarn with truncate = false: the ramp ends between two angles
    context(c:count "max_position_embeddings")
    c:opt "initial_context_length"                                 -- same as the scaling's original_max_position_embeddings
    for _, key in ipairs { "output_router_logits", "router_aux_loss_coef" } do c:opt(key) end -- training only

    local kinds = c:list("layer_types", n, {})
    local function is_local(i)
      local kind = kinds[i + 1]
      if kind == nil then return i % 2 == 0 end
      if kind ~= "sliding_attention" and kind ~= "full_attention" then unsupported("layer_types", tostring(kind) .. " is not implemented") end
      return kind == "sliding_attention"
    end

    local function self_attn(x, i)
      local q = linear { x, "q_proj", out = nq * hd, part = heads(nq), bias = bias }
      local key = linear { x, "k_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      local v = linear { x, "v_proj", out = nkv * hd, part = heads(nkv), bias = bias }
      q, key = apply_rope { q, "q_rope", pos = pos, dim = hd }, apply_rope { key, "k_rope", pos = pos, dim = hd }
      local o = attention { q = q, k = key, v = v, heads = nq, kv_heads = nkv, dim = hd, scale = hd ^ -0.5,
        window = is_local(i) and window or nil, sinks = "sinks" }
      return linear { o, "o_proj", out = H, part = row, bias = bias }
    end

    local function sparse(x)
      return moe { x, n = c:count "num_local_experts", k = k, inter = c:count "intermediate_size", gate = "router", gate_bias = true,
        score = "logits", fn = "swigluoai", p = { alpha = 1.702, limit = limit },
        experts = { packed = "experts", gate_up = "gate_up_proj", down = "down_proj", transposed = true, interleaved = true, bias = true } }
    end

    local x = embed { "model.embed_tokens", vocab = c:count "vocab_size", dim = H }
    x = layers { x, n = n, at = "model.layers.%d", each = function(x, i)
      local h = rms_norm { x, "input_layernorm", eps = eps }
      x = x + scope("self_attn", function() return self_attn(h, i) end)
      h = rms_norm { x, "post_attention_layernorm", eps = eps }
      return x + scope("mlp", function() return sparse(h) end)
    end }
    x = rms_norm { wanted_rows(x), "model.norm", eps = eps }
    return logits { x, "lm_head", vocab = c.vocab_size, tied = c:flag("tie_word_embeddings", false) }
  end,
}

-- SPDX-License-Identifier: Apache-2.0
--
-- What architecture files need to render chats and to say how a model's output is read: `talk`. Loaded after prelude.lua and blocks.lua,
-- with the same trust; part of what the SHA-256 of an architecture covers. It describes no tensor.

talk = {}

-- ---- values of JSON ----

function talk.given(v) return v ~= nil and v ~= null end

-- Keys of an object as they stood in the request; of a table made here, sorted.
function talk.keys(t, sorted)
  local m, keys = getmetatable(t), {}
  if m and m.keys and not sorted then return m.keys end
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys)
  return keys
end

local function is_list(t) return getmetatable(t) == nil and (t.n ~= nil or #t > 0) end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b", ["\f"] = "\\f" }

local function quoted(s)
  local out, from = { '"' }, 1
  for i = 1, #s do
    local c = s:sub(i, i)
    local e = escapes[c] or (c:byte() < 32 and string.format("\\u%04x", c:byte()))
    if e then
      out[#out + 1] = s:sub(from, i - 1)
      out[#out + 1] = e
      from = i + 1
    end
  end
  out[#out + 1] = s:sub(from)
  out[#out + 1] = '"'
  return table.concat(out)
end

local function number(v)
  if math.type(v) == "integer" then return tostring(v) end
  for digits = 15, 17 do
    local s = string.format("%." .. digits .. "g", v)
    if tonumber(s) == v then return math.type(tonumber(s)) == "integer" and s .. ".0" or s end
  end
end

-- JSON text. how: sort = keys sorted at every level; comma, colon = separators (", " and ": " as Python writes them).
function talk.json(v, how)
  how = how or {}
  local comma, colon = how.comma or ", ", how.colon or ": "
  local function write(x)
    if x == nil or x == null then return "null" end
    if type(x) == "string" then return quoted(x) end
    if type(x) == "number" then return number(x) end
    if type(x) ~= "table" then return tostring(x) end
    local out = {}
    if is_list(x) then
      for i = 1, x.n or #x do out[i] = write(x[i]) end
      return "[" .. table.concat(out, comma) .. "]"
    end
    for i, k in ipairs(talk.keys(x, how.sort)) do out[i] = quoted(k) .. colon .. write(x[k]) end
    return "{" .. table.concat(out, comma) .. "}"
  end
  return write(v)
end
talk.compact = { comma = ",", colon = ":" }

-- ---- text ----

function talk.lines(s)
  local out, from = {}, 1
  for i = 1, #s do
    if s:byte(i) == 10 then
      out[#out + 1] = s:sub(from, i - 1)
      from = i + 1
    end
  end
  if from <= #s then out[#out + 1] = s:sub(from) end
  return out
end

local function blank(c) return c == 32 or (c >= 9 and c <= 13) end

function talk.strip(s)
  local i, k = 1, #s
  while i <= k and blank(s:byte(i)) do i = i + 1 end
  while k >= i and blank(s:byte(k)) do k = k - 1 end
  return s:sub(i, k)
end

-- Every character of `from` that stands in the table becomes its entry.
function talk.replace(s, map)
  local out = {}
  for i = 1, #s do out[i] = map[s:sub(i, i)] or s:sub(i, i) end
  return table.concat(out)
end

-- The text of a message: a string, or parts of type text one after the other. Other parts are an error that names them.
function talk.content(message)
  local c = message.content
  if not talk.given(c) then return "" end
  if type(c) == "string" then return c end
  local out = {}
  for _, part in ipairs(c) do
    if type(part) ~= "table" or part.type ~= "text" or type(part.text) ~= "string" then
      error("content of type " .. tostring(type(part) == "table" and part.type or type(part)) .. " is not rendered", 0)
    end
    out[#out + 1] = part.text
  end
  return table.concat(out)
end

-- The same into segments, where a part of type image becomes one special segment.
function talk.write(out, message, image)
  local c, text = message.content, {}
  if type(c) ~= "table" or c == null then return out.text(talk.content(message)) end
  for _, part in ipairs(c) do
    if type(part) == "table" and part.type == "image" then
      out.text(table.concat(text))
      out.special(image)
      text = {}
    else
      text[#text + 1] = talk.content { content = { part } }
    end
  end
  out.text(table.concat(text))
end

-- A list of segments under construction: text is tokenized as text, special as one token.
function talk.segments()
  local s = { list = {} }
  function s.text(t) if t ~= "" then s.list[#s.list + 1] = { text = t, special = false } end end
  function s.special(t) s.list[#s.list + 1] = { text = t, special = true } end
  return s
end

-- ---- how outputs are read (docs/arch-files.md) ----

local function dsml(name, section)
  return { name = name, trim = true, needs = "｜DSML｜", tokens = { "｜DSML｜" },
    reasoning = { open = "<think>", close = "</think>" },
    tools = { section_open = "<｜DSML｜" .. section .. ">", section_close = "</｜DSML｜" .. section .. ">", open = "<｜DSML｜invoke",
      close = "</｜DSML｜invoke>", body = 'name="$name">$args',
      argument = '<｜DSML｜parameter name="$key" string="$string">$value</｜DSML｜parameter>' } }
end

talk.formats = {
  think = { name = "think", trim = true, reasoning = { open = "<think>", close = "</think>" } },
  hermes = { name = "hermes", trim = true, needs = "<tool_call>",
    reasoning = { open = "<think>", close = "</think>" },
    tools = { open = "<tool_call>", close = "</tool_call>", body = "$call" } },
  qwen3_coder = { name = "qwen3-coder", trim = true, template = "<function=",
    reasoning = { open = "<think>", close = "</think>" },
    tools = { open = "<tool_call>", close = "</tool_call>", body = "<function=$name>$args</function>",
      argument = "<parameter=$key>$value</parameter>", trim_newline = true } },
  glm = { name = "glm", trim = true, needs = "<arg_key>", tokens = { "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>" },
    reasoning = { open = "<think>", close = "</think>" },
    tools = { open = "<tool_call>", close = "</tool_call>", body = "$name$args",
      argument = "<arg_key>$key</arg_key>$_<arg_value>$value</arg_value>" } },
  llama3 = { name = "llama3", trim = true, needs = "<|python_tag|>", tokens = { "<|python_tag|>" },
    tools = { bare = true, open = "<|python_tag|>", body = "$call" } },
  kimi_k2 = { name = "kimi-k2", trim = true, needs = "<|tool_call_begin|>",
    tokens = { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
      "<|tool_call_end|>" },
    reasoning = { open = "<think>", close = "</think>", ends_at_tools = true },
    tools = { section_open = "<|tool_calls_section_begin|>", section_close = "<|tool_calls_section_end|>", open = "<|tool_call_begin|>",
      close = "<|tool_call_end|>", id_prefix = "functions.", body = "$id<|tool_call_argument_begin|>$json" } },
  deepseek_v3 = { name = "deepseek-v3", trim = true, needs = "<｜tool▁call▁begin｜>",
    tokens = { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>" },
    reasoning = { open = "<think>", close = "</think>" },
    tools = { section_open = "<｜tool▁calls▁begin｜>", section_close = "<｜tool▁calls▁end｜>", open = "<｜tool▁call▁begin｜>",
      close = "<｜tool▁call▁end｜>",
      body = { "function<｜tool▁sep｜>$name\n```json\n$json\n```", "$name<｜tool▁sep｜>$json" } } }, -- V3 and R1; V3.1
  deepseek_v32 = dsml("deepseek-v3.2", "function_calls"),
  deepseek_v4 = dsml("deepseek-v4", "tool_calls"),
  kimi_k3 = { name = "kimi-k3", tokens = { "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>" },
    reasoning = { open = "<|open|>think<|sep|>", close = "<|close|>think<|sep|>" },
    skip = { "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>" },
    tools = { section_open = "<|open|>tools<|sep|>", section_close = "<|close|>tools<|sep|>", open = "<|open|>call",
      close = "<|close|>call<|sep|>", unescape = true,
      body = { 'tool="$name" index="$skip"<|sep|><|open|>json type="object"<|sep|>$json<|close|>json<|sep|>',
        'tool="$name" index="$skip"<|sep|>$args' },
      argument = '<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>' } },
  harmony = { name = "harmony", tokens = { "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>" },
    messages = { start = "<|start|>", channel = "<|channel|>", body = "<|message|>", ends = { "<|end|>", "<|return|>", "<|call|>" },
      role = "assistant", call_prefix = "functions.", reasoning = { "analysis" }, content = { "final", "commentary" } } },
}

-- Which tokens stand for a picture, where several files have the same.
talk.placeholders = { qwen = { marker = "<|image_pad|>", by_grid = true } }

-- ---- what the program calls ----

function day0_describe_chat()
  return { chat = type(arch_file.chat) == "function", output = arch_file.output, placeholders = arch_file.placeholders }
end

function day0_chat(messages, options) return arch_file.chat(messages, options) end

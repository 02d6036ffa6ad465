-- SPDX-License-Identifier: Apache-2.0
--
-- The API of architecture files (docs/arch-files.md). It computes nothing: it records a trace of inputs, weights, states and
-- nodes as plain tables, which the program translates into a graph and checks, item by item. Nothing here is trusted.

-- ---- errors: the program tells three kinds apart by these prefixes ----

local function missing(key) error("config key missing: " .. key, 0) end
function unsupported(key, text) error("config value unsupported: " .. key .. ": " .. text, 0) end

-- ---- config.json, strict ----

-- Keys that describe training, files or other programs, and change nothing in what the model computes. Token ids are read elsewhere.
local ignored = {}
for _, k in ipairs {
  "_attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled", "_name_or_path", "add_cross_attention",
  "architectures", "attention_dropout", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
  "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
  "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
  "forced_bos_token_id", "forced_eos_token_id", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
  "is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length", "model_type", "no_repeat_ngram_size",
  "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
  "pad_token_id", "prefix", "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
  "resid_pdrop", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
  "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
  "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
} do ignored[k] = true end

local views = {}                    -- every view made, in order
local is_view = {}                  -- view -> its record
local view

local methods = {}

local function read(v, key)
  local r = is_view[v]
  r.seen[key] = true
  local x = r.raw[key]
  if x == nil or x == null then return nil end
  if type(x) == "table" and x.n ~= #x then                 -- an object; arrays carry their length
    r.children[key] = r.children[key] or view(x, r.where .. key .. ".")
    return r.children[key]
  end
  return x
end

local function need(v, key)
  local x = read(v, key)
  if x == nil then missing(is_view[v].where .. key) end
  return x
end

local function typed(v, key, default, convert, what)
  local x = read(v, key)
  if x == nil then
    if default == nil then missing(is_view[v].where .. key) end
    return default
  end
  local y = convert(x)
  if y == nil then
    local shown = type(x) == "table" and "a list or object" or type(x) == "string" and '"' .. string.sub(x, 1, 40) .. '"' or tostring(x)
    unsupported(is_view[v].where .. key, "is " .. shown .. ", must be " .. what)
  end
  return y
end

local function to_integer(x) return type(x) == "number" and math.tointeger(x) or nil end
local function to_count(x)
  local i = to_integer(x)
  return i and i >= 1 and i <= 2147483647 and i or nil
end
local function to_number(x) return type(x) == "number" and x + 0.0 or nil end
local function to_flag(x) if type(x) == "boolean" then return x end return nil end
local function to_text(x) return type(x) == "string" and x or nil end

-- With a default the key may be absent (or null, which means absent); without one its absence is an error that names it.
function methods.opt(v, key, default)
  local x = read(v, key)
  if x == nil then return default end
  return x
end
function methods.count(v, key, default) return typed(v, key, default, to_count, "an integer from 1 to 2147483647") end
function methods.int(v, key, default) return typed(v, key, default, to_integer, "an integer") end
function methods.num(v, key, default) return typed(v, key, default, to_number, "a number") end
function methods.flag(v, key, default) return typed(v, key, default, to_flag, "true or false") end
function methods.text(v, key, default) return typed(v, key, default, to_text, "a string") end

function view(raw, where)
  local v = setmetatable({}, { __index = function(self, key) return methods[key] or need(self, key) end,
    __newindex = function() error("config is read-only", 2) end })
  is_view[v] = { raw = raw, where = where, seen = {}, children = {} }
  views[#views + 1] = is_view[v]
  return v
end

local function unread()
  local list = {}
  for _, r in ipairs(views) do
    for key, x in pairs(r.raw) do
      if not r.seen[key] and x ~= null and not (r.where == "" and ignored[key]) then list[#list + 1] = r.where .. key end
    end
  end
  table.sort(list)
  return list
end

-- Base and scaling of the rotation: rope_theta and rope_scaling, or rope_parameters, which holds both.
function rope_config(c)
  local p = c:opt "rope_parameters"
  local old = c:opt "rope_scaling"
  local r = { theta = c:num("rope_theta", 10000.0), scaling = old, partial = c:num("partial_rotary_factor", 1.0) }
  if p == nil then return r end
  if not is_view[p] then unsupported("rope_parameters", "is no object") end
  if old ~= nil then unsupported("rope_parameters", "config.json holds rope_scaling too") end
  local theta = p:num("rope_theta", r.theta)
  if c:opt "rope_theta" ~= nil and theta ~= r.theta then
    unsupported("rope_parameters.rope_theta", "is " .. theta .. " but rope_theta is " .. r.theta)
  end
  return { theta = theta, scaling = p, partial = p:num("partial_rotary_factor", r.partial) }
end

local function scaling_of(s)
  if s == nil then return { type = "default" } end
  if not is_view[s] then unsupported("rope_scaling", "is no object") end
  local where = is_view[s].where
  local new, old = s:opt "rope_type", s:opt "type"
  if new ~= nil and old ~= nil and new ~= old then unsupported(where .. "rope_type", "differs from " .. where .. "type") end
  local kind = new
  if kind == nil then kind = old end
  if kind == nil or kind == "default" then return { type = "default" } end
  if kind == "linear" then return { type = kind, factor = s:num "factor" } end
  if kind == "llama3" then
    return { type = kind, factor = s:num "factor", low = s:num "low_freq_factor", high = s:num "high_freq_factor",
      original = s:num "original_max_position_embeddings" }
  end
  unsupported(where .. "rope_type", tostring(kind) .. " is not implemented (default, linear and llama3 are)")
end

-- ---- the trace ----

local items, prefix, names = {}, {}, {}
local layer = -1
local model = { tied = false }
local inputs = {}
local kv_of = {}
local table_of_embedding

-- partition marks of weights
col, row, rep, vocab = { "col" }, { "row" }, { "rep" }, { "vocab" }
function heads(n) return { "heads", n } end

local function path(name)
  if #prefix == 0 then return name end
  return table.concat(prefix, ".") .. "." .. name
end

local last_number = {}
local function unique(name)
  local n, k = name, last_number[name] or 1
  while names[n] do
    k = k + 1
    n = name .. "_" .. k
  end
  last_number[name] = k
  names[n] = true
  return n
end

local function add(item)
  items[#items + 1] = item
  return #items
end

local V = {}
V.__index = V
local function check(v, what)
  if getmetatable(v) ~= V then error(what .. " is no value of the graph", 3) end
  return v
end

-- One operator. `dim` is the last dimension of the result, nil when there is none.
local function node(op, ins, attrs, name, dim, rows)
  local item = { k = "node", op = op, inputs = ins, attrs = attrs, layer = layer, probe = name ~= nil, name = unique(name or path(op)) }
  local id = add(item)
  return dim and setmetatable({ id = id, item = item, dim = dim, rows = rows }, V) or nil
end

local function input(role)
  inputs[role] = inputs[role] or add { k = "input", role = role, name = unique(role) }
  return inputs[role]
end

local function weight(name, shape, mark, quant, units)
  if names[name] then error("the weight " .. name .. " is described twice", 3) end
  names[name] = true
  mark = mark or rep
  return add { k = "weight", name = name, shape = shape, part = mark[1], units = mark[2] or units or 0, quant = quant or false,
    layer = layer }
end

V.__add = function(a, b)
  check(a, "the left side of +")
  check(b, "the right side of +")
  if a.dim ~= b.dim then error("+ of " .. a.dim .. " and " .. b.dim .. " wide values", 2) end
  return node("add", { a.id, b.id }, {}, path "add", a.dim, a.rows)
end

-- ---- structure ----

function scope(name, f)
  prefix[#prefix + 1] = name
  local r = table.pack(f())
  prefix[#prefix] = nil
  return table.unpack(r, 1, r.n)
end

-- The value that `each` returns is the block's output and gets the block's name.
function layers(a)
  local x, first = a[1], a.first or 0
  if a.n > 10000 then unsupported("num_hidden_layers", a.n .. " layers, at most 10000") end
  for i = first, first + a.n - 1 do
    layer = i
    local name = string.format(a.at, i)
    x = check(scope(name, function() return a.each(x, i) end), "the result of a layer")
    if x.item and x.item.layer == i then
      names[x.item.name] = nil
      x.item.name, x.item.probe = unique(name), true
    end
  end
  layer = -1
  model.layers = (model.layers or 0) + a.n
  return x
end

-- Facts about the model that no operator shows.
function context(n) model.positions = n end

-- ---- operators ----

function embed(a)
  local name = path(a[1])
  table_of_embedding = weight(name .. ".weight", { a.vocab, a.dim }, vocab)
  model.hidden, model.vocab = a.dim, a.vocab
  return node("embed", { input "ids", table_of_embedding }, {}, name, a.dim, "T")
end

function linear(a)
  local x, name = check(a[1], "the input of linear"), path(a[2])
  local mark = a.part or rep
  local w = weight(name .. ".weight", { a.out, x.dim }, mark, a.quant ~= false, mark == row and x.heads or nil)
  -- the bias of a row cut is added once, after the sum
  local b = a.bias and weight(name .. ".bias", { a.out }, mark == row and rep or mark) or nil
  return node("linear", { x.id, w, b }, {}, name, a.out, x.rows)
end

function rms_norm(a)
  local x, name = check(a[1], "the input of rms_norm"), path(a[2])
  local dim = a.dim or x.dim
  local w = weight(name .. ".weight", { dim }, a.part)
  local y = node("rms_norm", { x.id, w }, { eps = a.eps, dim = dim ~= x.dim and dim or nil, plus_one = a.plus_one and 1 or nil }, name,
    x.dim, x.rows)
  y.heads = x.heads
  return y
end

-- One table of angles, shared by all layers that rotate alike. Its frequencies are computed by the program in float32.
function rope(a)
  local style = a.style or "half"
  if style ~= "half" and style ~= "pairs" then error("rope style must be half or pairs", 2) end
  if a.dim % 2 ~= 0 or a.dim > 65536 then unsupported("head_dim", "heads of " .. a.dim .. " cannot be rotated in pairs (even, at most 65536)") end
  if not (a.theta > 0 and a.theta < 1e30) then unsupported("rope_theta", "is " .. a.theta .. ", must be positive") end
  local saved, saved_prefix = layer, prefix
  layer, prefix = -1, {}
  local f = add { k = "rope", name = unique "rope.inv_freq", dim = a.dim, theta = a.theta, scaling = scaling_of(a.scaling) }
  local t = node("rope_table", { input "positions", f }, {}, "rope.table", a.dim, "T")
  t.item.probe = false
  t.style, t.offset = style, a.offset or 0
  layer, prefix = saved, saved_prefix
  return t
end

function apply_rope(a)
  local x, pos = check(a[1], "the input of apply_rope"), check(a.pos, "pos of apply_rope")
  local dim = a.dim or pos.dim
  return node("rope", { x.id, pos.id }, { dim = dim, style = pos.style == "pairs" and 1 or nil, offset = pos.offset > 0 and pos.offset or nil },
    path(a[2] or "rope"), x.dim, x.rows)
end

-- Stores k and v in the pages of this layer, then attends to everything stored that the mask shows.
function attention(a)
  local q, k, v = check(a.q, "q of attention"), check(a.k, "k of attention"), check(a.v, "v of attention")
  local n, kv, dim, v_dim = a.heads, a.kv_heads or a.heads, a.dim, a.v_dim or a.dim
  if n % kv ~= 0 then unsupported("num_key_value_heads", kv .. " does not divide " .. n .. " heads") end
  if a.mask ~= nil and a.mask ~= "causal" then error("attention mask must be causal", 2) end
  if layer < 0 then error("attention outside of layers", 2) end
  if kv_of[layer] then error("a second attention in layer " .. layer, 2) end
  kv_of[layer] = true
  local at = "kv." .. layer .. "."
  local ks = add { k = "state", which = "k", name = unique(at .. "k"), layer = layer, kv_heads = kv, dim = dim }
  local vs = add { k = "state", which = "v", name = unique(at .. "v"), layer = layer, kv_heads = kv, dim = v_dim }
  local where = { input "positions", input "seq_of", input "page_table" }
  node("kv_store", { k.id, v.id, ks, vs, where[1], where[2], where[3] }, { kv_heads = kv, dim = dim, v_dim = v_dim ~= dim and v_dim or nil })
  local y = node("attention", { q.id, ks, vs, where[1], where[2], where[3] }, { heads = n, kv_heads = kv, dim = dim,
    v_dim = v_dim ~= dim and v_dim or nil, scale = a.scale, window = a.window }, path(a.name or "attn"), n * v_dim, q.rows)
  y.heads = n
  model.heads, model.kv_heads, model.head_dim = n, kv, dim
  return y
end

function glu(a)
  local g, u = check(a[1], "the gate of glu"), check(a[2], "the input of glu")
  if a.fn ~= "silu" then unsupported("hidden_act", tostring(a.fn) .. " is not implemented (silu is)") end
  model.intermediate = math.max(model.intermediate or 0, g.dim)
  return node("glu", { g.id, u.id }, {}, path(a.name or "act"), g.dim, g.rows)
end

-- Only the rows whose logits are wanted go on. A norm gives the same bits before and after, and is cheaper after.
function wanted_rows(x)
  check(x, "the input of wanted_rows")
  if x.rows == "R" then return x end
  local y = node("gather_rows", { x.id, input "rows" }, {}, "wanted_rows", x.dim, "R")
  y.item.probe = false
  return y
end

function logits(a)
  local x, name = wanted_rows(check(a[1], "the input of logits")), path(a[2])
  local w
  if a.tied then
    if not table_of_embedding then error("tied logits without an embedding", 2) end
    w, model.tied = table_of_embedding, true
  else
    w = weight(name .. ".weight", { a.vocab, x.dim }, vocab, a.quant or false)
  end
  return node("linear", { x.id, w }, {}, name, a.vocab, x.rows)
end

-- ---- what the program calls ----

local function list(x)
  if type(x) == "string" then return { x } end
  return type(x) == "table" and x or {}
end

function day0_describe()
  if type(arch_file) ~= "table" or type(arch_file.build) ~= "function" then
    error("an architecture file must return a table with a function build", 0)
  end
  return { arch = list(arch_file.arch), model_type = list(arch_file.model_type), drafted = arch_file.drafted == true }
end

function day0_trace(config, architecture)
  local c = view(config, "")
  local q = c:opt "quantization_config"
  if q ~= nil then
    local method = is_view[q] and q:opt "quant_method" or nil
    unsupported("quantization_config", (method and tostring(method) or "a quantised checkpoint") .. " is not implemented")
  end
  local y = arch_file.build(c, architecture)
  if getmetatable(y) ~= V or y.rows ~= "R" then error("build must return what logits gave", 0) end
  return { items = items, model = model, unread = unread(), result = y.id }
end

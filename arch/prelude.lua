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
  "compression_config", "pad_token_id", "prefix", "quantization_config", "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
  "resid_pdrop", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
  "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
  "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
} do ignored[k] = true end

local views = {}                    -- every view made, in order
local is_view = {}                  -- view -> its record
local view

local methods = {}

-- A nested view (c:sub) reads through to the one around it, and a key read at one level counts as read at both.
local notes, noted = {}, {}         -- what config.json says twice, and not alike
local function read(v, key)
  local r = is_view[v]
  local x, from
  while r do
    r.seen[key] = true
    if type(x) == "boolean" and r.raw[key] == not x and not noted[from .. key] then
      noted[from .. key] = true
      notes[#notes + 1] = { key = from .. key, text = "is " .. tostring(x) .. ", which counts, but " .. r.where .. key .. " is " .. tostring(not x) }
    end
    if x == nil then
      from = r.where
      x = r.raw[key]
      if x == null then x = nil end
      if type(x) == "table" and x.n ~= #x then               -- an object; arrays carry their length
        r.children[key] = r.children[key] or view(x, r.where .. key .. ".")
        x = r.children[key]
      end
    end
    r = r.around
  end
  return x
end

local function need(v, key)
  local x = read(v, key)
  if x == nil then missing(is_view[v].where .. key) end
  return x
end

local function wrong_type(v, key, x, what)
  local shown = type(x) == "table" and "a list or object" or type(x) == "string" and '"' .. string.sub(x, 1, 40) .. '"' or tostring(x)
  unsupported(is_view[v].where .. key, "is " .. shown .. ", must be " .. what)
end

local function typed(v, key, default, convert, what)
  local x = read(v, key)
  if x == nil then
    if default == nil then missing(is_view[v].where .. key) end
    return default
  end
  local y = convert(x)
  if y == nil then wrong_type(v, key, x, what) end
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
-- Whether the key stands there, null included: where null says "none" and absence a default.
function methods.states(v, key)
  read(v, key)
  return is_view[v].raw[key] ~= nil
end
function methods.count(v, key, default) return typed(v, key, default, to_count, "an integer from 1 to 2147483647") end
function methods.int(v, key, default) return typed(v, key, default, to_integer, "an integer") end
function methods.num(v, key, default) return typed(v, key, default, to_number, "a number") end
function methods.flag(v, key, default) return typed(v, key, default, to_flag, "true or false") end
function methods.text(v, key, default) return typed(v, key, default, to_text, "a string") end
-- A list, of n elements if n is given.
function methods.list(v, key, n, default)
  local x = read(v, key)
  if x == nil then
    if default == nil then missing(is_view[v].where .. key) end
    return default
  end
  if type(x) ~= "table" or is_view[x] then unsupported(is_view[v].where .. key, "is no list") end
  if n and #x ~= n then unsupported(is_view[v].where .. key, "has " .. #x .. " elements, must have " .. n) end
  return x
end
-- The nested object of the first of these dotted names that is there, or c itself.
function methods.sub(v, names)
  for _, name in ipairs(names) do
    local at, first = v, 1
    for k = 1, string.len(name) + 1 do
      if at and (k > string.len(name) or string.byte(name, k) == 46) then
        local key = string.sub(name, first, k - 1)
        local x = is_view[at].raw[key]
        local child = type(x) == "table" and x.n ~= #x and read(at, key) or nil
        if child then is_view[child].around = is_view[at] end
        at, first = child, k + 1
      end
    end
    if at and at ~= v then return at end
  end
  return v
end

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
      if not r.seen[key] and x ~= null and not ignored[key] then list[#list + 1] = r.where .. key end
    end
  end
  table.sort(list)
  return list
end

-- Base and scaling of the rotation in every spelling: rope_theta beside rope_scaling or rope_parameters, or in it; either may hold one
-- object for each kind of layer. Result: theta, scaling, partial, sections, interleaved, softmax (factor of the attention scale).
function rope_config(c, kind)
  local p = c:opt "rope_parameters"
  local old = c:opt "rope_scaling"
  local r = { theta = c:num("rope_theta", 10000.0), partial = c:num("partial_rotary_factor", 1.0), softmax = 1.0 }
  local at = p ~= nil and "rope_parameters" or "rope_scaling"
  if p ~= nil and old ~= nil then unsupported("rope_parameters", "config.json holds rope_scaling too") end
  if p == nil then p = old end
  if p ~= nil then
    if not is_view[p] then unsupported(at, "is no object") end
    local named = kind or "full_attention"                   -- one object for each kind of layer, even if there is one kind only
    local inner = is_view[p].raw[named]
    if type(inner) == "table" and inner.n ~= #inner then p = p:opt(named) end
    local theta = p:num("rope_theta", r.theta)
    if is_view[p].raw.rope_theta ~= nil and c:opt "rope_theta" ~= nil and theta ~= r.theta and not kind then
      unsupported(at .. ".rope_theta", "is " .. theta .. " but rope_theta is " .. r.theta)
    end
    r.theta, r.scaling, r.partial = theta, p, p:num("partial_rotary_factor", r.partial)
  end
  local s = r.scaling
  if s ~= nil then
    is_view[s].longest = c:opt "max_position_embeddings"
    is_view[s].original = c:opt "original_max_position_embeddings"
    r.sections = s:opt "mrope_section"
    r.interleaved = s:flag("mrope_interleaved", false)
    local all, factor = s:num("mscale_all_dim", 0.0), s:num("factor", 1.0)
    if all ~= 0 and factor > 1 then r.softmax = (0.1 * all * math.log(factor) + 1) ^ 2 end
  end
  return r
end

local function positive(x, where)
  if not (x > 0 and x < 1e30) then unsupported(where, "is " .. x .. ", must be positive") end
  return x
end

local function mscale(factor, k) return factor > 1 and 0.1 * k * math.log(factor) + 1 or 1.0 end

local scalings = {}
function scalings.linear(s) return { type = "linear", factor = s:num "factor" } end
function scalings.llama3(s)
  return { type = "llama3", factor = s:num "factor", low = s:num "low_freq_factor", high = s:num "high_freq_factor",
    original = s:num "original_max_position_embeddings" }
end
-- As long as the context stays within max_position_embeddings, a dynamic base is the plain one.
function scalings.dynamic(s, a)
  local alpha = s:num("alpha", 0.0)
  s:num("factor", 1.0)
  if alpha > 0 then a.theta = a.theta * alpha ^ (a.dim / (a.dim - 2)) end
  return { type = "default" }
end
function scalings.yarn(s)
  local r = is_view[s]
  local factor = positive(s:num "factor", r.where .. "factor")
  local m, all = s:num("mscale", 0.0), s:num("mscale_all_dim", 0.0)
  local attention = s:num("attention_factor", 0.0)
  if attention == 0 then
    attention = m ~= 0 and all ~= 0 and mscale(factor, m) / mscale(factor, all) or mscale(factor, 1)
  end
  return { type = "yarn", factor = factor, original = s:num("original_max_position_embeddings", to_number(r.original) or to_number(r.longest)),
    fast = s:num("beta_fast", 32.0), slow = s:num("beta_slow", 1.0), truncate = s:flag("truncate", true), attention = attention }
end
scalings.deepseek_yarn = scalings.yarn
-- The short factors hold up to the original length, and the context ends there: beyond it the reference changes every angle at once.
function scalings.longrope(s, a)
  local r = is_view[s]
  local original = s:num("original_max_position_embeddings", to_number(r.original) or to_number(r.longest))
  local longest = to_number(r.longest) or original
  local factor = s:num("factor", longest / positive(original, r.where .. "original_max_position_embeddings"))
  local attention = s:num("attention_factor", 0.0)
  if attention == 0 then attention = factor > 1 and math.sqrt(1 + math.log(factor) / math.log(original)) or 1.0 end
  local short, long = s:list("short_factor", a.dim // 2), s:list("long_factor", a.dim // 2)
  if not a.long then a.limit = math.tointeger(original) end
  return { type = "factors", factors = a.long and long or short, attention = attention }
end
scalings.su = scalings.longrope
-- Angles for the first part of the head in the exponents of the whole, none for the rest.
function scalings.proportional(s, a)
  local factor = s:num("factor", 1.0)
  if factor ~= 1 then unsupported(is_view[s].where .. "factor", "is " .. factor .. " with proportional") end
  return { type = "proportional", live = math.floor(s:num("partial_rotary_factor", 1.0) * a.dim / 2) }
end

local function scaling_of(s, a)
  if s == nil then return { type = "default" } end
  if not is_view[s] then unsupported("rope_scaling", "is no object") end
  local where = is_view[s].where
  local new, old = s:opt "rope_type", s:opt "type"
  if new ~= nil and old ~= nil and new ~= old and old ~= "mrope" then
    unsupported(where .. "rope_type", "differs from " .. where .. "type")
  end
  local kind = new
  if kind == nil then kind = old end
  if kind == nil or kind == "default" or kind == "mrope" then return { type = "default" } end
  local f = type(kind) == "string" and scalings[kind]
  if not f then
    unsupported(where .. "rope_type",
      tostring(kind) .. " is not implemented (default, linear, dynamic, yarn, llama3, longrope, proportional are)")
  end
  return f(s, a)
end

-- ---- the trace ----

local items, prefix, names = {}, {}, {}
local layer, group = -1, "text"
local drawn = true                  -- what is called now becomes nodes: of the text, or of a tower whose graph is wanted
local model = { tied = false }
local counts = {}                   -- operators outside of the text graph: group -> operator -> number
local inputs = {}                   -- by graph and name
local features, facts, with_images = {}, nil, false -- what the tower gives and is; whether the text takes it up
local kv_of, blocks = {}, {}
local table_of_embedding
local patterns = {}

-- partition marks of weights
col, row, rep, vocab = { "col" }, { "row" }, { "rep" }, { "vocab" }
local expert = { "expert" }
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
  if drawn and v.id == 0 then error(what .. " comes from a part that is in no graph", 3) end
  if drawn and v.g ~= group then error(what .. " comes from another graph", 3) end
  return v
end

-- A value that only the inventory knows.
local function ghost(dim, rows) return setmetatable({ id = 0, dim = dim, rows = rows }, V) end

-- Which graph an item belongs to; nil: that of the text, or none.
local function of_tower() return drawn and group ~= "text" and group or nil end

-- One operator. `dim` is the last dimension of the result, nil when there is none.
local function node(op, ins, attrs, name, dim, rows)
  if group ~= "text" then
    counts[group] = counts[group] or {}
    counts[group][op] = (counts[group][op] or 0) + 1
  end
  if not drawn then return dim and ghost(dim, rows) or nil end
  -- trailing absent inputs are left out, others are 0
  local n = 0
  for i = 1, 12 do if ins[i] then n = i end end
  local list = {}
  for i = 1, n do list[i] = ins[i] or 0 end
  local item = { k = "node", graph = of_tower(), op = op, inputs = list, attrs = attrs, layer = layer, probe = name ~= nil, name = unique(name or path(op)) }
  local id = add(item)
  return dim and setmetatable({ id = id, item = item, dim = dim, rows = rows, g = group }, V) or nil
end

local function second(v, dim, rows)
  if v.id == 0 then return ghost(dim, rows) end
  return setmetatable({ id = add { k = "output", graph = of_tower(), of = v.id, index = 1 }, dim = dim, rows = rows, g = group }, V)
end

-- width: of a row, where it has one; name: where there are several of a role.
local function step(role, width, name)
  if not drawn then return 0 end
  name = name or role
  if group ~= "text" then name = group .. "." .. name end
  inputs[name] = inputs[name] or add { k = "input", graph = of_tower(), role = role, width = width, name = unique(name) }
  return inputs[name]
end
local function places() return step "positions", step "seq_of", step "page_table" end

-- o: quant, units, dtype (as "F32", where the type is not that of the model), count (experts), transposed
local function weight(name, shape, mark, o)
  if names[name] then error("the weight " .. name .. " is described twice", 3) end
  names[name] = true
  mark, o = mark or rep, o or {}
  return add { k = "weight", name = name, shape = shape, part = mark[1], units = mark[2] or o.units or 0, quant = o.quant or false,
    layer = layer, group = group, graph = of_tower(), flat = o.flat, dtype = o.dtype, count = o.count, transposed = o.transposed,
    pieces = o.pieces, turned = o.turned, rows = o.rows }
end

local P = {}
P.__index = P
-- A weight of its own, for operators that take one. turned: a matrix that is stored inputs before outputs.
function param(a)
  return setmetatable({ id = weight(path(a[1]), a.shape, a.part, a), shape = a.shape }, P)
end
local function weight_of(x, shape, part, o)
  if x == nil then return nil end
  if getmetatable(x) == P then return x.id end
  return weight(path(x), shape, part, o)
end

V.__add = function(a, b)
  check(a, "the left side of +")
  check(b, "the right side of +")
  if a.dim ~= b.dim then error("+ of " .. a.dim .. " and " .. b.dim .. " wide values", 2) end
  return node("add", { a.id, b.id }, {}, path "add", a.dim, a.rows)
end

-- b may be narrower: each of its values multiplies as many neighbours of a.
V.__mul = function(a, b)
  check(a, "the left side of *")
  check(b, "the right side of *")
  if a.dim < b.dim then a, b = b, a end
  if a.dim % b.dim ~= 0 then error("* of " .. a.dim .. " and " .. b.dim .. " wide values", 2) end
  local y = node("mul", { a.id, b.id }, {}, path "mul", a.dim, a.rows)
  y.heads = a.heads
  return y
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
  local x, first, before = a[1], a.first or 0, nil
  if a.n > 10000 then unsupported("num_hidden_layers", a.n .. " layers, at most 10000") end
  local outside = layer
  for i = first, first + a.n - 1 do
    if group ~= "vision" then layer = i end
    local name = string.format(a.at, i)
    before = x.item
    x = check(scope(name, function() return a.each(x, i) end), "the result of a layer")
    if x.item and x.item ~= before and (x.item.layer == i or group == "vision") then
      names[x.item.name] = nil
      x.item.name, x.item.probe = unique(path(name)), true
    end
  end
  layer = outside
  if group == "text" then model.layers = (model.layers or 0) + a.n end
  return x
end

local function outside_text(kind, f, draw)
  local saved, saved_layer = group, layer
  if saved ~= "text" then error(kind .. " within " .. saved, 3) end
  group, layer, drawn = kind, -1, draw or false
  local r = table.pack(f())
  group, layer, drawn = saved, saved_layer, true
  return table.unpack(r, 1, r.n)
end
-- A part whose weights belong to the model but which has no graph.
function tower(kind, f) return outside_text("vision", f) end
-- The same within a tower: layers behind the last one whose output is taken.
function undrawn(f)
  if group == "text" then error("undrawn within the text graph", 2) end
  local saved = drawn
  drawn = false
  local r = table.pack(f())
  drawn = saved
  return table.unpack(r, 1, r.n)
end
-- A tower with a graph of its own. f returns what enters the text: the rows that tokens of pictures become, then those added behind its
-- first layers. o: what the host must know to make its inputs (docs/arch-files.md).
function vision(o, f)
  if facts then error("a second tower", 2) end
  local r = table.pack(outside_text("vision", f, true))
  for i = 1, r.n do
    if getmetatable(r[i]) ~= V or r[i].g ~= "vision" or r[i].rows ~= "R" then error("what a tower returns must be merged rows of its graph", 2) end
    features[i] = r[i].id
  end
  if r.n == 0 then error("a tower must return what enters the text", 2) end
  facts = o
end
-- What a tower gave takes the place of x where a token stands for a picture; k > 0: is added to it, the k-th of what the tower gave besides.
function pictures(x, k)
  k = k or 0
  check(x, "the input of pictures")
  if not with_images or k >= #features then return x end
  return node("scatter_rows", { x.id, step("features", x.dim, k > 0 and "features_" .. k or nil), step "feature_of" }, { add = k > 0 and 1 or nil },
    path "pictures", x.dim, x.rows)
end
-- Drafting layers.
function mtp(f) return outside_text("mtp", f) end

-- Facts about the model that no operator shows.
function context(n) model.positions = n end
-- How text is cut before tiktoken.model, for releases that have no tokenizer.json; what else their code does with it.
function tiktoken(pattern, o)
  o = o or {}
  for k in pairs(o) do
    if k ~= "piece" and k ~= "run" and k ~= "reserved" then error("tiktoken has no option " .. tostring(k), 2) end
  end
  model.tiktoken, model.tiktoken_piece, model.tiktoken_run, model.tiktoken_reserved = pattern, o.piece, o.run, o.reserved
end

-- ---- what the checkpoint holds ----

local collapsed = {}
-- Numbers between dots become %d, as in the patterns that the program hands over.
local function collapse(name)
  if collapsed[name] then return collapsed[name] end
  local out, first = {}, 1
  for k = 1, string.len(name) + 1 do
    if k > string.len(name) or string.byte(name, k) == 46 then
      local part, digits = string.sub(name, first, k - 1), k > first
      for i = 1, string.len(part) do
        local b = string.byte(part, i)
        if b < 48 or b > 57 then digits = false end
      end
      out[#out + 1] = digits and "%d" or part
      first = k + 1
    end
  end
  collapsed[name] = table.concat(out, ".")
  return collapsed[name]
end

-- Whether a tensor of this name is there, whatever its numbers are. False for all names where no tensors are known.
function has(name) return patterns[collapse(path(name))] == true end

-- A flag of this object alone, not of the one around it; nil where it is absent or null.
local function own_flag(v, key)
  local r = is_view[v]
  local x = r.raw[key]
  r.seen[key] = true
  if x == nil or x == null then return nil end
  if type(x) ~= "boolean" then wrong_type(v, key, x, "true or false") end
  return x
end

-- Whether the embedding is the output head, where the text has a config of its own (c) inside of the whole's (top): tied_head { top, c, name }.
-- Which of the two flags counts is the family's (docs/families.md): counts = "outer", "inner", or "either", where one yes is enough. Where
-- it is silent, `default` counts. A yes that nothing in config.json says, or that the other flag denies, yields to a head of that name
-- among the tensors: the reference compares both matrices, and ties them only if they are equal.
function tied_head(a)
  local top, c, head, key = a[1], a[2], a[3] .. ".weight", "tie_word_embeddings"
  local said, other, by, not_by = own_flag(top, key), nil, is_view[top].where .. key, is_view[c].where .. key
  if c ~= top then
    other = own_flag(c, key)
    if a.counts == "inner" or a.counts == "either" and other and not said then said, other, by, not_by = other, said, not_by, by end
  end
  local yes, why = said, ""
  if said == nil then yes = a.default or false end
  if yes and (other == nil and said == nil or other == false) and has(head) then
    yes, why = false, "; " .. path(head) .. " is there and is used"
  end
  if said ~= nil and other ~= nil and said ~= other then
    notes[#notes + 1] = { key = by, text = "is " .. tostring(said) .. ", which counts, but " .. not_by .. " is " .. tostring(other) .. why }
  elseif said == nil and other ~= nil and other ~= yes then
    notes[#notes + 1] = { key = not_by, text = "is " .. tostring(other) .. " and does not count: " .. by .. " does, and is absent, which means "
      .. tostring(yes) }
  end
  return yes
end

function prefix_of(list)
  for _, p in ipairs(list) do
    local want = collapse(p)
    for name in pairs(patterns) do
      if string.sub(name, 1, string.len(want)) == want then return p end
    end
  end
  return list[1]
end

-- ---- operators ----

function embed(a)
  local name = path(a[1])
  local w = weight(name .. ".weight", { a.vocab, a.dim }, vocab, a)
  if group == "text" and not table_of_embedding then
    table_of_embedding, model.hidden, model.vocab = w, a.dim, a.vocab
  end
  return node("embed", { step "ids", w }, {}, name, a.dim, "T")
end

local function stored(a, mark, units)
  return { quant = a.quant == nil or a.quant, units = units, dtype = a.dtype } -- quant may name a scheme
end

function linear(a)
  local x, name = check(a[1], "the input of linear"), path(a[2])
  local mark = a.part or rep
  local into = a.into or x.dim
  if into ~= x.dim and drawn then error("linear " .. name .. " takes " .. into .. " values, its input has " .. x.dim, 2) end
  local units = a.units or a.heads or (mark == row and x.heads) or nil
  local o = stored(a, mark, units)
  if a.pieces then -- several matrices behind each other: a cut goes through each
    local sum = 0
    for _, n in ipairs(a.pieces) do sum = sum + n end
    if sum ~= a.out or #a.pieces > 8 then error("linear " .. name .. ": its pieces are not " .. a.out .. " rows, or more than 8", 2) end
    o.pieces = a.pieces
  end
  local w = a.weight and weight_of(a.weight) or weight(name .. ".weight", { a.out, into }, mark, o)
  -- the bias of a row cut is added once, after the sum
  local b = a.bias and weight(name .. ".bias", { a.out }, mark == row and rep or mark, { units = mark ~= row and units or nil }) or nil
  local y = node("linear", { x.id, w, b }, {}, name, a.out, x.rows)
  y.heads = mark[1] == "heads" and mark[2] or nil
  return y
end

-- Groups of channels, each with rows of its own.
function group_linear(a)
  local x, name = check(a[1], "the input of group_linear"), path(a[2])
  if x.dim % a.groups ~= 0 then error("group_linear: " .. a.groups .. " groups do not divide " .. x.dim, 2) end
  local w = weight(name .. ".weight", { a.out, x.dim // a.groups }, a.part or heads(a.groups), stored(a))
  return node("group_linear", { x.id, w }, { groups = a.groups }, name, a.out, x.rows)
end

-- Without a name the norm has no weight.
function rms_norm(a)
  local x = check(a[1], "the input of rms_norm")
  local dim = a.dim or x.dim
  local name = a[2] and path(a[2]) or nil
  local w = name and weight(name .. ".weight", { dim }, a.part, { units = a.heads, dtype = a.dtype }) or nil
  local y = node("rms_norm", { x.id, w }, { eps = a.eps, dim = dim ~= x.dim and dim or nil, plus_one = a.plus_one and 1 or nil },
    name or path "norm", x.dim, x.rows)
  y.heads = x.heads
  return y
end

function layer_norm(a)
  local x = check(a[1], "the input of layer_norm")
  local dim = a.dim or x.dim
  local name = a[2] and path(a[2]) or nil
  local w = name and weight(name .. ".weight", { dim }, a.part, { dtype = a.dtype }) or nil
  local b = name and a.bias ~= false and weight(name .. ".bias", { dim }, a.part, { dtype = a.dtype }) or nil
  local y = node("layer_norm", { x.id, w, b }, { eps = a.eps, dim = dim ~= x.dim and dim or nil }, name or path "norm", x.dim, x.rows)
  y.heads = x.heads
  return y
end

local functions = { silu = 0, gelu_tanh = 1, gelu_erf = 2, quick_gelu = 3, sigmoid = 4, relu2 = 5, tanh = 6, none = 7, swigluoai = 8, situ = 9,
  silu_clamp = 10, silu_clamp_out = 11, softcap = 12, relu = 13,
  -- spellings of config.json
  swish = 0, gelu_pytorch_tanh = 1, gelu_new = 1, gelu = 2, relu_squared = 5 }
local glus = { silu = true, swish = true, gelu_tanh = true, gelu_pytorch_tanh = true, gelu_erf = true, swigluoai = true, situ = true,
  silu_clamp = true, silu_clamp_out = true }
-- The attributes of an activation: function and its numbers.
local function function_of(fn, p, attrs, allowed)
  local id = type(fn) == "string" and functions[fn] or nil
  if id == nil or (allowed and not allowed[fn]) then
    unsupported("hidden_act", tostring(fn) .. " is not implemented (silu is)")
  end
  p = p or {}
  attrs["function"] = id ~= 0 and id or nil
  attrs.alpha, attrs.limit, attrs.beta, attrs.linear_beta = p.alpha, p.limit, p.beta, p.linear_beta
  return attrs
end

function act(a)
  local x = check(a[1], "the input of act")
  local y = node("act", { x.id }, { ["function"] = function_of(a.fn, nil, {})["function"], limit = a.limit }, path(a.name or "act"), x.dim,
    x.rows)
  y.heads = x.heads
  return y
end

function glu(a)
  local g, u = check(a[1], "the gate of glu"), check(a[2], "the input of glu")
  local attrs = function_of(a.fn, a.p, {}, glus)
  if group == "text" then model.intermediate = math.max(model.intermediate or 0, g.dim) end
  return node("glu", { g.id, u.id }, attrs, path(a.name or "act"), g.dim, g.rows)
end

-- x times a number, and times a weight of one or of x's width.
function scale(a)
  local x = check(a[1], "the input of scale")
  local y = node("scale", { x.id, weight_of(a.weight, a.shape or { x.dim }, a.part, a) }, { factor = (a.by or 1) + 0.0 }, path "scale", x.dim, x.rows)
  y.heads = x.heads
  return y
end

-- x times 1 + beta ln(1 + floor((position + offset) / length))
function position_scale(a)
  local x = check(a[1], "the input of position_scale")
  local y = node("position_scale", { x.id, step "positions" }, { length = a.length, beta = a.beta + 0.0, offset = a.offset }, path "position_scale",
    x.dim, x.rows)
  y.heads = x.heads
  return y
end

-- x seen as [groups, a + b + ...]: the values [groups, a], [groups, b], ...
function split(a)
  local x, groups, sum = check(a[1], "the input of split"), a.groups or 1, 0
  for _, size in ipairs(a.sizes) do sum = sum + size end
  if sum * groups ~= x.dim then error("split of " .. x.dim .. " values into " .. groups .. " x " .. sum, 2) end
  local r, at = {}, 0
  for i, size in ipairs(a.sizes) do
    r[i] = node("slice", { x.id }, { dim = size, offset = at > 0 and at or nil, groups = groups > 1 and groups or nil }, path "split", size * groups,
      x.rows)
    at = at + size
  end
  return table.unpack(r, 1, #r)
end

function concat(a)
  local ins, dim = {}, 0
  for i, x in ipairs(a) do
    check(x, "an input of concat")
    ins[i], dim = x.id, dim + x.dim
  end
  return node("concat", ins, { groups = a.groups and a.groups > 1 and a.groups or nil }, path "concat", dim, a[1].rows)
end

-- The width is given where rows are regrouped: only outside of the text graph. In a tower the rows that the host names become one.
function reshape(a)
  local x = check(a[1], "the input of reshape")
  if group == "text" then error("reshape within the text graph", 2) end
  if not drawn then return ghost(a.dim, x.rows) end
  if x.rows == "R" or a.dim % x.dim ~= 0 then error("reshape of rows of " .. x.dim .. " values to " .. a.dim, 2) end
  return node("gather_rows", { x.id, step("merge", a.dim // x.dim) }, {}, path "merged", a.dim, "R")
end

function gated_norm(a)
  local x, g = check(a[1], "the input of gated_norm"), check(a[2], "the gate of gated_norm")
  local dim = a.dim or x.dim
  local name = a[3] and path(a[3]) or nil
  local w = name and weight(name .. ".weight", { dim }, a.part, { dtype = a.dtype }) or nil
  local y = node("gated_norm", { x.id, g.id, w }, { eps = a.eps, dim = dim ~= x.dim and dim or nil,
    ["function"] = function_of(a.fn or "silu", nil, {})["function"], before = a.before and 1 or nil }, name or path "norm", x.dim, x.rows)
  y.heads = x.heads
  return y
end

-- Rotation of patches by height and width. halves: the first half of the angles follows the height, the other the width, both with the
-- frequencies of half a head; split: the same with every second frequency of a head each, height first; turns: width, height, width, ...
-- with the frequencies of half a head.
local planes = {
  halves = { order = "twice" },
  split = { whole = true, order = "split" },
  turns = { order = "pairs", interleave = 2 },
}

-- One table of angles, shared by all layers that rotate alike. Its frequencies are computed by the program in float32.
-- a[1] may be what rope_config gave.
function rope(a)
  local r = a[1] or {}
  local style = a.style or "half"
  if style ~= "half" and style ~= "pairs" then error("rope style must be half or pairs", 2) end
  if a.dim % 2 ~= 0 or a.dim > 65536 then unsupported("head_dim", "heads of " .. a.dim .. " cannot be rotated in pairs (even, at most 65536)") end
  local b = { dim = a.dim, theta = a.theta or r.theta, long = a.long }
  if not (b.theta > 0 and b.theta < 1e30) then unsupported("rope_theta", "is " .. b.theta .. ", must be positive") end
  local scaling = scaling_of(a.scaling or r.scaling, b)
  local sections = a.sections or r.sections
  if sections ~= nil and (type(sections) ~= "table" or #sections ~= 3) then unsupported("mrope_section", "is no list of three") end
  if sections ~= nil then
    local sum = 0
    for _, x in ipairs(sections) do sum = sum + (to_integer(x) or 0) end
    if sum * 2 ~= a.dim then unsupported("mrope_section", "adds up to " .. sum .. ", not to half of the " .. a.dim .. " rotated values of a head") end
  end
  if not drawn then return setmetatable({ id = 0, dim = a.dim, style = style, offset = a.offset or 0 }, V) end
  local plane = planes[a.plane or "none"]
  if a.plane and not plane then error("rope plane must be halves, split or turns", 2) end
  if a.plane and a.dim % 4 ~= 0 then unsupported("head_dim", "heads of " .. a.dim .. " do not rotate by height and width alike") end
  if b.limit then model.limit = math.min(model.limit or b.limit, b.limit) end
  local saved, saved_prefix = layer, prefix
  layer, prefix = -1, {}
  local at = group == "text" and "rope" or group .. ".rope"
  local f = add { k = "rope", graph = of_tower(), name = unique(at .. ".inv_freq"), dim = a.plane and not plane.whole and a.dim // 2 or a.dim,
    theta = b.theta, scaling = scaling, order = a.plane and plane.order or nil }
  local places = a.plane or sections and with_images
  local attention = a.attention or scaling.attention
  if a.plane then sections = { nil, a.dim // 4, a.dim // 4 } end
  local t = node("rope_table", { places and step("places", 3) or step "positions", f }, { factor = attention and attention ~= 1 and attention or nil,
    section_t = sections and sections[1], section_h = sections and sections[2], section_w = sections and sections[3],
    interleave = a.plane and plane.interleave or sections and (a.interleaved or r.interleaved) and 1 or nil }, at .. ".table", a.dim, "T")
  t.item.probe = false
  t.style, t.offset, t.inv_freq = style, a.offset or 0, f
  layer, prefix = saved, saved_prefix
  return t
end

function apply_rope(a)
  local x, pos = check(a[1], "the input of apply_rope"), check(a.pos, "pos of apply_rope")
  local dim, offset = a.dim or pos.dim, a.offset or pos.offset
  local y = node("rope", { x.id, pos.id }, { dim = dim, style = pos.style == "pairs" and 1 or nil, offset = offset > 0 and offset or nil,
    inverse = a.inverse and 1 or nil }, path(a[2] or "rope"), x.dim, x.rows)
  y.heads = x.heads
  return y
end

-- ---- attention ----

local function pages(which, name, kv_heads, dim)
  return add { k = "state", which = which, name = unique(name), layer = layer, kv_heads = kv_heads, dim = dim }
end

local function slots(name, dims)
  return add { k = "state", which = "slots", name = unique(name), layer = layer, dims = dims }
end

local function attention_facts(n, kv, dim)
  model.heads, model.kv_heads, model.head_dim = math.max(model.heads or 0, n), math.max(model.kv_heads or 0, kv), math.max(model.head_dim or 0, dim)
end

-- Stores k and v in the pages of this layer, then attends to everything stored that the mask shows. from: the number of an earlier
-- layer whose pages are read instead; then k and v are not given. second: this layer has another attention before. bidirectional: tokens
-- of one picture see each other.
function attention(a)
  if not drawn then
    local q = check(a.q, "q of attention")
    local y = node("attention", {}, {}, nil, a.heads * (a.v_dim or a.dim), q.rows)
    y.heads = a.heads
    return y
  end
  if group ~= "text" then                                    -- rows of one picture, or of one window of it, see each other
    local q, v_dim = check(a.q, "q of attention"), a.v_dim or a.dim
    local y = node("segment_attention", { q.id, check(a.k, "k of attention").id, check(a.v, "v of attention").id,
      step(a.mask == "window" and "windows" or "spans", 2) }, { heads = a.heads, kv_heads = a.kv_heads or a.heads, dim = a.dim, v_dim = v_dim ~= a.dim and v_dim or nil, scale = a.scale },
      path(a.name or "attn"), a.heads * v_dim, q.rows)
    y.heads = a.heads
    return y
  end
  local q = check(a.q, "q of attention")
  local n, kv, dim, v_dim = a.heads, a.kv_heads or a.heads, a.dim, a.v_dim or a.dim
  if n % kv ~= 0 then unsupported("num_key_value_heads", kv .. " does not divide " .. n .. " heads") end
  if a.mask ~= nil and a.mask ~= "causal" then error("attention mask must be causal", 2) end
  if layer < 0 then error("attention outside of layers", 2) end
  local ks, vs
  local p, s, t
  if a.from then
    if not kv_of[a.from] then error("layer " .. a.from .. " has no keys and values to share", 2) end
    ks, vs = kv_of[a.from][1], kv_of[a.from][2]
    p, s, t = places()
  else
    local k, v = check(a.k, "k of attention"), check(a.v, "v of attention")
    if kv_of[layer] and not a.second then error("a second attention in layer " .. layer, 2) end
    local at = "kv." .. layer .. "."
    ks, vs = pages("k", at .. "k", kv, dim), pages("v", at .. "v", kv, v_dim)
    kv_of[layer] = { ks, vs }
    p, s, t = places()
    node("kv_store", { k.id, v.id, ks, vs, p, s, t }, { kv_heads = kv, dim = dim, v_dim = v_dim ~= dim and v_dim or nil })
  end
  local y = node("attention", { q.id, ks, vs, p, s, t, weight_of(a.sinks, { n }, heads(n), { dtype = a.sinks_dtype }), a.index and a.index.id or nil,
      a.bidirectional and with_images and #features > 0 and step("spans", 2) or nil },
    { heads = n, kv_heads = kv, dim = dim, v_dim = v_dim ~= dim and v_dim or nil, scale = a.scale, window = a.window, softcap = a.softcap,
      chunk = a.chunk, block = a.index and a.index.block or nil }, path(a.name or "attn"), n * v_dim,
    q.rows)
  y.heads = n
  attention_facts(n, kv, dim)
  return y
end

-- Attention over a compressed row of latent + rope values for each token. k_pe and the rotated part of q come rotated.
function mla(a)
  local q, c = check(a.q, "q of mla"), check(a.latent_kv, "latent_kv of mla")
  local n, rd = a.heads, a.k_pe and a.rope or 0
  local w = weight(path(a.kv_b) .. ".weight", { n * (a.nope + a.v_dim), a.latent }, heads(n), stored(a))
  local y
  if group ~= "text" then
    y = node("mla", {}, {}, nil, n * a.v_dim, q.rows)
  else
    if layer < 0 then error("mla outside of layers", 2) end
    local store = pages("latent", "kv." .. layer .. ".latent", 1, a.latent + rd)
    local p, s, t = places()
    node("latent_store", { c.id, store, p, s, t, a.k_pe and check(a.k_pe, "k_pe of mla").id or nil }, {})
    y = node("mla", { q.id, store, w, p, s, t, a.index and check(a.index, "index of mla").id or nil },
      { heads = n, nope = a.nope, rope = rd > 0 and rd or nil, v_dim = a.v_dim, latent = a.latent, scale = a.scale }, path(a.name or "attn"),
      n * a.v_dim, q.rows)
    attention_facts(n, 1, a.nope + rd)
  end
  y.heads = n
  return y
end

-- The keys that each query attends to: for mla { index = } and attention { index = }. Stores k in pages of its own.
function index_topk(a)
  local q, k = check(a.q, "q of index_topk"), check(a.k, "k of index_topk")
  local width = a.topk * (a.groups or 1)
  if group ~= "text" then return node("index_topk", {}, {}, nil, width, q.rows) end
  local store = pages("index", "kv." .. layer .. ".index", 1, a.dim)
  local p, s, t = places()
  node("latent_store", { k.id, store, p, s, t }, {})
  local y = node("index_topk", { q.id, store, p, s, t, a.weights and check(a.weights, "weights of index_topk").id or nil },
    { heads = a.heads, dim = a.dim, topk = a.topk, scale = a.scale, block = a.block, groups = a.groups }, path(a.name or "index"), width, q.rows)
  y.block = a.block
  return y
end

-- ---- recurrent states ----

function short_conv(a)
  local x, name = check(a[1], "the input of short_conv"), path(a[2])
  local w = weight(name .. ".weight", { x.dim, 1, a.width }, a.part, { dtype = a.dtype })
  local b = a.bias and weight(name .. ".bias", { x.dim }, a.part, { dtype = a.dtype }) or nil
  local y
  if group ~= "text" then
    y = node("short_conv", {}, {}, nil, x.dim, x.rows)
  else
    local tail = slots("state." .. layer .. ".conv", { a.width - 1, x.dim })
    y = node("short_conv", { x.id, w, tail, step "positions", step "seq_of", step "slots", b },
      { width = a.width, ["function"] = function_of(a.fn or "none", nil, {})["function"] }, name, x.dim, x.rows)
  end
  y.heads = x.heads
  return y
end

-- A_log and dt_bias are names (or param{}); A_entries: stored length of A_log where it is longer than the heads.
function delta_rule(a)
  local q, n = check(a.q, "q of delta_rule"), a.heads
  local vn, channel = a.v_heads or n, a.decay == "channel"
  local v_dim = a.v_dim or a.dim
  local A = weight_of(a.A_log or "A_log", { a.A_entries or vn }, a.A_entries and rep or heads(vn), { dtype = a.dtype })
  local dt = weight_of(a.dt_bias or "dt_bias", { channel and n * a.dim or vn }, heads(channel and n or vn), { dtype = a.dtype })
  local y
  if group ~= "text" then
    y = node("delta_rule", {}, {}, nil, vn * v_dim, q.rows)
  else
    local S = slots("state." .. layer .. ".delta", { vn, a.dim, v_dim })
    y = node("delta_rule", { q.id, check(a.k, "k of delta_rule").id, check(a.v, "v of delta_rule").id, check(a.g, "g of delta_rule").id,
      check(a.beta, "beta of delta_rule").id, A, dt, S, step "positions", step "seq_of", step "slots" },
      { heads = n, v_heads = vn, dim = a.dim, v_dim = v_dim, scale = a.scale, eps = a.l2norm, decay = channel and 1 or nil, lower = a.lower },
      path(a.name or "delta"), vn * v_dim, q.rows)
    attention_facts(vn, n, a.dim)
  end
  y.heads = vn
  return y
end

-- ---- experts ----

local scores = { softmax = 0, sigmoid = 1, sqrtsoftplus = 2, logits = 3 }

-- The weights of all experts in one of the layouts, as inputs of `experts`.
local function expert_weights(a, e, d)
  local n, I = a.n, a.inter
  local function one(name, shape, bias)
    if not name then return nil end
    if e.packed then
      table.insert(shape, 1, n)
      return weight(path(e.packed .. "." .. name) .. (bias and "_bias" or e.suffix or ""), shape, expert,
        { quant = not bias and (e.quant == nil or e.quant), transposed = not bias and e.transposed or nil, dtype = e.dtype })
    end
    return weight(path(e.at .. "." .. name) .. (bias and ".bias" or ".weight"), shape, expert,
      { quant = not bias and (e.quant == nil or e.quant), count = n, dtype = e.dtype })
  end
  local function matrix(name, out, into) return one(name, e.transposed and { into, out } or { out, into }) end
  local r = {}
  if e.gate_up then
    r.gate = matrix(e.gate_up, 2 * I, d)
    r.layout = e.interleaved and 2 or 1
  else
    r.gate, r.up = matrix(e.gate, I, d), matrix(e.up, I, d)
    r.layout = not e.gate and 3 or nil
  end
  r.down = matrix(e.down, d, I)
  if e.bias then
    if e.gate_up then
      r.gate_bias = one(e.gate_up, { 2 * I }, true)
    else
      r.gate_bias, r.up_bias = one(e.gate, { I }, true), one(e.up, { I }, true)
    end
    r.down_bias = one(e.down, { d }, true)
  end
  return r
end

local function experts_there(e)
  if e.packed then return has(e.packed .. "." .. (e.gate_up or e.up) .. (e.suffix or "")) end
  return has(e.at .. "." .. (e.gate or e.gate_up or e.up) .. ".weight")
end

function moe(a)
  local x = check(a[1], "the input of moe")
  local z = a.via and check(a.via, "via of moe") or x
  local d = a.dim or z.dim
  if group == "text" and d ~= z.dim then error("moe: experts of " .. d .. " values over " .. z.dim, 2) end
  local list = a.experts
  if list.at or list.packed then list = { list } end
  local e = list[1]
  for _, x2 in ipairs(list) do
    if experts_there(x2) then
      e = x2
      break
    end
  end
  if a.n > 65536 then unsupported("num_experts", a.n .. " experts, at most 65536") end
  if a.k > a.n then unsupported("num_experts_per_tok", a.k .. " of " .. a.n .. " experts") end
  local score = scores[a.score or "softmax"]
  if not score then unsupported("scoring_func", tostring(a.score) .. " is not implemented (softmax, sigmoid, sqrtsoftplus and logits are)") end
  local zero = a.zero and a.zero > 0 and a.zero or nil
  local l = a.logits
  if l then
    check(l, "logits of moe")
  else
    local g = weight(path(a.gate) .. ".weight", { a.n + (zero or 0), x.dim }, rep, { dtype = a.gate_dtype })
    local gb = a.gate_bias and weight(path(a.gate) .. ".bias", { a.n }, rep, { dtype = a.gate_dtype }) or nil
    l = node("linear", { x.id, g, gb }, {}, path(a.gate), a.n + (zero or 0), x.rows)
  end
  local bias = a.bias and weight(path(a.bias), { a.n + (zero or 0) }, rep, { dtype = a.bias_dtype }) or nil
  local tab = a.table and weight(path(a.table), { a.vocab or model.vocab, a.k }, rep, { dtype = a.table_dtype or "I64" }) or nil
  local per = a.expert_scale and weight(path(a.expert_scale), { a.n }, rep) or nil
  local grouped = a.groups and a.groups > 1
  local ids = node("route", { l.id, bias, tab, tab and step "ids" or nil, per }, { topk = a.k, score = score > 0 and score or nil,
    groups = grouped and a.groups or nil, groups_kept = grouped and a.groups_kept or nil,
    group_score = grouped and a.group_score == "max" and 1 or nil, renormalize = a.renormalize and 1 or nil,
    renorm_eps = a.renormalize and a.renorm_eps and a.renorm_eps + 0.0 or nil, scale = a.scale and a.scale ~= 1 and a.scale + 0.0 or nil, zero = zero },
    path "route", a.k, x.rows)
  if ids.item then ids.item.probe = false end
  local chosen = second(ids, a.k, x.rows)
  local w = expert_weights(a, e, d)
  if group == "text" then model.intermediate = math.max(model.intermediate or 0, a.inter) end
  local attrs = function_of(a.fn or "silu", a.p, { inter = a.inter, layout = w.layout, transposed = e.transposed and 1 or nil,
    input_weighted = a.input_weighted and 1 or nil, zero = zero })
  return node("experts", { z.id, ids.id, chosen.id, w.down, w.gate, w.up, w.gate_bias, w.up_bias, w.down_bias }, attrs, path(a.name or "experts"), d,
    x.rows)
end

-- ---- residuals ----

-- Softmax mixture of the kept sums and the running one. push: x joins the kept ones.
function mix_residual(a)
  local x = check(a[1], "the input of mix_residual")
  local w = weight(path(a[2] .. "_norm.weight"), { x.dim }, rep, { dtype = a.dtype })
  local p = weight(path(a[2] .. "_proj.weight"), { 1, x.dim }, rep, { dtype = a.dtype })
  local ins = { x.id, w, p }
  for _, b in ipairs(blocks) do ins[#ins + 1] = b.id end
  if #ins > 12 then unsupported("attn_res_block_size", #blocks .. " kept residuals, at most 9") end
  local y = node("mix_residual", ins, { eps = a.eps }, path(a[2]), x.dim, x.rows)
  if a.push then blocks[#blocks + 1] = x end
  return y
end

-- Hyper-connections: X holds `streams` residuals. Gives the input of a sublayer and what hyper_out needs.
function hyper_in(a)
  local X, n = check(a[1], "the input of hyper_in"), a.streams
  local fn = weight(path(a[2] .. "_fn"), { n * (n + 2), X.dim }, rep, { dtype = a.dtype })
  local base = weight(path(a[2] .. "_base"), { n * (n + 2) }, rep, { dtype = a.dtype })
  local s = weight(path(a[2] .. "_scale"), { 3 }, rep, { dtype = a.dtype })
  local x = node("hyper_in", { X.id, fn, base, s }, { streams = n, eps = a.eps, renorm_eps = a.hc_eps, rounds = a.rounds }, path(a[2]), X.dim // n, X.rows)
  return x, second(x, n * (n + 1), X.rows)
end

function hyper_out(a)
  local y, X, m = check(a[1], "the input of hyper_out"), check(a[2], "the streams of hyper_out"), check(a[3], "the mixture of hyper_out")
  return node("hyper_out", { y.id, X.id, m.id }, { streams = a.streams }, path(a.name or "streams"), X.dim, X.rows)
end

function hyper_head(a)
  local X, n = check(a[1], "the input of hyper_head"), a.streams
  local fn = weight(path(a[2] .. "_fn"), { n, X.dim }, rep, { dtype = a.dtype })
  local base = weight(path(a[2] .. "_base"), { n }, rep, { dtype = a.dtype })
  local s = weight(path(a[2] .. "_scale"), { 1 }, rep, { dtype = a.dtype })
  return node("hyper_head", { X.id, fn, base, s }, { streams = n, eps = a.eps, renorm_eps = a.hc_eps }, path(a[2]), X.dim // n, X.rows)
end

-- ---- pooled keys and values ----

-- Pools kv and gate over windows of `ratio` tokens into pages of its own: a handle for pool_attention, and for index_topk { pool = }.
function pool_kv(a)
  local kv, gate = check(a.kv, "kv of pool_kv"), check(a.gate, "gate of pool_kv")
  local c = a.overlap and 2 or 1
  local ape = weight_of(a.ape, { a.ratio, c * a.dim }, rep, { dtype = a.dtype })
  local norm = weight(path(a.norm) .. ".weight", { a.dim }, rep, { dtype = a.norm_dtype })
  if group ~= "text" then
    node("pool_kv", {}, {})
    return { pool = 0 }
  end
  local pool = pages("pool", "kv." .. layer .. ".pool", 1, a.dim)
  items[pool].ratio = a.ratio
  local rest = slots("state." .. layer .. ".pool", { 2 * c * a.ratio, c * a.dim })
  local p, s, t = places()
  node("pool_kv", { kv.id, gate.id, ape, norm, check(a.pos, "pos of pool_kv").inv_freq, pool, rest, p, s, t, step "slots" },
    { ratio = a.ratio, dim = a.dim, eps = a.eps, overlap = a.overlap and 1 or nil, rope = a.pos.dim })
  return { pool = pool, ratio = a.ratio }
end

-- Which pooled entries a query sees: as index_topk, over the pages of a pool.
function pool_topk(a)
  local q = check(a.q, "q of pool_topk")
  if group ~= "text" then return node("index_topk", {}, {}, nil, a.topk, q.rows) end
  local p, s, t = places()
  return node("index_topk", { q.id, a.pool.pool, p, s, t, a.weights and check(a.weights, "weights of pool_topk").id or nil },
    { heads = a.heads, dim = a.dim, topk = a.topk, scale = a.scale, ratio = a.pool.ratio }, path(a.name or "index"), a.topk, q.rows)
end

-- One key-value head whose keys are the values: a window of them, and pooled entries (pool, index).
function pool_attention(a)
  local q, kv = check(a.q, "q of pool_attention"), check(a.kv, "kv of pool_attention")
  local n = a.heads
  local sinks = weight_of(a.sinks, { n }, heads(n), { dtype = a.sinks_dtype })
  local y
  if group ~= "text" then
    y = node("pool_attention", {}, {}, nil, n * a.dim, q.rows)
  else
    local store = pages("latent", "kv." .. layer .. ".latent", 1, a.dim)
    local p, s, t = places()
    node("latent_store", { kv.id, store, p, s, t }, {})
    y = node("pool_attention", { q.id, store, a.pool and a.pool.pool or store, sinks, p, s, t, a.index and a.index.id or nil },
      { heads = n, dim = a.dim, window = a.window, ratio = a.pool and a.pool.ratio or nil, scale = a.scale }, path(a.name or "attn"), n * a.dim, q.rows)
    attention_facts(n, 1, a.dim)
  end
  y.heads = n
  return y
end

-- ---- outside of the text graph ----

local function only_outside(what)
  if group == "text" then error(what .. " within the text graph", 3) end
end
function input(kind, dim)
  only_outside("input")
  return ghost(dim or 0, kind)
end
-- A convolution whose steps are its width: a product for each patch. The host lays out the pixels of a patch as the weight has them.
function conv(a)
  only_outside("conv")
  local name, wide = path(a[2] or a[1]), 1
  for i = 2, #a.shape do wide = wide * a.shape[i] end
  local w = weight(name .. ".weight", a.shape, a.part, { dtype = a.dtype, units = a.units, flat = true })
  local b = a.bias and weight(name .. ".bias", { a.shape[1] }, a.part) or nil
  return node("linear", { step("patches", wide), w, b }, {}, name, a.shape[1], "T")
end
-- A learned table: table { "pos_embed", shape = {...} } is pos_embed.weight, with bare = true pos_embed itself; of several dimensions before
-- the last its rows are counted through them. taps: of how many rows each patch takes its share. The library of that name stays what it is.
setmetatable(table, { __call = function(_, a)
  only_outside("table")
  local w = weight(path(a[1]) .. (a.bare and "" or ".weight"), a.shape, a.part, { dtype = a.dtype, rows = #a.shape > 2 })
  local taps = a.taps or 1
  return node("position_embed", { step("table_rows", taps), w, taps > 1 and step("table_weights", taps) or nil }, {}, path(a[1]), a.shape[#a.shape],
    "T")
end })

-- Rows of x that are no patch become a learned row: those before the patches of each picture or tile (at = "class"), or those that end a
-- line of merged rows (at = "line").
function learned_row(a)
  only_outside("learned_row")
  local x, where = check(a[1], "the input of learned_row"), a.at
  if where ~= "class" and where ~= "line" then error("learned_row at class or line", 2) end
  if drawn and (where == "line") ~= (x.rows == "R") then error("learned_row at " .. where .. " of rows that are " .. (x.rows == "R" and "" or "not ") .. "merged", 2) end
  local w = weight(path(a[2]), a.shape, a.part, { dtype = a.dtype, rows = true })
  return node("scatter_rows", { x.id, w, step(where .. "_rows") }, {}, path(a[2]), x.dim, x.rows)
end

-- ---- the end ----

-- Only the rows whose logits are wanted go on. A norm gives the same bits before and after, and is cheaper after.
function wanted_rows(x)
  check(x, "the input of wanted_rows")
  if x.rows == "R" then return x end
  local y = node("gather_rows", { x.id, step "rows" }, {}, "wanted_rows", x.dim, "R")
  if y.item then y.item.probe = false end
  return y
end

function logits(a)
  local x, name = wanted_rows(check(a[1], "the input of logits")), path(a[2])
  local w
  if a.tied then
    if not table_of_embedding then error("tied logits without an embedding", 2) end
    w = table_of_embedding
    if group == "text" then model.tied, model.head = true, name .. ".weight" end
  else
    w = weight(name .. ".weight", { a.vocab, x.dim }, vocab, { quant = a.quant or false, dtype = a.dtype })
  end
  local b = a.bias and weight(name .. ".bias", { a.vocab }, vocab) or nil
  local y = node("linear", { x.id, w, b }, {}, name, a.vocab, x.rows)
  if a.divide and a.divide ~= 1 then y = node("scale", { y.id }, { factor = 1 / a.divide }, path "logits_scale", a.vocab, x.rows) end
  if a.softcap then
    y = node("act", { y.id }, { ["function"] = functions.softcap, limit = a.softcap + 0.0 }, path "logits_cap", a.vocab, x.rows)
  end
  return y
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

-- images: the text is to take up what the tower gives.
function day0_trace(config, architecture, known, images)
  local c = view(config, "")
  with_images = images == true
  for _, p in ipairs(known or {}) do patterns[p] = true end
  local y = arch_file.build(c, architecture)
  if getmetatable(y) ~= V or y.rows ~= "R" then error("build must return what logits gave", 0) end
  if model.limit and model.positions then model.positions = math.min(model.positions, model.limit) end
  return { items = items, model = model, unread = unread(), notes = notes, result = y.id, outside = counts, features = features, tower = facts }
end

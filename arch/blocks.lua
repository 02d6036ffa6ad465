-- SPDX-License-Identifier: Apache-2.0
--
-- Blocks that several families share, written with the API of prelude.lua and nothing else. Loaded after it, with the same trust; part of
-- what the SHA-256 of an architecture covers.

-- The usual block: q, k, v and o projections, a norm over each head of q and k (qk_norm = eps), rotation (pos), grouped-query attention.
-- o_bias: bias of o; out: its width (as the input); gate: each head of q_proj is followed by as many values whose sigmoid multiplies
-- the output. Further fields go to attention.
function gqa(a)
  local x, n, kv, dim = a[1], a.heads, a.kv_heads or a.heads, a.dim
  local q, g = linear { x, "q_proj", out = (a.gate and 2 or 1) * n * dim, part = heads(n), bias = a.bias }, nil
  if a.gate then q, g = split { q, sizes = { dim, dim }, groups = n } end
  local k = linear { x, "k_proj", out = kv * dim, part = heads(kv), bias = a.bias }
  local v = linear { x, "v_proj", out = kv * (a.v_dim or dim), part = heads(kv), bias = a.bias }
  if a.qk_norm then
    q = rms_norm { q, "q_norm", dim = dim, eps = a.qk_norm, plus_one = a.plus_one }
    k = rms_norm { k, "k_norm", dim = dim, eps = a.qk_norm, plus_one = a.plus_one }
  end
  if a.pos then q, k = apply_rope { q, "q_rope", pos = a.pos, dim = dim }, apply_rope { k, "k_rope", pos = a.pos, dim = dim } end
  local o = attention { q = q, k = k, v = v, heads = n, kv_heads = kv, dim = dim, v_dim = a.v_dim, scale = a.scale or dim ^ -0.5, window = a.window,
    sinks = a.sinks, softcap = a.softcap, chunk = a.chunk, bidirectional = a.bidirectional, index = a.index }
  if g then o = o * act { g, name = "gate", fn = "sigmoid" } end
  return linear { o, "o_proj", out = a.out or x.dim, part = row, bias = a.o_bias }
end

-- The usual gated MLP: gate_proj, up_proj, down_proj.
function gated_mlp(a)
  local x = a[1]
  local g = linear { x, "gate_proj", out = a.inter, part = col, bias = a.bias }
  local u = linear { x, "up_proj", out = a.inter, part = col, bias = a.bias }
  return linear { glu { g, u, fn = a.fn or "silu", p = a.p }, "down_proj", out = a.out or x.dim, part = row, bias = a.bias }
end

-- x as a number of `bits` significant bits.
local function rounded(x, bits)
  local unit = 2.0 ^ (math.floor(math.log(x, 2)) - bits + 1)
  local q = x / unit
  local low = math.floor(q)
  if q - low > 0.5 or q - low == 0.5 and low % 2 == 1 then low = low + 1 end
  return low * unit
end

-- Gemma's embedding: times the root of its width, which the reference rounds to the type of the weights. c: the text's config; a: as embed.
function embed_by_root(c, a)
  local dtype = c:text("dtype", c:text("torch_dtype", "bfloat16"))
  return scale { embed(a), by = rounded(a.dim ^ 0.5, dtype == "float32" and 24 or dtype == "float16" and 11 or 8) }
end

-- Which values of a tower a list like vision_feature_layer means: 0 is before the first layer, -1 behind the last of `depth`.
function feature_layers(view, key, default, depth)
  local from, list = view:opt(key, default), {}
  if type(from) ~= "table" then from = { view:int(key, default) } end
  for k, i in ipairs(from) do
    list[k] = type(i) == "number" and math.tointeger(i < 0 and depth + 1 + i or i) or -1
    if list[k] < 0 or list[k] > depth then unsupported(key, tostring(i) .. " with " .. depth .. " layers") end
  end
  if #list == 0 or #list > 8 then unsupported(key, "names " .. #list .. " layers (1 to 8 are taken)") end
  return list
end

-- CLIP and SigLIP. o.cls: a class row before the patches, and a norm before the blocks; o.from: what the layers of this list give
-- (feature_layers), joined, instead of the last norm's output; then layers behind these are in no graph. Called inside a tower.
function clip_tower(v, o)
  local W, n, p = v:count("hidden_size", 768), v:count("num_attention_heads", 12), v:count("patch_size", 16)
  local I, fn, eps = v:count("intermediate_size", 3072), v:text("hidden_act", o.fn), v:num("layer_norm_eps", o.eps)
  local side, depth, last, kept, given = v:count("image_size", 224) // p, v:count("num_hidden_layers", 12), 0, {}, {}
  local x = conv { input "patches", "embeddings.patch_embedding", shape = { W, v:count("num_channels", 3), p, p }, bias = not o.cls }
  if o.cls then x = learned_row { x, "embeddings.class_embedding", shape = { W }, at = "class" } end
  x = x + table { "embeddings.position_embedding", shape = { side * side + (o.cls and 1 or 0), W } }
  if o.cls then x = layer_norm { x, "pre_layrnorm", eps = eps } end                      -- so spelt in every checkpoint
  local function block(x, i)
    local h = layer_norm { x, "layer_norm1", eps = eps }
    h = scope("self_attn", function()
      local function part(name) return linear { h, name, out = W, bias = true, part = heads(n) } end
      local a = attention { q = part "q_proj", k = part "k_proj", v = part "v_proj", heads = n, dim = W // n, scale = (W // n) ^ -0.5 }
      return linear { a, "out_proj", out = W, bias = true, part = row }
    end)
    x = x + h
    h = linear { layer_norm { x, "layer_norm2", eps = eps }, "mlp.fc1", out = I, bias = true, part = col }
    kept[i + 1] = x + linear { act { h, fn = fn }, "mlp.fc2", out = W, bias = true, part = row }
    return kept[i + 1]
  end
  kept[0] = x
  for _, i in ipairs(o.from or { depth }) do last = math.max(last, i) end
  x = layers { x, n = last, at = "encoder.layers.%d", each = block }
  if not o.from then return layer_norm { x, "post_layernorm", eps = eps } end
  for k, i in ipairs(o.from) do given[k] = kept[i] end
  undrawn(function()
    x = layers { x, first = last, n = depth - last, at = "encoder.layers.%d", each = block }
    layer_norm { x, "post_layernorm", eps = eps }
  end)
  return #given == 1 and given[1] or concat(given)
end

-- Qwen3-VL's tower, under the name `at`: learned positions and a rotation; groups of merge x merge patches become one row. What its middle
-- layers give is added behind the first layers of the text. token: the id of a placeholder.
function qwen3_vision(v, at, token)
  local W, n, p, out = v:count "hidden_size", v:count "num_heads", v:count "patch_size", v:count "out_hidden_size"
  local fn, merge, places = v:text "hidden_act", v:count "spatial_merge_size", v:count "num_position_embeddings"
  local frames, colours, depth = v:count "temporal_patch_size", v:count("in_channels", 3), v:count "depth"
  local M = W * merge * merge
  local tap, kept = {}, {}
  for k, i in ipairs(v:list("deepstack_visual_indexes", nil, {})) do tap[i] = k - 1 end
  local function merger(x, norm_after)
    local h = norm_after and reshape { x, dim = M } or layer_norm { x, "norm", eps = 1e-6 }
    h = norm_after and layer_norm { h, "norm", eps = 1e-6 } or reshape { h, dim = M }
    h = act { linear { h, "linear_fc1", out = M, bias = true, part = col }, fn = "gelu_erf" }
    return linear { h, "linear_fc2", out = out, bias = true, part = row }
  end
  local facts = { patch = p, merge = merge, frames = frames, channels = colours, table = math.tointeger(places ^ 0.5 // 1),
    interpolation = "bilinear", image_token = token }
  vision(facts, function() return scope(at, function()
    local pos = rope { dim = W // n, theta = 10000, plane = "halves" }
    local x = conv { input "patches", "patch_embed.proj", shape = { W, colours, frames, p, p }, bias = true }
    x = x + table { "pos_embed", shape = { places, W }, taps = 4 }
    x = layers { x, n = depth, at = "blocks.%d", each = function(x, i)
      local qkv = linear { layer_norm { x, "norm1", eps = 1e-6 }, "attn.qkv", out = 3 * W, bias = true, part = heads(n), pieces = { W, W, W } }
      local q, k, val = split { qkv, sizes = { W, W, W } }
      q, k = apply_rope { q, pos = pos }, apply_rope { k, pos = pos }
      local o = attention { q = q, k = k, v = val, heads = n, dim = W // n, scale = (W // n) ^ -0.5 }
      x = x + linear { o, "attn.proj", out = W, bias = true, part = row }
      local h = linear { layer_norm { x, "norm2", eps = 1e-6 }, "mlp.linear_fc1", out = v:count "intermediate_size", bias = true, part = col }
      kept[i] = x + linear { act { h, fn = fn }, "mlp.linear_fc2", out = W, bias = true, part = row }
      return kept[i]
    end }
    local given = {}
    for i = 0, depth - 1 do
      if tap[i] then
        given[#given + 1] = scope("deepstack_merger_list." .. tap[i], function() return merger(kept[i], true) end)
      end
    end
    return scope("merger", function() return merger(x, false) end), table.unpack(given, 1, #given)
  end) end)
end

-- Kimi-K2, K2.5 and K3 come with tiktoken.model: what their own tokenizer code, the same in all, does with it.
function kimi_tiktoken()
  local rest = [=[\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]]=]
  local upper, lower = [=[[\p{Lu}\p{Lt}]=] .. rest, [=[[\p{Ll}]=] .. rest
  local before, clitic = [=[[^\r\n\p{L}\p{N}]?]=], [=[(?i:'s|'t|'re|'ve|'m|'ll|'d)?]=]
  tiktoken([=[[\p{Han}]+|]=] .. before .. upper .. "*" .. lower .. "+" .. clitic .. "|" .. before .. upper .. "+" .. lower .. "*" .. clitic ..
    [=[|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+]=], { piece = 400000, run = 25000, reserved = 256 })
end

return { arch = "X", build = function(c)
  context(c.max_position_embeddings)
  local pos = rope { dim = 16, theta = 1e4, scaling = c:opt "rope_scaling" }
  local x = embed { "e", vocab = 96, dim = 64 }
  x = layers { x, n = 1, at = "l.%d", each = function(x)
    local h = rms_norm { x, "n", eps = 1e-6 }
    local q = linear { h, "q", out = 64, part = heads(4) }
    local a = attention { q = apply_rope { q, pos = pos }, k = q, v = q, heads = 4, dim = 16, scale = 0.25, window = 8 }
    return x + linear { glu { a, a, fn = "silu" }, "o", out = 64, part = row, bias = true }
  end }
  return logits { x, "h", vocab = 96, tied = c:flag("tie_word_embeddings", false) }
end }

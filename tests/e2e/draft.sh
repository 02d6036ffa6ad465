#!/bin/sh
# `day0 draft` on small models of families that are left out, and `day0 check --profile` on a card that is not here.
. "$(dirname "$0")/lib.sh"

mkdir -p "$scratch/qwen" "$scratch/gpt"
cat > "$scratch/qwen/config.json" << 'EOF'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 400, "max_position_embeddings": 256, "rms_norm_eps": 1e-06,
 "rope_theta": 10000.0, "hidden_act": "silu", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
EOF
cat > "$scratch/gpt/config.json" << 'EOF'
{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 400, "max_position_embeddings": 256, "rms_norm_eps": 1e-05,
 "rope_theta": 150000.0, "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2, "swiglu_limit": 7.0,
 "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"], "attention_bias": true, "tie_word_embeddings": false,
 "initial_context_length": 256, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
 "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
 "model.embed_tokens", "lm_head"]}}
EOF
make() { python3 "$root/tools/make_checkpoint.py" "$scratch/$1" "$scratch/$1-model" --day0 "$day0" > /dev/null 2>&1; }
make qwen || { skip "draft" "python3 is not installed"; finish; }
model=$scratch/qwen-model
draft=$scratch/draft.lua

run 0 "a draft without the family's own file" "$day0" draft "$model" --without qwen3_moe.lua -o "$draft" --json
for key in nearest claimed total unclaimed file; do says "--json has $key" "\"$key\":" "$scratch/out"; done
claimed=$(field claimed "$scratch/out") total=$(field total "$scratch/out")
[ $((claimed * 100)) -ge $((total * 95)) ] && ok "$claimed of $total tensors are named" || not_ok "95 % of the tensors are named" "$claimed of $total"
says "the guesses are marked" 'TODO day0 draft: ' "$draft"
run 2 "a file is never overwritten" "$day0" draft "$model" --without qwen3_moe.lua -o "$draft"
run 0 "but with --force" "$day0" draft "$model" --without qwen3_moe.lua -o "$draft" --force
run 4 "check with it is incomplete" "$day0" check "$model" --arch "$draft" --json
says "and says so" '"verdict": "incomplete"' "$scratch/out"
"$day0" inspect "$model" --tensors --arch "$draft" | cut -f 1 | LC_ALL=C sort -u > "$scratch/drafted"
"$day0" inspect "$model" --tensors | cut -f 1 | LC_ALL=C sort -u > "$scratch/true"
hits=$(LC_ALL=C comm -12 "$scratch/drafted" "$scratch/true" | wc -l) all=$(wc -l < "$scratch/true")
[ "$all" -gt 100 ] && [ $((hits * 100)) -ge $((all * 95)) ] && ok "inspect lists $hits of $all names" || not_ok "inspect lists 95 % of the names" "$hits of $all"
run 2 "what a shipped file describes is not drafted" "$day0" draft "$model" -o "$scratch/other.lua"
says "and the file is named" 'qwen3_moe.lua describes this model' "$scratch/out" "$scratch/err"

set --
for f in "$root"/arch/*.lua; do set -- "$@" --without "$(basename "$f")"; done
run 0 "a draft from nothing" "$day0" draft "$model" "$@" -o "$scratch/nothing.lua" --json
says "no family is named" '"nearest": null' "$scratch/out"
[ "$(field claimed "$scratch/out")" = "$total" ] && ok "every tensor is listed" || not_ok "every tensor is listed"
run 4 "check with it is incomplete" "$day0" check "$model" --arch "$scratch/nothing.lua" --json

sed 's/drafted = true,/drafted = false,/' "$scratch/nothing.lua" > "$scratch/claimed.lua"
run 4 "a list that nothing computes with never passes, even under another flag" "$day0" check "$model" --arch "$scratch/claimed.lua" --json
says "and the reason is told" '"id": "C009"' "$scratch/out"

cards=$root/hardware/cards
run 4 "a card of which nothing is known: incomplete" "$day0" check "$model" --profile "$cards/h200-sxm.json" --json
says "what is not known is told" '"id": "P004"' "$scratch/out"
run 2 "no such profile" "$day0" check "$model" --profile "$scratch/none.json"
make gpt && run 1 "experts in a type that the card lacks: failed" "$day0" check "$scratch/gpt-model" --profile "$cards/cpu-x86.json" --json
says "it is P001" '"id": "P001"' "$scratch/out"
says "it names type and scheme" '"subject": "F4, mxfp4_blocks"' "$scratch/out"
says "and the weights" 'gate_up_proj' "$scratch/out"
finish

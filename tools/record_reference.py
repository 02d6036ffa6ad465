#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records a reference of a small model with transformers: ids, logits at every position, and some probes.

usage: record_reference.py MODEL_DIR -o FILE [--prompt TEXT] [--tokens N] [--probes]
Format: docs/references.md. float32 on the CPU, greedy continuation. Needs torch and transformers (`make references`).
"""
import argparse, hashlib, json, os


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("model")
    ap.add_argument("-o", "--out", required=True)
    ap.add_argument("--prompt", default="Ada looks at the shapes on the table.")
    ap.add_argument("--tokens", type=int, default=64, help="length of the whole sequence, prompt included")
    a = ap.parse_args()
    import torch
    import transformers
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with open(os.path.join(a.model, "config.json")) as f:
        name = json.load(f)["architectures"][0]
    model = getattr(transformers, name).from_pretrained(a.model, dtype=torch.float32).eval()
    ids = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json")).encode(a.prompt).ids
    n_prompt = len(ids)
    with torch.no_grad():
        while len(ids) < a.tokens:
            # the whole prefix each time: no cache, hence nothing that a cache could get wrong
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        probes = {}

        def keep(name):
            def hook(module, args, output):
                y = output[0] if isinstance(output, tuple) else output
                probes[name] = y.detach()[0].contiguous().clone()
            return hook

        modules = dict(model.named_modules())
        text = "model.language_model." if "model.language_model" in modules else "model."
        names = ["embed_tokens"] + ["layers.%d" % i for i in range(model.config.get_text_config().num_hidden_layers)]
        names += ["layers.0." + x for x in ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")]
        names = [text + x for x in names]
        for name in names:
            modules[name].register_forward_hook(keep(name))
        logits = model(torch.tensor([ids])).logits[0].contiguous()
    tensors = {"token_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits}
    tensors.update(probes)
    weights = hashlib.sha256(open(os.path.join(a.model, "model.safetensors"), "rb").read()).hexdigest()
    save_file(tensors, a.out, metadata={
        "format": "day0-reference-1", "producer": "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0]),
        "model_sha256": weights, "dtype": "float32", "greedy": "true", "prompt_tokens": str(n_prompt), "prompt": a.prompt})
    print("%d ids, %d of the prompt, vocabulary %d, %d probes -> %s" % (len(ids), n_prompt, logits.shape[1], len(probes), a.out))


if __name__ == "__main__":
    main()

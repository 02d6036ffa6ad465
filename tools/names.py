#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names and shapes of a full-size model as transformers would write them to a checkpoint, from config.json alone.

usage: names.py CONFIG.json... [--out DIR]
Builds the model on the meta device (no memory), turns its state_dict into checkpoint names by the library's own conversion
mapping, and prints for each: architecture, number of tensors, parameters, SHA-256 of the sorted lines "name<TAB>d0,d1,...".
With --out the lines go to DIR/<n>.<architecture>.tsv. Needs torch and transformers (run offline, by hand).
"""
import argparse, hashlib, json, os, sys, tempfile


def checkpoint_names(path):
    import torch
    import transformers
    from transformers import AutoConfig
    raw = json.load(open(path))
    for part in (raw, raw.get("text_config") or {}):
        part.pop("quantization_config", None)  # names of the plain model; how a release quantises is another table
    folder = os.path.join(tempfile.gettempdir(), "day0-names", hashlib.sha256(path.encode()).hexdigest()[:12])
    os.makedirs(folder, exist_ok=True)
    json.dump(raw, open(os.path.join(folder, "config.json"), "w"))
    config = AutoConfig.from_pretrained(folder)
    architecture = (raw.get("architectures") or [None])[0]
    cls = getattr(transformers, architecture or "", None)
    if cls is None:
        raise LookupError("transformers %s has no %s" % (transformers.__version__, architecture))
    with torch.device("meta"):
        model = cls(config)
    state = model.state_dict()
    # what is tied is the same tensor under two names, and written once
    known = model._tied_weights_keys or {}
    seen, tied = {}, set()
    for n, t in model.named_parameters(remove_duplicate=False):
        if id(t) in seen and (n in known or seen[id(t)] in known):
            tied.add(n if n in known else seen[id(t)])
        seen.setdefault(id(t), n)
    state = {n: t for n, t in state.items() if n not in tied}
    kind = raw.get("model_type")
    try:
        from transformers.core_model_loading import revert_weight_conversion
        # The library's own choice of mappings for a model that was not loaded: the layout that is published ...
        if kind != "qwen3_5_moe":  # ... but here: published packed, written one matrix an expert
            state = revert_weight_conversion(model, state)
        if kind == "qwen3_vl_moe":  # published with inputs before outputs; the library accepts both
            state = {n: t.transpose(1, 2) if ".mlp.experts." in n else t for n, t in state.items()}
    except ImportError:
        pass
    # The published names of CLIP's and SigLIP's towers keep a segment that the library drops.
    for name, module in model.named_modules():
        if type(module).__name__ in ("CLIPVisionModel", "SiglipVisionModel") and name.endswith("vision_tower"):
            state = {n.replace("vision_tower.", "vision_tower.vision_model.", 1): t for n, t in state.items()}
    return architecture, {n: list(t.shape) for n, t in state.items()}


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("configs", nargs="+")
    ap.add_argument("--out")
    a = ap.parse_args()
    for i, path in enumerate(a.configs):
        try:
            architecture, names = checkpoint_names(path)
        except Exception as e:  # a family the library does not know is a result, not a failure
            print("%s\tnot built: %s" % (path, str(e).splitlines()[0][:160]), flush=True)
            continue
        lines = "".join("%s\t%s\n" % (n, ",".join(map(str, s))) for n, s in sorted(names.items()))
        total = 0
        for s in names.values():
            n = 1
            for d in s:
                n *= d
            total += n
        print("%s\t%s\t%d tensors\t%d parameters\tsha256 %s" % (path, architecture, len(names), total, hashlib.sha256(lines.encode()).hexdigest()), flush=True)
        if a.out:
            os.makedirs(a.out, exist_ok=True)
            open(os.path.join(a.out, "%02d.%s.tsv" % (i, architecture)), "w").write(lines)


if __name__ == "__main__":
    main()

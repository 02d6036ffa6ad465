/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the files of the small models that take pictures, and the writer of its PNGs (stored, not
 * compressed: what is tested is who reads them).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "picture_model.h"
#include "tiny_model.h"
#include "tiny_tokenizer.h"

struct model_files {
    const char *config, *preprocessor, *processor, *added, *chat; /* processor: NULL, or a file beside it */
};

static const struct model_files kinds[] = {
    [PICTURE_QWEN] =
        {.config =
             "{\"architectures\":[\"Qwen3VLMoeForConditionalGeneration\"],\"model_type\":\"qwen3_vl_moe\","
             "\"dtype\":\"float32\",\"text_config\":{\"model_type\":\"qwen3_vl_moe_text\",\"dtype\":"
             "\"float32\","
             "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"hidden_act\":\"silu\",\"rms_norm_eps\":0.01,\"vocab_size\":320,\"max_position_embeddings\":"
             "512,"
             "\"intermediate_size\":96,\"head_dim\":16,\"attention_bias\":false,\"rope_theta\":2000.0,"
             "\"rope_scaling\":{\"rope_type\":\"default\",\"mrope_section\":[4,2,2],\"mrope_interleaved\":"
             "true},"
             "\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"norm_topk_prob\":"
             "true,"
             "\"decoder_sparse_step\":1,\"mlp_only_layers\":[1],\"bos_token_id\":1,\"eos_token_id\":2},"
             "\"vision_config\":{\"depth\":2,\"hidden_size\":32,\"hidden_act\":\"gelu_pytorch_tanh\","
             "\"intermediate_size\":48,\"num_heads\":2,\"in_channels\":3,\"patch_size\":4,\"spatial_merge_"
             "size\":2,"
             "\"temporal_patch_size\":2,\"out_hidden_size\":64,\"num_position_embeddings\":16,"
             "\"model_type\":\"qwen3_vl_moe\",\"deepstack_visual_indexes\":[0]},\"tie_word_embeddings\":"
             "false,"
             "\"image_token_id\":302,\"video_token_id\":303,\"vision_start_token_id\":300,"
             "\"vision_end_token_id\":301}",
         .preprocessor = "{\"size\":{\"longest_edge\":4096,\"shortest_edge\":64},\"patch_size\":4,\"temporal_"
                         "patch_size\":2,"
                         "\"merge_size\":2,\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5],"
                         "\"processor_class\":\"Qwen3VLProcessor\",\"image_processor_type\":"
                         "\"Qwen2VLImageProcessorFast\"}",
         .added = ",{\"id\":300,\"content\":\"<|vision_start|>\",\"special\":true,\"normalized\":false}"
                  ",{\"id\":301,\"content\":\"<|vision_end|>\",\"special\":true,\"normalized\":false}"
                  ",{\"id\":302,\"content\":\"<|image_pad|>\",\"special\":true,\"normalized\":false}"
                  ",{\"id\":303,\"content\":\"<|video_pad|>\",\"special\":true,\"normalized\":false}",
         .chat = "{%- for m in messages %}{%- if m.content is string %}{{- m.content }}{%- else %}"
                 "{%- for p in m.content %}{%- if p.type == 'image' or 'image' in p %}"
                 "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- p.text }}{%- endif %}"
                 "{%- endfor %}{%- endif %}{%- endfor %}"},
    [PICTURE_LLAVA] =
        {.config =
             "{\"architectures\":[\"LlavaForConditionalGeneration\"],\"model_type\":\"llava\",\"dtype\":"
             "\"float32\",\"text_config\":{\"model_type\":\"llama\",\"dtype\":\"float32\",\"hidden_size\":64,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"hidden_act\":"
             "\"silu\",\"rms_norm_eps\":0.01,\"vocab_size\":320,\"max_position_embeddings\":512,"
             "\"intermediate_size\":96,\"rope_theta\":2000.0,\"bos_token_id\":1,\"eos_token_id\":2},\"vision_"
             "config\":{\"hidden_size\":32,\"intermediate_size\":48,\"num_attention_heads\":2,\"num_hidden_"
             "layers\":2,\"patch_size\":4,\"num_channels\":3,\"model_type\":\"clip_vision_model\",\"image_"
             "size\":16,\"hidden_act\":\"quick_gelu\",\"projection_dim\":32},\"tie_word_embeddings\":false,"
             "\"image_token_index\":302,\"projector_hidden_act\":\"gelu\",\"vision_feature_layer\":-2,"
             "\"vision_feature_select_strategy\":\"default\"}",
         .preprocessor = "{\"image_processor_type\":\"CLIPImageProcessor\",\"size\":{\"shortest_edge\":16},"
                         "\"crop_size\":{\"height\":16,\"width\":16}}",
         .processor = "{\"patch_size\":4,\"num_additional_image_tokens\":1,\"vision_feature_select_"
                      "strategy\":\"default\"}",
         .added = ",{\"id\":300,\"content\":\"<begin>\",\"special\":true,\"normalized\":false},{\"id\":301,"
                  "\"content\":\"<end>\",\"special\":true,\"normalized\":false},{\"id\":302,\"content\":\"<"
                  "image>\",\"special\":true,\"normalized\":false}",
         .chat = "{%- for m in messages %}{%- if m.content is string %}{{- m.content }}{%- else %}{%- for p "
                 "in m.content %}{%- if p.type == 'image' %}{{- '<image>' }}{%- else %}{{- p.text }}{%- "
                 "endif %}{%- endfor %}{%- endif %}{%- endfor %}"},
    [PICTURE_GEMMA] =
        {.config =
             "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\",\"dtype\":"
             "\"float32\",\"text_config\":{\"model_type\":\"gemma3_text\",\"dtype\":\"float32\",\"hidden_"
             "size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"rms_"
             "norm_eps\":0.01,\"vocab_size\":320,\"max_position_embeddings\":512,\"intermediate_size\":96,"
             "\"head_dim\":24,\"hidden_activation\":\"gelu_pytorch_tanh\",\"query_pre_attn_scalar\":40,"
             "\"sliding_window\":9,\"sliding_window_pattern\":3,\"rope_theta\":100000.0,\"rope_local_base_"
             "freq\":500.0,\"attention_bias\":false,\"bos_token_id\":1,\"eos_token_id\":2},\"vision_config\":"
             "{\"hidden_size\":32,\"intermediate_size\":48,\"num_attention_heads\":2,\"num_hidden_layers\":2,"
             "\"patch_size\":4,\"num_channels\":3,\"model_type\":\"siglip_vision_model\",\"image_size\":32,"
             "\"vision_use_head\":false},\"tie_word_embeddings\":false,\"image_token_index\":302,\"boi_token_"
             "index\":300,\"eoi_token_index\":301,\"mm_tokens_per_image\":16}",
         .preprocessor =
             "{\"image_processor_type\":\"Gemma3ImageProcessor\",\"size\":{\"height\":32,\"width\":32}}",
         .processor = "{\"image_seq_length\":16}",
         .added = ",{\"id\":300,\"content\":\"<start_of_image>\",\"special\":true,\"normalized\":false},{"
                  "\"id\":301,\"content\":\"<end_of_image>\",\"special\":true,\"normalized\":false},{\"id\":"
                  "302,\"content\":\"<image_soft_token>\",\"special\":true,\"normalized\":false}",
         .chat = "{%- for m in messages %}{%- if m.content is string %}{{- m.content }}{%- else %}{%- for p "
                 "in m.content %}{%- if p.type == 'image' %}{{- '<start_of_image>' }}{%- else %}{{- p.text "
                 "}}{%- endif %}{%- endfor %}{%- endif %}{%- endfor %}"},
};

static void put(const char *dir, const char *name, const char *text, size_t n)
{
    char path[160];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_write_atomic(path, text, n, &e))
        fail_msg("%s", e.message);
}

void picture_model_write(const char *dir, enum picture_kind kind)
{
    picture_model_write_long(dir, kind, 512);
}

void picture_model_write_long(const char *dir, enum picture_kind kind, uint32_t positions)
{
    static const char key[] = "\"max_position_embeddings\":";
    const struct model_files *k = &kinds[kind];
    struct strbuf b = STRBUF_INIT;
    const char *at = strstr(k->config, key);
    assert_non_null(at);
    at += sizeof key - 1;
    strbuf_add(&b, k->config, (size_t)(at - k->config));
    strbuf_printf(&b, "%u%s", positions, at + strspn(at, "0123456789"));
    tiny_model_write(dir, strbuf_cstr(&b), NULL, 5, NULL, NULL);
    strbuf_clear(&b);
    tiny_tokenizer(&b, &(struct tiny_options){.added = k->added});
    put(dir, "tokenizer.json", b.data, b.len);
    strbuf_release(&b);
    put(dir, "preprocessor_config.json", k->preprocessor, strlen(k->preprocessor));
    if (k->processor)
        put(dir, "processor_config.json", k->processor, strlen(k->processor));
    put(dir, "chat_template.jinja", k->chat, strlen(k->chat));
}

void picture_model_remove(const char *dir)
{
    static const char *const files[] = {"model.safetensors",     "config.json",
                                        "tokenizer.json",        "preprocessor_config.json",
                                        "processor_config.json", "chat_template.jinja"};
    char path[160];
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* ---- PNG ---- */

static void put_u32(struct strbuf *out, uint32_t v)
{
    for (int i = 24; i >= 0; i -= 8)
        strbuf_putc(out, (char)(v >> i));
}

static void put_chunk(struct strbuf *out, const char *type, const void *data, size_t n)
{
    put_u32(out, (uint32_t)n);
    const size_t from = out->len;
    strbuf_add(out, type, 4);
    strbuf_add(out, data, n);
    put_u32(out, (uint32_t)crc32(0, (const Bytef *)out->data + from, (uInt)(out->len - from)));
}

void picture_png(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed)
{
    struct strbuf head = STRBUF_INIT, raw = STRBUF_INIT;
    put_u32(&head, width);
    put_u32(&head, height);
    strbuf_add(&head, "\x08\x02\0\0\0", 5);
    for (uint32_t y = 0; y < height; y++) {
        strbuf_putc(&raw, 0);
        for (uint32_t x = 0; x < 3 * width; x++)
            strbuf_putc(&raw, (char)rng_u64(seed, (uint64_t)y * 3 * width + x));
    }
    uLongf n = compressBound(raw.len);
    Bytef *stored = malloc(n);
    assert_non_null(stored);
    assert_int_equal(compress2(stored, &n, (const Bytef *)raw.data, raw.len, 0), Z_OK);
    strbuf_add(out, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(out, "IHDR", head.data, head.len);
    put_chunk(out, "IDAT", stored, n);
    put_chunk(out, "IEND", "", 0);
    assert_false(strbuf_failed(out) || strbuf_failed(&raw) || strbuf_failed(&head));
    free(stored);
    strbuf_release(&head);
    strbuf_release(&raw);
}

void picture_base64(struct strbuf *out, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? p[i + 1] : 0) << 8 | (i + 2 < n ? p[i + 2] : 0);
        strbuf_putc(out, digits[v >> 18]);
        strbuf_putc(out, digits[v >> 12 & 63]);
        strbuf_putc(out, i + 1 < n ? digits[v >> 6 & 63] : '=');
        strbuf_putc(out, i + 2 < n ? digits[v & 63] : '=');
    }
}

void picture_part(struct strbuf *out, uint32_t width, uint32_t height, uint64_t seed)
{
    struct strbuf png = STRBUF_INIT;
    picture_png(&png, width, height, seed);
    strbuf_puts(out, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,");
    picture_base64(out, png.data, png.len);
    strbuf_puts(out, "\"}}");
    strbuf_release(&png);
}

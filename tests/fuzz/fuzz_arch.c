/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the text of an architecture file, run in the sandbox over a fixed config.json and translated
 * into a graph.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "spec/spec.h"

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64, "
    "\"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, "
    "\"vocab_size\": 96, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"rope_scaling\": "
    "{\"type\": "
    "\"linear\", \"factor\": 2}, \"list\": [1, null, \"x\"]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct strmap names = {0};
    struct ckpt c = {.dir = "fuzz", .by_name = &names};
    struct findings f;
    struct spec *s = NULL;
    char path[64];
    struct spec_options o = {
        .arch_path = path,
        .limits = {.max_bytes = 16 << 20, .max_instructions = 300000, .max_wall_ns = 1000000000}};
    int fd = memfd_create("arch", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    arena_init(&c.arena, &d0.mem, MEM_CKPT);
    findings_init(&f, &d0.mem);
    if (json_parse(config, strlen(config), NULL, &c.arena, &c.config, NULL))
        abort();
    int rc = spec_open(&s, &c, &o, &f, &d0, NULL);
    if (s) {
        if (rc || graph_verify(s->graph, NULL))
            abort(); /* what comes out is whole */
        struct graph *part = NULL;
        if (graph_slice(s->graph, 0, 0, GRAPH_PROLOGUE, &part, NULL) == ERR_OK)
            graph_free(part);
    } else if (!rc && f.n == 0) {
        abort(); /* no description and nobody says why */
    }
    spec_close(s);
    findings_release(&f);
    arena_release(&c.arena);
    close(fd);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: cards, links and the driver's version, as kernel text tells them. Refuses to open a device: a card
 * that hangs must not hang the question which cards there are.
 */
#include <stdio.h>
#include <string.h>

#include "host/host_internal.h"

#define PCI  "/sys/bus/pci/devices"
#define RDMA "/sys/class/infiniband"

struct host_library *host_find_library(const struct host *h, const char *name)
{
    for (size_t i = 0; i < h->n_libraries; i++)
        if (strcmp(h->libraries[i].name, name) == 0)
            return &h->libraries[i];
    return NULL;
}

/* First line of a small file, without what could play with a terminal. */
static const char *line_of(struct arena *arena, const struct host_source *from, const char *dir,
                           const char *name, const char *file)
{
    char path[512], text[256];
    int n = snprintf(path, sizeof path, "%s/%s/%s", dir, name, file);
    if (n < 0 || (size_t)n >= sizeof path || !host_read_text(from, path, text, sizeof text))
        return NULL;
    text[strcspn(text, "\n")] = 0;
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return text[0] ? arena_strdup(arena, text) : NULL;
}

static const char *vendor_name(const char *id)
{
    static const char *const names[][2] = {
        {"0x10de", "NVIDIA"}, {"0x1002", "AMD"}, {"0x8086", "Intel"}, {"0x19e5", "Huawei"}};
    for (size_t i = 0; id && i < ARRAY_LEN(names); i++)
        if (strcmp(names[i][0], id) == 0)
            return names[i][1];
    return id;
}

/* "Model: \t\t NVIDIA H200" */
static const char *model_of(struct host *h, const struct host_source *from, const char *address)
{
    char path[256], text[4096];
    int n = snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", address);
    if (n < 0 || (size_t)n >= sizeof path || !host_read_text(from, path, text, sizeof text))
        return NULL;
    const char *p = str_starts(text, "Model:") ? text : strstr(text, "\nModel:");
    if (!p)
        return NULL;
    p += strcspn(p, ":") + 1;
    p += strspn(p, " \t");
    return arena_strndup(&h->arena, p, strcspn(p, "\n\t"));
}

static void read_cards(struct host *h, const struct host_source *from)
{
    const char *names[1024];
    struct host_source quiet = *from; /* most devices are no cards: a capture does without them */
    quiet.record = NULL;
    h->cards = arena_alloc_n(&h->arena, HOST_MAX_DEVICES, sizeof *h->cards);
    size_t n = h->cards ? host_list(from, PCI, &h->arena, names, ARRAY_LEN(names)) : 0;
    for (size_t i = 0; i < n && h->n_cards < HOST_MAX_DEVICES; i++) {
        const char *class = line_of(&h->arena, &quiet, PCI, names[i], "class");
        if (!class || !(str_starts(class, "0x03") || str_starts(class, "0x12")))
            continue;
        class = line_of(&h->arena, from, PCI, names[i], "class");
        const char *vendor = line_of(&h->arena, from, PCI, names[i], "vendor");
        const char *device = line_of(&h->arena, from, PCI, names[i], "device");
        h->cards[h->n_cards++] = (struct host_card){
            .address = names[i],
            .vendor = vendor_name(vendor),
            .model = model_of(h, from, names[i]),
            .device = vendor && device ? arena_printf(&h->arena, "%s:%s", vendor, device) : NULL,
        };
    }
}

static void read_links(struct host *h, const struct host_source *from)
{
    const char *names[HOST_MAX_DEVICES];
    h->links = arena_alloc_n(&h->arena, HOST_MAX_DEVICES, sizeof *h->links);
    size_t n = h->links ? host_list(from, RDMA, &h->arena, names, ARRAY_LEN(names)) : 0;
    for (size_t i = 0; i < n; i++)
        h->links[h->n_links++] = (struct host_link){
            .name = names[i],
            .rate = line_of(&h->arena, from, RDMA, names[i], "ports/1/rate"),
            .state = line_of(&h->arena, from, RDMA, names[i], "ports/1/state"),
        };
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu ..." -> the first word that starts with a
 * digit and has a dot */
static void read_driver(struct host *h, const struct host_source *from)
{
    char text[1024];
    struct host_library *driver = host_find_library(h, "nvidia driver");
    if (!driver || !host_read_text(from, "/proc/driver/nvidia/version", text, sizeof text))
        return;
    driver->found = true;
    for (char *word = text; *word;) {
        size_t n = strcspn(word, " \t\n");
        if (n > 2 && word[0] >= '0' && word[0] <= '9' && memchr(word, '.', n)) {
            driver->version = arena_strndup(&h->arena, word, strspn(word, "0123456789."));
            return;
        }
        word += n;
        word += *word != 0;
    }
}

void host_read_devices(struct host *h, const struct host_source *from)
{
    read_cards(h, from);
    read_links(h, from);
    read_driver(h, from);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the use of hwloc: counts, cache sizes and a text of sockets, caches, cores, NUMA nodes and PCI
 * devices. Text is capped, for machines with thousands of processing units.
 */
#include "host/host_internal.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#define TOPOLOGY_MAX_LINES 400

struct topology_text {
    struct strbuf out;
    unsigned lines, left_out;
};

static bool is_leaf_noise(hwloc_obj_t o)
{
    /* a processing unit alone on its core says nothing that the core does not */
    return o->type == HWLOC_OBJ_PU && o->parent && o->parent->type == HWLOC_OBJ_CORE && o->parent->arity == 1;
}

static void print_object(struct topology_text *t, hwloc_obj_t o, unsigned depth)
{
    if (is_leaf_noise(o))
        return;
    if (t->lines >= TOPOLOGY_MAX_LINES) {
        t->left_out++;
        return;
    }
    char type[64], attr[256];
    hwloc_obj_type_snprintf(type, sizeof type, o, 0);
    hwloc_obj_attr_snprintf(attr, sizeof attr, o, " ", 0);
    t->lines++;
    strbuf_printf(&t->out, "%*s%s", (int)(2 * depth), "", type);
    if (o->os_index != HWLOC_UNKNOWN_INDEX && o->type != HWLOC_OBJ_PCI_DEVICE && o->type != HWLOC_OBJ_BRIDGE)
        strbuf_printf(&t->out, " P#%u", o->os_index);
    if (o->name)
        strbuf_printf(&t->out, " \"%s\"", o->name);
    if (attr[0] && o->type != HWLOC_OBJ_MACHINE)
        strbuf_printf(&t->out, " (%s)", attr);
    strbuf_putc(&t->out, '\n');
}

static void print_tree(struct topology_text *t, hwloc_obj_t o, unsigned depth)
{
    print_object(t, o, depth);
    if (depth > 64)
        return;
    for (hwloc_obj_t c = o->memory_first_child; c; c = c->next_sibling)
        print_tree(t, c, depth + 1);
    for (hwloc_obj_t c = o->first_child; c; c = c->next_sibling)
        print_tree(t, c, depth + 1);
    for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling)
        print_tree(t, c, depth + 1);
}

static unsigned count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(topology, type);
    return n > 0 ? (unsigned)n : 0;
}

static uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    hwloc_obj_t o = hwloc_get_obj_by_type(topology, type, 0);
    return o && o->attr ? o->attr->cache.size : 0;
}

void host_probe_topology(struct host *h)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return;
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return;
    }
    h->n_cores = count_of(topology, HWLOC_OBJ_CORE);
    h->n_sockets = count_of(topology, HWLOC_OBJ_PACKAGE);
    h->n_numa = count_of(topology, HWLOC_OBJ_NUMANODE);
    h->l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    h->l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE);

    struct topology_text t = {.out = STRBUF_INIT};
    print_tree(&t, hwloc_get_root_obj(topology), 0);
    if (t.left_out)
        strbuf_printf(&t.out, "... %u more objects\n", t.left_out);
    if (!strbuf_failed(&t.out))
        h->topology = arena_strdup(&h->arena, strbuf_cstr(&t.out));
    strbuf_release(&t.out);
    hwloc_topology_destroy(topology);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a recording as a whole: pieces run in order, what they give goes into the trace and, where a later
 * piece reads it, into memory. After each piece the run can be taken up again by another process.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/record_impl.h"

static int give_input(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                      void *to, struct err *e)
{
    struct recording *r = context;
    const struct kept *k = &r->kept[value];
    char name[256];
    (void)piece;
    if (k->data) {
        memcpy(to, k->data + first * width * 4, n * width * 4);
        return ERR_OK;
    }
    if (!r->from)
        BUG("%s was not kept", r->g->info[value].name);
    const char *is = stream_name(&r->stream, value, name, sizeof name);
    return trace_read(r->from, trace_find(r->from, is), first, n, to, e);
}

/* The first in the order of the graph, not of the chunks. */
static void look_for_nan(struct recording *r, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                         const float *x)
{
    const uint32_t node = r->stream.maker[value];
    if (r->g->values[value].dtype != D0_F32 || node >= r->not_finite_node)
        return;
    for (uint64_t i = 0; i < n * width; i++)
        if (!isfinite(x[i])) {
            r->not_finite_node = node;
            snprintf(r->out->not_finite, sizeof r->out->not_finite, "%.120s, token %llu, value %llu",
                     r->g->info[value].name, (unsigned long long)(first + i / width),
                     (unsigned long long)(i % width));
            return;
        }
}

static int take_output(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n,
                       uint64_t width, const void *rows, struct err *e)
{
    struct recording *r = context;
    struct kept *k = &r->kept[value];
    (void)piece;
    look_for_nan(r, value, first, n, width, rows);
    if (r->watched && r->g->values[value].dtype == D0_F32)
        watch_rows(r, value, first, n, width, rows);
    if (k->wanted && !k->data && !(k->data = malloc(k->bytes ? (size_t)k->bytes : 1)))
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)k->bytes,
                       r->g->info[value].name);
    if (k->wanted)
        memcpy(k->data + first * width * 4, rows, n * width * 4);
    if (r->slot_of[value] == UINT32_MAX)
        return ERR_OK;
    return trace_write(&r->writer, r->slot_of[value], first, n, rows, e);
}

static void drop(struct kept *k)
{
    free(k->data);
    k->data = NULL;
}

static int piece_done(void *context, size_t piece, struct err *e)
{
    struct recording *r = context;
    const size_t all = r->stream.n_pieces;
    int rc = ERR_OK;
    for (uint32_t v = 0; v < r->g->n_values; v++)
        if (r->kept[v].data && r->kept[v].last_piece <= piece)
            drop(&r->kept[v]);
    r->done++;
    if (piece + 1 < all && r->stream.pieces[piece].clean)
        rc = record_save(r, piece + 1, e);
    if (r->m->d0)
        log_line(&r->m->d0->log, LOG_INFO, "record", "piece %zu of %zu (layer %d) is done", piece + 1, all,
                 r->stream.pieces[piece].layer);
    if (rc == 0 && r->o->stop_after && r->done >= r->o->stop_after && piece + 1 < all)
        rc = err_set(e, ERR_CANCELLED, "stopped after %zu pieces, as asked", r->done);
    return rc;
}

static void summarise(struct recording *r)
{
    struct record_result *out = r->out;
    out->positions = r->o->n_ids;
    out->pieces = r->stream.n_pieces;
    out->resumed = r->first_piece;
    out->file_bytes = r->writer.file_bytes;
    out->cost = r->stream.cost;
    if (out->not_finite[0]) {
        char subject[160];
        snprintf(subject, sizeof subject, "%.*s", (int)strcspn(out->not_finite, ","), out->not_finite);
        finding_add(r->f, FINDING_N002, subject,
                    "first value that is not finite: %s; what follows from it was computed all the same",
                    out->not_finite);
    }
}

int oracle_record(const struct oracle_model *m, const struct record_options *o, struct arena *arena,
                  struct record_result *out, struct findings *f, struct err *e)
{
    *out = (struct record_result){0};
    struct recording r = {.m = m, .o = o, .out = out, .f = f, .arena = arena, .g = m->spec->graph};
    const struct stream_io io = {
        .context = &r, .input = give_input, .output = take_output, .done = piece_done};
    r.writer.fd = -1;
    r.not_finite_node = UINT32_MAX;
    r.partial = arena_printf(arena, "%s.partial", o->out);
    r.state = arena_printf(arena, "%s.state", o->out);
    int rc = r.partial && r.state ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a path");
    if (rc == 0)
        rc = record_plan(&r, e);
    if (rc == 0)
        rc = record_begin(&r, e);
    if (rc == 0)
        rc = stream_run(&r.stream, r.first_piece, &io, e);
    if (rc == 0)
        rc = record_finish(&r, e);
    if (rc == 0 && r.watched)
        rc = watch_report(&r, e);
    if (rc == 0)
        summarise(&r);
    for (uint32_t v = 0; r.kept && v < r.g->n_values; v++)
        drop(&r.kept[v]);
    trace_writer_release(&r.writer);
    strbuf_release(&r.header);
    trace_close(r.from);
    if (r.stream.m)
        stream_close(&r.stream);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables for people. Cells are collected row by row, the first row is the header; widths count code points.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

void table_init(struct table *t, size_t n_columns)
{
    memset(t, 0, sizeof *t);
    arena_init(&t->arena, NULL, MEM_MISC);
    t->n_columns = n_columns;
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *copy = arena_strdup(&t->arena, text);
    if (vec_reserve((void **)&t->cells, &t->capacity, t->n_cells + 1, sizeof *t->cells) == ERR_OK)
        t->cells[t->n_cells++] = copy ? copy : "";
}

static size_t width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

void table_print(const struct table *t, FILE *out)
{
    bool bold = cli_colour(out);
    size_t n_rows = t->n_columns ? t->n_cells / t->n_columns : 0;
    for (size_t r = 0; r < n_rows; r++) {
        if (r == 0 && bold)
            fputs("\033[1m", out);
        for (size_t c = 0; c < t->n_columns; c++) {
            size_t widest = 0;
            bool right = t->cells[c][0] == '>';
            for (size_t i = 0; i < n_rows; i++) {
                const char *cell = t->cells[i * t->n_columns + c];
                size_t w = width(cell) - (i == 0 && right);
                widest = w > widest ? w : widest;
            }
            const char *cell = t->cells[r * t->n_columns + c] + (r == 0 && right);
            int pad = (int)(widest - width(cell));
            bool last = c + 1 == t->n_columns;
            if (right)
                fprintf(out, "%*s%s", pad, "", cell);
            else
                fprintf(out, "%s%*s", cell, last ? 0 : pad, "");
            fputs(last ? "\n" : "  ", out);
        }
        if (r == 0 && bold)
            fputs("\033[0m", out);
    }
}

void table_release(struct table *t)
{
    arena_release(&t->arena);
    free(t->cells);
    memset(t, 0, sizeof *t);
}

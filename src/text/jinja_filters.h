/* SPDX-License-Identifier: Apache-2.0
 *
 * The filters by file: jinja_filters.c works on one value, jinja_filters_seq.c on sequences.
 */
#ifndef TEXT_JINJA_FILTERS_H
#define TEXT_JINJA_FILTERS_H

#include "text/jinja_impl.h"

#define X(name, function, params, required) struct jval function(struct jrun *x, struct jcall *c);
#include "text/jinja_filters.def"
#undef X

#endif

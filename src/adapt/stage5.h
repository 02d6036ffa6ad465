/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of stage 5 share: sums over all runs of the load.
 */
#ifndef ADAPT_STAGE5_H
#define ADAPT_STAGE5_H

#include "adapt/probe.h"
#include "stress/stress.h"

struct load_total {
    uint32_t sent, failed;
    uint64_t peak;
    char first_failure[200];
    char pictures[160]; /* what the load with pictures came to, for the summary; "" without one */
};
/* Figures of one run as an object, and their sums. */
void load_add(struct job *j, struct json_writer *w, uint32_t concurrency, const struct stress_result *r,
              struct load_total *load);
/* Where the model takes pictures: requests with a new picture each, and whether host threads, tower or text
 * were busiest. */
int picture_load_run(struct job *j, struct json_writer *w, struct load_total *load, struct err *e);

#endif

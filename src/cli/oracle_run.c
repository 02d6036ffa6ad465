/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening what record and compare run: checkpoint, description and device of one MODEL argument.
 */
#include "cli/cli.h"

int cli_open_oracle(struct oracle_run *r, const struct common *c, uint32_t kv_dtype, struct findings *f,
                    struct err *e)
{
    *r = (struct oracle_run){.ckpt = NULL};
    int rc = ckpt_open(&r->ckpt, c->model, f, c->d0, e);
    if (rc == ERR_OK)
        rc = spec_open(
            &r->spec, r->ckpt,
            &(struct spec_options){.arch_path = c->arch, .kv_dtype = kv_dtype, .activations = c->activations},
            f, c->d0, e);
    for (size_t i = 0; i < c->n_waive; i++) /* quietly: the command itself tells what was not there */
        findings_waive(f, c->waive[i].key, c->waive[i].reason);
    if (rc == ERR_OK && (!r->spec || findings_failed(f))) {
        rc = err_set(e, ERR_MISMATCH, "%s cannot be run: see its findings", c->model);
        err_hint(e, "day0 check tells what to do");
    }
    if (rc == ERR_OK)
        rc = dev_open(&r->dev,
                      &(struct dev_options){.name = c->device ? c->device : "cpu",
                                            .isa = c->cpu,
                                            .n_threads = c->threads,
                                            .mem = &c->d0->mem},
                      e);
    if (rc == ERR_OK)
        r->model = (struct oracle_model){
            .dev = &r->dev, .spec = r->spec, .ckpt = r->ckpt, .d0 = c->d0, .memory = c->memory};
    return rc;
}

void cli_close_oracle(struct oracle_run *r)
{
    if (r->model.dev)
        dev_close(&r->dev);
    spec_close(r->spec);
    ckpt_close(r->ckpt);
}

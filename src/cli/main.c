/* SPDX-License-Identifier: Apache-2.0
 *
 * Entry: finds the command by its word and hands it the rest of the line. Owns `struct d0`, the root of
 * accounting and log.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct command {
    const char *name;
    int (*run)(struct d0 *d0, int argc, char **argv);
    const char *arguments, *summary;
};

static const struct command commands[] = {
    {"adapt", cmd_adapt, "MODEL [--out DIR]", "all five stages; report in ./day0-report/"},
    {"check", cmd_check, "MODEL", "pre-flight from headers: everything that would stop this model"},
    {"inspect", cmd_inspect, "MODEL",
     "what it is: parameters, operators, KV bytes per token, legal TP and EP"},
    {"draft", cmd_draft, "MODEL [-o FILE]", "a first architecture file for a model nobody described"},
    {"run", cmd_run, "MODEL -p TEXT", "generate once"},
    {"prompt", cmd_prompt, "MODEL --messages FILE",
     "what a conversation becomes: text, token ids, placeholders"},
    {"record", cmd_record, "MODEL -o TRACE",
     "run it exactly, layer by layer from disk, and write what it computed"},
    {"compare", cmd_compare, "TRACE TRACE|MODEL",
     "probe by probe, operator by operator: the first that went wrong"},
    {"serve", cmd_serve, "MODEL", "OpenAI-compatible HTTP service"},
    {"stress", cmd_stress, "URL|MODEL", "load test: TTFT, TPOT, ITL, E2E, throughput, memory"},
    {"ops", cmd_ops, "[MODEL]", "operators of a device: correctness, speed, support matrix"},
    {"env", cmd_env, "", "this platform: processor, memory, topology, libraries"},
};

static void print_help(FILE *out)
{
    fprintf(
        out,
        "usage: day0 COMMAND ...   takes a model directory to a verified service, and proves each step\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(out, "  day0 %-8s %-18s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    fprintf(
        out,
        "\n`day0 COMMAND --help` lists its options; --json prints one JSON document on stdout.\n"
        "exit status: 0 passed, 1 a check failed, 2 wrong usage, 3 the machine failed us, 4 incomplete\n");
}

static const struct command *nearest(const char *word)
{
    const struct command *best = &commands[0];
    for (size_t i = 1; i < ARRAY_LEN(commands); i++)
        if (str_distance(word, commands[i].name) < str_distance(word, best->name))
            best = &commands[i];
    return best;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    /* progress goes to a terminal only; warnings always */
    struct d0 d0 = {.log = {.level = LOG_WARN, .fd = STDERR_FILENO}};
    if (argc < 2) {
        print_help(stderr);
        return EXIT_WRONG_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return EXIT_PASSED;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("day0 %s\n", D0_VERSION);
        return EXIT_PASSED;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        /* argp prints argv[0] in its usage lines */
        char name[64];
        snprintf(name, sizeof name, "day0 %s", commands[i].name);
        argv[1] = name;
        return commands[i].run(&d0, argc - 1, argv + 1);
    }
    fprintf(stderr, "day0: no command '%s'; did you mean '%s'? `day0 --help` lists all\n", argv[1],
            nearest(argv[1])->name);
    return EXIT_WRONG_USAGE;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Replays a corpus through one fuzz target without a fuzzer, so that what a campaign found stays tested
 * everywhere. usage: replay_NAME DIRECTORY... ; every regular file is one input. Prints TAP.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    struct stat st;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
        fclose(f);
        return 0;
    }
    size_t n = (size_t)st.st_size;
    /* exactly n bytes, so that a sanitizer sees any read past the end */
    uint8_t *data = malloc(n ? n : 1);
    size_t got = data ? fread(data, 1, n, f) : 0;
    fclose(f);
    int rc = data && got == n ? LLVMFuzzerTestOneInput(data, n) : -1;
    free(data);
    return rc < 0 ? -1 : 1;
}

int main(int argc, char **argv)
{
    int n_files = 0, n_bad = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d)
            continue;
        for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.' ||
                snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name) >= (int)sizeof path)
                continue;
            int rc = replay_file(path);
            n_files += rc > 0;
            n_bad += rc < 0;
            if (rc < 0)
                printf("# cannot replay %s\n", path);
        }
        closedir(d);
    }
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("1..1\n%s 1 - replayed %d inputs\n", n_bad ? "not ok" : "ok", n_files);
    return n_bad != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the list of libraries: those linked in, with the version they state at run time, and those that may be
 * loaded later (MPI, CUDA), as found or not found. Starts no program.
 */
#include "host/host_internal.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <event2/event.h>
#include <gnu/libc-version.h>
#include <hwloc.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/host_parse.h"

#define HOST_MAX_LIBRARIES 16

static void add(struct host *h, const char *name, const char *version, bool found, const char *role)
{
    if (h->n_libraries < HOST_MAX_LIBRARIES)
        h->libraries[h->n_libraries++] = (struct host_library){name, version, role, found};
}

/* Lua belongs to the script room, whose header this room does not include; the identity string is an exported
 * symbol. */
static const char *lua_version(struct host *h)
{
    const char *s = dlsym(RTLD_DEFAULT, "lua_ident");
    const char *p = s ? strstr(s, "Lua ") : NULL;
    if (!p)
        return NULL;
    p += 4;
    return arena_strndup(&h->arena, p, strcspn(p, " $"));
}

static bool can_load(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *lib = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
        if (lib) {
            dlclose(lib);
            return true;
        }
    }
    return false;
}

/* Full path of a program, in the arena, or NULL. */
static const char *find_program(struct host *h, const char *name)
{
    const char *path = getenv("PATH");
    char full[PATH_MAX];
    for (unsigned guard = 0; path && *path && guard < 1024; guard++) {
        size_t n = strcspn(path, ":");
        struct stat st;
        int w = snprintf(full, sizeof full, "%.*s/%s", (int)(n < PATH_MAX ? n : 0), path, name);
        if (n > 0 && w > 0 && (size_t)w < sizeof full && access(full, X_OK) == 0 && stat(full, &st) == 0 &&
            S_ISREG(st.st_mode))
            return arena_strdup(&h->arena, full);
        path += n;
        path += *path == ':';
    }
    return NULL;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu ..." -> the first word that starts with a
 * digit and has a dot */
static const char *nvidia_driver(struct host *h)
{
    char text[1024];
    if (!host_read_text("", "/proc/driver/nvidia/version", text, sizeof text))
        return NULL;
    for (char *word = text; *word;) {
        size_t n = strcspn(word, " \t\n");
        if (n > 2 && word[0] >= '0' && word[0] <= '9' && memchr(word, '.', n))
            return arena_strndup(&h->arena, word, n);
        word += n;
        word += *word != 0;
    }
    return NULL;
}

int host_probe_libraries(struct host *h)
{
    static const char *const mpi[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
    static const char *const cuda[] = {"libcuda.so.1"};
    static const char *const cudart[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                         "libcudart.so"};
    h->libraries = arena_alloc_n(&h->arena, HOST_MAX_LIBRARIES, sizeof *h->libraries);
    if (!h->libraries)
        return ERR_NOMEM;
    unsigned hw = hwloc_get_api_version();
    const curl_version_info_data *c = curl_version_info(CURLVERSION_NOW);
    add(h, "glibc", gnu_get_libc_version(), true, "C library");
    add(h, "openssl", arena_strdup(&h->arena, OpenSSL_version(OPENSSL_VERSION_STRING)), true, "hashing, TLS");
    add(h, "lua", lua_version(h), dlsym(RTLD_DEFAULT, "lua_newstate") != NULL, "architecture files");
    add(h, "libevent", event_get_version(), true, "HTTP server");
    add(h, "libcurl", c && c->version ? arena_strdup(&h->arena, c->version) : NULL, c != NULL, "HTTP client");
    add(h, "hwloc", arena_printf(&h->arena, "API %u.%u.%u", hw >> 16, hw >> 8 & 255, hw & 255), true,
        "topology");
    add(h, "mpi", NULL, can_load(mpi, ARRAY_LEN(mpi)), "communicator plugin");
    const char *mpirun = find_program(h, "mpirun");
    add(h, "mpirun", NULL, mpirun != NULL,
        mpirun ? arena_printf(&h->arena, "launcher, %s", mpirun) : "launcher");
    add(h, "nvidia driver", nvidia_driver(h), can_load(cuda, ARRAY_LEN(cuda)), "device plugin");
    add(h, "cuda runtime", NULL, can_load(cudart, ARRAY_LEN(cudart)), "device plugin");
    const char *nvcc = find_program(h, "nvcc");
    add(h, "nvcc", NULL, nvcc != NULL, nvcc ? arena_printf(&h->arena, "compiler, %s", nvcc) : "compiler");
    return 0;
}
